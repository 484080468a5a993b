//! `cuda-async`: the driver's stream-ordered pool, `cudaMallocAsync`, which keeps its memory.
//!
//! The driver is closed source. The model follows its documentation:
//!
//! * Memory freed on a stream is reused at once on that stream. The search is best fit. Blocks are split to 256 bytes
//!   and joined with free neighbours of the same stream.
//! * The pool may make the allocating stream wait for another stream and take memory that the other stream freed
//!   (`reuse_allow_internal_dependencies`, on by default). The model does so if the stream's own list has no fit.
//! * Physical memory comes in pages of 2 MiB, mapped at the pool's own addresses. The pool grows at the lowest address
//!   with room and joins the free block before it.
//! * Fragmented memory is remapped to one place. If the device refuses growth, the model waits for the device and moves
//!   whole free pages to a place where the request fits. It creates new pages for the rest.
//! * Unused memory of other pools is returned before a request is refused.
//! * Memory above the release threshold is returned at a synchronisation. The model assumes an unlimited threshold, as
//!   RMM and PyTorch set it.
//!
//! This policy is an estimate. The documentation says that remapping comes before growth. However, remapping needs
//! frees that the device has completed, and a recording does not contain this information. Users report growth
//! (pytorch#110194, rmm#1245), so growth comes first here. Several features are not modelled: reuse because a wait
//! already orders it or because the free is known to be complete (`reuse_follow_event_dependencies`,
//! `reuse_allow_opportunistic`), which saves waits and changes no size; the driver's own classes for small sizes;
//! sharing between processes.

mod pages;

use self::pages::Pages;
use super::rounding::whole_units;
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// The `cuda-async` policy. The module describes its rules.
#[derive(Default)]
pub struct CudaAsync {
    pages: Pages,
    pools: BTreeMap<Group, usize>,
    /// The streams of each pool in order of first use, with the number of their free list.
    streams: Vec<Vec<(Stream, u32)>>,
}

impl CudaAsync {
    /// Creates the policy. It has no settings.
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

    /// Returns the free list of a stream. The first use creates the list.
    fn list(&mut self, pool: usize, stream: Stream) -> u32 {
        let streams = &mut self.streams[pool];
        if let Some((_, list)) = streams.iter().find(|(known, _)| *known == stream) {
            return *list;
        }
        let list = self.pages.add_list(pool);
        streams.push((stream, list));
        list
    }

    /// Returns the stream and the list with the best fit among the other streams' lists.
    fn fit_of_others(&self, pool: usize, own: u32, bytes: u64) -> Option<(Stream, u32)> {
        let others = self.streams[pool].iter().filter(|(_, list)| *list != own);
        let fits = others.filter_map(|(stream, list)| {
            let fit = self.pages.lists.free(*list).best_fit(bytes)?;
            Some((fit, *stream, *list))
        });
        fits.min().map(|(_, stream, list)| (stream, list))
    }

    /// Returns an unlisted block from the free lists or from new pages.
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

    /// Waits for the device, and joins the free blocks of all streams of each pool, since any stream may use them now.
    fn synchronize(&mut self, supply: &mut Supply<'_>) {
        self.free_deferred(supply);
        for streams in &self.streams {
            if let [(_, first), rest @ ..] = streams.as_slice() {
                for (_, list) in rest {
                    self.pages.lists.merge(*list, *first);
                }
            }
        }
    }

    /// Waits for the device and remaps pages. This is the last resort.
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

    /// Returns the unused whole pages of a pool to the source. The caller has waited for the device.
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
