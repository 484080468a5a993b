//! `cuda-async`: the driver's stream-ordered pool, `cudaMallocAsync`, which keeps what it has.
//!
//! The driver is closed. What its documents promise, and what is made of it here:
//!
//! * memory freed on a stream is reused at once on that stream: best fit, split to 256 bytes, joined with
//!   free neighbours of the same stream;
//! * the pool may make the allocating stream wait for another and take what that one freed
//!   (`reuse_allow_internal_dependencies`, on by default): done when the own list has no fit;
//! * physical memory comes in pages of 2 MiB, mapped at addresses of the pool's own: the pool grows at the
//!   lowest place with room, joining a free end;
//! * fragmented memory is remapped to one place: when the device refuses to grow, it is waited for, and
//!   whole free pages move to where the request fits; the rest is taken new;
//! * unused memory of other pools goes back before a request is refused;
//! * memory above the release threshold goes back at a synchronisation: the threshold is taken as
//!   unlimited, as RMM and PyTorch set it.
//!
//! An estimate: the documents say remapping comes before growth, but it needs frees the device has
//! passed, and a recording does not tell which those were. Users report growth (pytorch#110194, rmm#1245),
//! so growth comes first here. Not modelled: reuse because a wait already orders it or because the free is
//! known to be complete (`reuse_follow_event_dependencies`, `reuse_allow_opportunistic`), which saves
//! waits and changes no size; the driver's own classes for small sizes; sharing between processes.

mod pages;

use self::pages::Pages;
use super::rounding::whole_units;
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// See the module.
#[derive(Default)]
pub struct CudaAsync {
    pages: Pages,
    pools: BTreeMap<Group, usize>,
    /// By pool, the streams in order of first use, each with the number of its free list.
    streams: Vec<Vec<(Stream, u32)>>,
}

impl CudaAsync {
    /// There is nothing to set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn pool(&mut self, group: Group) -> usize {
        *self.pools.entry(group).or_insert_with(|| {
            self.streams.push(Vec::new());
            self.pages.add_pool()
        })
    }

    /// The free list of a stream, made on first use.
    fn list(&mut self, pool: usize, stream: Stream) -> u32 {
        let streams = &mut self.streams[pool];
        if let Some((_, list)) = streams.iter().find(|(known, _)| *known == stream) {
            return *list;
        }
        let list = self.pages.add_list(pool);
        streams.push((stream, list));
        list
    }

    /// The best fit among what other streams freed, and its stream.
    fn fit_of_others(&self, pool: usize, own: u32, bytes: u64) -> Option<(Stream, u32)> {
        let others = self.streams[pool].iter().filter(|(_, list)| *list != own);
        let fits = others.filter_map(|(stream, list)| {
            let fit = self.pages.lists.free(*list).best_fit(bytes)?;
            Some((fit, *stream, *list))
        });
        fits.min().map(|(_, stream, list)| (stream, list))
    }

    /// An unlisted block, from the free lists or new pages.
    fn find(
        &mut self,
        supply: &mut Supply<'_>,
        pool: usize,
        stream: Stream,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let own = self.list(pool, stream);
        if let Some(id) = self.pages.lists.take_best_fit(own, bytes) {
            return Ok(id);
        }
        if let Some((owner, list)) = self.fit_of_others(pool, own, bytes)
            && let Some(id) = self.pages.lists.take_best_fit(list, bytes)
        {
            supply.order_after(stream, owner, None);
            return Ok(id);
        }
        self.pages.grow(supply, own, bytes)
    }

    /// Waits for the device, and joins what all streams of a pool freed: any of them may have it now.
    fn synchronize(&mut self, supply: &mut Supply<'_>) {
        for block in supply.synchronize() {
            self.free(supply, block);
        }
        for streams in &self.streams {
            if let [(_, first), rest @ ..] = streams.as_slice() {
                for (_, list) in rest {
                    self.pages.lists.merge(*list, *first);
                }
            }
        }
    }

    /// The last resort: waits, and remaps.
    fn remap(
        &mut self,
        supply: &mut Supply<'_>,
        pool: usize,
        stream: Stream,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        self.synchronize(supply);
        let own = self.list(pool, stream);
        for (_, list) in self.streams[pool].iter().filter(|(_, list)| *list != own) {
            self.pages.lists.merge(*list, own);
        }
        if let Some(id) = self.pages.lists.take_best_fit(own, bytes) {
            return Ok(id);
        }
        for other in (0..self.streams.len()).filter(|other| *other != pool) {
            self.trim(supply, other);
        }
        self.pages.gather(supply, own, bytes)
    }

    /// Gives back the whole pages that a pool does not use. The device has been waited for.
    fn trim(&mut self, supply: &mut Supply<'_>, pool: usize) {
        for (_, list) in &self.streams[pool] {
            self.pages.decommit(supply, *list);
        }
    }
}

impl Policy for CudaAsync {
    fn name(&self) -> &'static str {
        "cuda-async"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Estimate
    }

    fn needs_pages(&self) -> bool {
        true
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = whole_units(request)?;
        let pool = self.pool(request.group);
        let id = match self.find(supply, pool, request.stream, bytes) {
            Err(error) if error.is_out_of_memory() => self.remap(supply, pool, request.stream, bytes)?,
            outcome => outcome?,
        };
        let (block, _) = self.pages.lists.hand_out(id, request, bytes);
        Ok(block)
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        let pool = self.pages.pool_of(block.key());
        let list = self.list(pool, block.stream());
        self.pages.lists.space.set_owner(block.key(), list);
        self.pages.lists.put_back(block.key());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.synchronize(supply);
        for pool in 0..self.streams.len() {
            self.trim(supply, pool);
        }
    }

    fn returnable_bytes(&self) -> u64 {
        let lists = self.streams.iter().flatten();
        lists.map(|(_, list)| self.pages.spare_bytes(*list)).sum()
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.pages.lists.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.pages.lists.space.layout(visit);
    }

    fn check(&self) {
        self.pages.check();
    }
}
