//! `bfc`: the growing best-fit allocator with coalescing of TensorFlow and XLA.
//!
//! The rules come from its published source:
//!
//! * Sizes are rounded to 256 bytes. Free chunks are kept in 21 bins by power of two, ordered by size and address. The
//!   search goes upwards through the bins, so it finds the best fit with the lowest address.
//! * A chunk is split if the remainder is at least the request or at least 128 MiB. Otherwise the caller gets the whole
//!   chunk.
//! * Neighbours in one region are joined as soon as both are free.
//! * Regions start at 2 MiB and double with each growth. If the request does not fit, they double until it does. A
//!   region never exceeds the device's free memory. After each refusal the size shrinks by a tenth, down to the
//!   request.
//! * If that fails, regions without a live chunk are returned, and growth is tried once more.
//!
//! One pool serves all streams, as in the original, which knows only its own compute stream. To make this sound with
//! several streams, a chunk remembers the streams that last used it. Another stream that takes the chunk waits for them
//! on the device. Such waits are counted, but the original does not have them.
//!
//! Two rules are added. Each private pool has its own regions. A request that would fail waits for the device first,
//! while the original waits up to ten seconds for a free. Four features are not modelled: taking the whole device at
//! the start (`allow_growth` off), the share of the device that is left to others, chunks with timestamps, and the
//! two-ended placement for fixed regions.

use super::free_lists::FreeLists;
use super::last_users::LastUsers;
use super::rounding::{UNIT, whole_units};
use crate::block::{Block, Group, Request};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeMap;

const FIRST_REGION: u64 = 2 << 20;
/// The most bytes that may stay unused inside a chunk.
const MAX_WASTE: u64 = 128 << 20;
/// The factor for the size after a refusal, in single precision as in the original.
const BACK_OFF: f32 = 0.9;

struct Pool {
    /// Its free list in [`Bfc::lists`].
    list: u32,
    /// Bytes of the next region.
    next_region: u64,
}

/// The `bfc` policy. The module describes its rules.
#[derive(Default)]
pub struct Bfc {
    lists: FreeLists,
    users: LastUsers,
    pools: BTreeMap<Group, Pool>,
}

impl Bfc {
    /// Creates the policy. It has no settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn pool(&mut self, group: Group) -> &mut Pool {
        self.pools.entry(group).or_insert_with(|| Pool {
            list: self.lists.add_list(),
            next_region: FIRST_REGION,
        })
    }

    /// Returns an unlisted block from the bins or a new region.
    fn find(&mut self, supply: &mut Supply<'_>, group: Group, bytes: u64) -> Result<BlockId, SourceError> {
        let list = self.pool(group).list;
        match self.lists.take_best_fit(list, bytes) {
            Some(id) => Ok(id),
            None => self.extend(supply, group, bytes),
        }
    }

    /// Adds a region. It is smaller than planned if the device does not have enough memory.
    fn extend(&mut self, supply: &mut Supply<'_>, group: Group, bytes: u64) -> Result<BlockId, SourceError> {
        let pool = self.pool(group);
        let list = pool.list;
        let mut grown = false;
        while pool.next_region < bytes {
            pool.next_region = pool.next_region.saturating_mul(2);
            grown = true;
        }
        let available = supply.free_bytes().unwrap_or(u64::MAX) / UNIT * UNIT;
        let mut size = pool.next_region.min(available.max(bytes));
        let segment = loop {
            match supply.take(size) {
                Ok(segment) => break segment,
                Err(error) => {
                    let less = ((size as f32 * BACK_OFF) as u64).next_multiple_of(UNIT);
                    // Rounding up must not cancel the decrease.
                    size = less.min(size - UNIT);
                    if size < bytes {
                        return Err(error);
                    }
                }
            }
        };
        if !grown {
            pool.next_region = pool.next_region.saturating_mul(2);
        }
        let id = self.lists.add_segment(segment, list);
        self.users.set(id, 0);
        Ok(id)
    }

    /// Returns the regions without a live chunk. Each one consists of one free chunk.
    fn free_regions(&self) -> Vec<BlockId> {
        let free = self
            .pools
            .values()
            .flat_map(|pool| self.lists.free(pool.list).iter());
        free.map(|chunk| chunk.id)
            .filter(|id| self.lists.space.is_whole(*id))
            .collect()
    }

    /// Returns wholly free regions to the source if this can free enough memory for the request.
    fn collect_garbage(&mut self, supply: &mut Supply<'_>, bytes: u64) {
        let regions = self.free_regions();
        let freed: u64 = regions.iter().map(|id| self.lists.space.bytes(*id)).sum();
        if supply.free_bytes().is_none_or(|free| bytes <= free + freed) {
            self.release_cached(supply);
        }
    }

    /// Waits for the device. Afterwards no block waits for a stream.
    fn synchronize(&mut self, supply: &mut Supply<'_>) {
        self.free_deferred(supply);
        self.users.clear();
    }
}

impl Policy for Bfc {
    fn name(&self) -> &'static str {
        "bfc"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::PublishedRules
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = whole_units(request)?;
        let id = match self.find(supply, request.group, bytes) {
            Err(error) if error.is_out_of_memory() => {
                self.synchronize(supply);
                match self.find(supply, request.group, bytes) {
                    Err(error) if error.is_out_of_memory() => {
                        self.collect_garbage(supply, bytes);
                        self.find(supply, request.group, bytes)?
                    }
                    outcome => outcome?,
                }
            }
            outcome => outcome?,
        };
        let users = self.users.of(id);
        self.users.order(supply, users, request.stream);
        let whole = self.lists.space.bytes(id);
        let rest = whole - bytes;
        let keep = if rest >= bytes || rest >= MAX_WASTE {
            bytes
        } else {
            whole
        };
        let (block, rest) = self.lists.hand_out(id, request, keep);
        if let Some(rest) = rest {
            self.users.set(rest, users);
        }
        Ok(block)
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        let mut users = self.users.only(block.stream());
        for neighbour in self.lists.free_neighbours(block.key()).into_iter().flatten() {
            users |= self.users.of(neighbour);
        }
        let id = self.lists.put_back(block.key());
        self.users.set(id, users);
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        for id in self.free_regions() {
            self.lists.release_segment(supply, id);
        }
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.lists.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.lists.space.layout(visit);
    }

    fn check(&self) {
        self.lists.check();
    }
}
