//! `buckets`: eleven ready-made sizes from 64 B to 64 KiB, and a list of exact sizes above.
//!
//! TensorCore's host pool (sergiogallegos/tensorcore), by the rules its memory guide gives, with its
//! source consulted where the guide is silent:
//!
//! * a request of up to 64 KiB takes a block of the next of the eleven powers of two;
//! * three blocks of each bucket are there from the start; here they are carved from one slab, and a
//!   bucket that has run empty gets a slab of three more;
//! * a larger request reuses a block of exactly its size, and only that; otherwise the driver is asked;
//! * in every list the block freed last is taken first; nothing is split or joined, and everything stays
//!   cached until someone asks for its release.
//!
//! Where its source and its guide disagree, the guide is modelled: the source rounds small sizes to
//! 8 bytes and not to a bucket, and a guard in its constructor keeps the first blocks from being made.
//!
//! Added here: blocks lie on 256 bytes as on a device, so the buckets of 64 and 128 bytes hold blocks of
//! 256; each stream and private pool has a pool of its own; when memory runs out the device is waited for
//! and slabs without a live block go back. Not modelled: the fallback to the system's allocator.

use super::rounding::{UNIT, whole_units};
use super::slabs::Slabs;
use super::warm_lists::{ListKey, WarmLists};
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeSet;

const SMALLEST: u64 = 64;
const LARGEST: u64 = 64 << 10;
/// Blocks of a bucket made at once.
const BATCH: usize = 3;

/// The bucket that serves a request; none above 64 KiB.
fn bucket(bytes: u64) -> Option<u64> {
    (bytes <= LARGEST).then(|| bytes.max(SMALLEST).next_power_of_two())
}

/// Bytes of a bucket's blocks.
fn cell_bytes(bucket: u64) -> u64 {
    bucket.max(UNIT)
}

/// The bucket of each of a pool's first blocks, in the order of their addresses.
const FIRST: [u64; 11 * BATCH] = {
    let mut first = [SMALLEST; 11 * BATCH];
    let mut at = 0;
    while at < first.len() {
        first[at] = SMALLEST << (at / BATCH);
        at += 1;
    }
    first
};

/// See the module.
#[derive(Default)]
pub struct Buckets {
    slabs: Slabs,
    free: WarmLists,
    /// Pools whose first blocks were made, or could not be.
    started: BTreeSet<(Group, Stream)>,
}

impl Buckets {
    /// There is nothing to set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one slab for a block of each of these buckets; answers the blocks, not yet listed.
    fn carve<const N: usize>(
        &mut self,
        supply: &mut Supply<'_>,
        key: ListKey,
        classes: [u64; N],
    ) -> Result<[BlockId; N], SourceError> {
        let sizes = classes.map(cell_bytes);
        let segment = supply.take(sizes.iter().sum())?;
        let cells = self.slabs.add(segment, sizes);
        for (id, class) in cells.into_iter().zip(classes) {
            self.free.assign(id, ListKey { class, ..key });
        }
        Ok(cells)
    }

    /// A new block for a list that is empty.
    fn take_new(&mut self, supply: &mut Supply<'_>, key: ListKey) -> Result<BlockId, SourceError> {
        if key.class <= LARGEST {
            let [first, rest @ ..] = self.carve(supply, key, [key.class; BATCH])?;
            rest.into_iter().for_each(|id| self.free.push(id));
            return Ok(first);
        }
        let id = self.slabs.add_whole(supply.take(key.class)?);
        self.free.assign(id, key);
        Ok(id)
    }

    /// A block for a list that is empty, giving back what it must.
    fn grow(&mut self, supply: &mut Supply<'_>, key: ListKey) -> Result<BlockId, SourceError> {
        match self.take_new(supply, key) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome,
        }
        for block in supply.synchronize() {
            self.free(supply, block);
        }
        if let Some(id) = self.free.pop(key) {
            return Ok(id);
        }
        self.release_cached(supply);
        self.take_new(supply, key)
    }

    /// Makes a pool's first blocks; a device too full for them is no reason to refuse a request.
    fn start(&mut self, supply: &mut Supply<'_>, key: ListKey) -> Result<(), SourceError> {
        match self.carve(supply, key, FIRST) {
            Ok(cells) => cells.into_iter().for_each(|id| self.free.push(id)),
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error),
        }
        self.started.insert((key.group, key.stream));
        Ok(())
    }
}

impl Policy for Buckets {
    fn name(&self) -> &'static str {
        "buckets"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::PublishedRules
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = whole_units(request)?;
        let key = ListKey {
            group: request.group,
            stream: request.stream,
            class: bucket(request.bytes).unwrap_or(bytes),
        };
        if !self.started.contains(&(key.group, key.stream)) {
            self.start(supply, key)?;
        }
        let id = match self.free.pop(key) {
            Some(id) => id,
            None => self.grow(supply, key)?,
        };
        Ok(self.slabs.hand_out(id, request))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.slabs.put_back(block.key());
        self.free.push(block.key());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        for id in self.free.iter() {
            // A slab that has gone took the names of its other cells along.
            if self.slabs.exists(id)
                && let Some(segment) = self.slabs.remove_if_free(id)
            {
                supply.give(segment);
            }
        }
        let slabs = &self.slabs;
        self.free.retain(|id| slabs.exists(id));
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.slabs.layout(visit);
    }

    fn check(&self) {
        self.slabs.check(self.free.iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_eleven_buckets() {
        assert_eq!((FIRST[0], FIRST[3], FIRST[32]), (64, 128, 64 << 10));
        assert_eq!(
            [0, 64, 65, 64 << 10].map(bucket),
            [64, 64, 128, 64 << 10].map(Some)
        );
        assert_eq!(bucket((64 << 10) + 1), None);
    }
}
