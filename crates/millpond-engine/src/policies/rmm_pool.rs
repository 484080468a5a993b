//! `rmm-pool`: RAPIDS RMM's pool memory resource, started empty and without a maximum.
//!
//! The rules, as its documentation and source publish them:
//!
//! * sizes are rounded to 256 bytes; the best fit is split to exactly what was asked for;
//! * each stream has a free list; neighbours are joined when both are free in one list and come from one
//!   upstream block;
//! * a stream whose list has no fit takes one from another stream's list, and waits on the device for
//!   the event that the other recorded with its last free;
//! * failing that, the other lists are taken over whole, one by one, each with such a wait, until the
//!   joined list has a fit;
//! * failing that, the pool asks upstream for as much as it has, or for the request if that is more, and
//!   halves what it asks for after each refusal until the request itself was refused;
//! * an event is recorded on every free; nothing ever goes back upstream.
//!
//! The original finds the best fit and the place of a freed block by walking the list; the answers here
//! are the same and take logarithmic time. Other streams are asked in the order of their first use,
//! where the original goes by the addresses of its event handles.
//!
//! Added here: each private pool is a pool of its own. Before a request is refused the blocks that wait
//! for other streams are waited for, since RMM has its callers order a free and knows no such blocks. And
//! a stream that took over another's list records an event: in the original a third stream that takes from
//! the joined list waits for an event older than the joining, and so not for the first one's work.
//! Not modelled: an initial size, a maximum size with its reclaiming of whole upstream blocks, and
//! threads' own default streams.

use super::free_lists::FreeLists;
use super::rounding::whole_units;
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::source::{Event, Segment};
use crate::space::{BlockId, Piece, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// What one stream has in one pool.
struct StreamList {
    stream: Stream,
    /// Its free list in [`RmmPool::lists`].
    number: u32,
    /// Recorded with the last free; none before the first.
    event: Option<Event>,
    /// Whether it can be searched and taken over; taking over ends it, and its stream's next use of the
    /// pool begins it anew.
    exists: bool,
}

#[derive(Default)]
struct Pool {
    /// In order of first use.
    streams: Vec<StreamList>,
    /// Bytes taken upstream.
    bytes: u64,
}

/// See the module.
#[derive(Default)]
pub struct RmmPool {
    lists: FreeLists,
    pools: BTreeMap<Group, Pool>,
    /// By free list, whose it is.
    owners: Vec<(Group, usize)>,
    /// Never given back; their positions are the numbers of the segments.
    upstream: Vec<Segment>,
}

impl RmmPool {
    /// There is nothing to set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The position of a stream among those of its pool, made on first use.
    fn stream(&mut self, group: Group, stream: Stream) -> usize {
        let pool = self.pools.entry(group).or_default();
        if let Some(at) = pool.streams.iter().position(|s| s.stream == stream) {
            return at;
        }
        let number = self.lists.add_list();
        pool.streams.push(StreamList {
            stream,
            number,
            event: None,
            exists: false,
        });
        self.owners.push((group, pool.streams.len() - 1));
        pool.streams.len() - 1
    }

    /// An unlisted block of at least these bytes, from the lists or upstream.
    fn find(
        &mut self,
        supply: &mut Supply<'_>,
        request: &Request,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let taker = self.stream(request.group, request.stream);
        let pool = self.pools.entry(request.group).or_default();
        let own = pool.streams[taker].number;
        if let Some(id) = self.lists.take_best_fit(own, bytes) {
            return Ok(id);
        }
        pool.streams[taker].exists = true;
        let wait = |supply: &mut Supply<'_>, other: &StreamList| {
            // Memory of a list that saw no free was never used.
            if let Some(event) = other.event {
                supply.order_after(request.stream, other.stream, Some(event));
            }
        };
        let others = || {
            (0..)
                .zip(&pool.streams)
                .filter(|(at, s)| *at != taker && s.exists)
        };
        for (_, other) in others() {
            if let Some(id) = self.lists.take_best_fit(other.number, bytes) {
                wait(supply, other);
                return Ok(id);
            }
        }
        let others: Vec<usize> = others().map(|(at, _)| at).collect();
        for at in others {
            let other = &mut pool.streams[at];
            wait(supply, other);
            other.exists = false;
            self.lists.merge(other.number, own);
            pool.streams[taker].event = Some(supply.record_event(request.stream));
            if let Some(id) = self.lists.take_best_fit(own, bytes) {
                return Ok(id);
            }
        }
        self.expand(supply, request.group, own, bytes)
    }

    /// Takes as much again as the pool has, or as much as can be had.
    fn expand(
        &mut self,
        supply: &mut Supply<'_>,
        group: Group,
        list: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let pool = self.pools.entry(group).or_default();
        let mut size = pool.bytes.max(bytes);
        let segment = loop {
            match supply.take(size) {
                Ok(segment) => break segment,
                Err(error) if size == bytes => return Err(error),
                Err(_) => size = (size / 2).max(bytes),
            }
        };
        pool.bytes += segment.bytes();
        let (address, bytes) = (segment.address(), segment.bytes());
        self.upstream.push(segment);
        let number = self.upstream.len() as u32 - 1;
        Ok(self
            .lists
            .space
            .add_segment(address, bytes, number, list, State::Free))
    }
}

impl Policy for RmmPool {
    fn name(&self) -> &'static str {
        "rmm-pool"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::PublishedRules
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = whole_units(request)?;
        let id = match self.find(supply, request, bytes) {
            Err(error) if error.is_out_of_memory() && supply.has_deferred() => {
                for block in supply.synchronize() {
                    self.free(supply, block);
                }
                self.find(supply, request, bytes)?
            }
            outcome => outcome?,
        };
        let (block, _) = self.lists.hand_out(id, request, bytes);
        Ok(block)
    }

    fn free(&mut self, supply: &mut Supply<'_>, block: Block) {
        // A block taken from another's list belongs from now on to the stream that used it last.
        let (group, _) = self.owners[self.lists.space.owner(block.key()) as usize];
        let at = self.stream(group, block.stream());
        let pool = self.pools.entry(group).or_default();
        let list = &mut pool.streams[at];
        list.event = Some(supply.record_event(block.stream()));
        list.exists = true;
        self.lists.space.set_owner(block.key(), list.number);
        self.lists.put_back(block.key());
    }

    /// The original cannot.
    fn release_cached(&mut self, _supply: &mut Supply<'_>) {}

    fn expect_blocks(&mut self, blocks: usize) {
        self.lists.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.lists.space.layout(visit);
    }

    fn check(&self) {
        self.lists.check();
        let held: u64 = self.upstream.iter().map(Segment::bytes).sum();
        assert_eq!(
            held,
            self.pools.values().map(|p| p.bytes).sum::<u64>(),
            "sizes of the pools"
        );
        for list in self.pools.values().flat_map(|p| &p.streams) {
            assert!(
                list.exists || self.lists.free(list.number).is_empty(),
                "blocks in a list that was taken over"
            );
        }
    }
}
