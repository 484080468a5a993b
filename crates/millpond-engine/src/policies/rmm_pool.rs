//! `rmm-pool`: RAPIDS RMM's pool memory resource, started empty and without a maximum.
//!
//! The rules come from its documentation and source:
//!
//! * Sizes are rounded to 256 bytes. The best fit is split to exactly the requested size.
//! * Each stream has a free list. Neighbours are joined if both are free in the same list and come from the same
//!   upstream block.
//! * A stream whose list has no fit takes a block from another stream's list. It waits on the device for the event that
//!   the other stream recorded with its last free.
//! * If that fails, the stream merges the other lists into its own, one by one and each with such a wait, until its
//!   list has a fit.
//! * If that fails, the pool requests from upstream as many bytes as it already has, or the request if that is larger.
//!   It halves the size after each refusal until the request itself is refused.
//! * Every free records an event. Memory is never returned upstream.
//!
//! The original walks its list to find the best fit and the position of a freed block. The result here is the same, in
//! logarithmic time. The other streams are searched in the order of their first use. The original uses the order of the
//! addresses of its event handles.
//!
//! Three rules are added. Each private pool is a pool of its own. Before a request is refused, the policy waits for the
//! blocks that wait for other streams. RMM has no such blocks, because its callers must order a free. A stream that
//! merges another list records an event. In the original, a third stream that takes a block from the merged list waits
//! for an event older than the merge, so it does not wait for the first stream's work. Three features are not modelled:
//! an initial size, a maximum size with its release of whole upstream blocks, and the default streams of threads.

use super::free_lists::FreeLists;
use super::rounding::whole_units;
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::source::Event;
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// The state of one stream in one pool.
struct StreamList {
    stream: Stream,
    /// Its free list in [`RmmPool::lists`].
    number: u32,
    /// The event recorded with the last free, or `None` before the first free.
    event: Option<Event>,
    /// Whether the list can be searched and merged. A merge into another list sets this to `false`, and the stream's
    /// next use of the pool sets it to `true`.
    exists: bool,
}

#[derive(Default)]
struct Pool {
    /// The streams in order of first use.
    streams: Vec<StreamList>,
    /// Bytes taken from upstream.
    bytes: u64,
}

/// The `rmm-pool` policy. The module describes its rules.
#[derive(Default)]
pub struct RmmPool {
    lists: FreeLists,
    pools: BTreeMap<Group, Pool>,
    /// The pool and the stream of each free list.
    owners: Vec<(Group, usize)>,
}

impl RmmPool {
    /// Creates the policy. It has no settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the index of a stream in its pool. The first use adds the stream.
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

    /// Returns an unlisted block of at least `bytes`, from the lists or from upstream.
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
            // A list without a free contains only memory that was never used.
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

    /// Takes as many bytes as the pool already has, or as many as possible.
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
        Ok(self.lists.add_segment(segment, list))
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
                self.free_deferred(supply);
                self.find(supply, request, bytes)?
            }
            outcome => outcome?,
        };
        let (block, _) = self.lists.hand_out(id, request, bytes);
        Ok(block)
    }

    fn free(&mut self, supply: &mut Supply<'_>, block: Block) {
        // A block taken from another list now belongs to the stream that used it last.
        let (group, _) = self.owners[self.lists.space.owner(block.key()) as usize];
        let at = self.stream(group, block.stream());
        let pool = self.pools.entry(group).or_default();
        let list = &mut pool.streams[at];
        list.event = Some(supply.record_event(block.stream()));
        list.exists = true;
        self.lists.space.set_owner(block.key(), list.number);
        self.lists.put_back(block.key());
    }

    /// Does nothing, because the original cannot return memory.
    fn release_cached(&mut self, _supply: &mut Supply<'_>) {}

    fn expect_blocks(&mut self, blocks: usize) {
        self.lists.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.lists.space.layout(visit);
    }

    fn check(&self) {
        self.lists.check();
        let space = &self.lists.space;
        assert_eq!(
            space.ids().map(|id| space.bytes(id)).sum::<u64>(),
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
