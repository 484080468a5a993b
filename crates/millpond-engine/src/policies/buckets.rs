//! `buckets`: eleven prepared sizes from 64 B to 64 KiB, and a list of exact sizes above.
//!
//! This is TensorCore's host pool (sergiogallegos/tensorcore). The rules come from its memory guide, and from its
//! source where the guide says nothing:
//!
//! * A request of up to 64 KiB takes a block of the next of the eleven powers of two.
//! * Each bucket has three blocks from the start. Here they are parts of one slab, and an empty bucket gets a slab of
//!   three more.
//! * A larger request reuses only a block of exactly its size. Otherwise the driver allocates a new one.
//! * Every list returns the block that was freed last. Blocks are never split or joined, and they stay cached until a
//!   caller requests their release.
//!
//! Where the source and the guide disagree, this policy follows the guide. The source rounds small sizes to 8 bytes
//! instead of a bucket, and a check in its constructor prevents the first blocks from being created.
//!
//! Three rules are added. Blocks are aligned to 256 bytes as on a device, so the buckets of 64 and 128 bytes hold
//! blocks of 256. Each stream and private pool has a pool of its own. When memory runs out, the policy waits for the
//! device and returns slabs without a live block. The fallback to the system's allocator is not modelled.

use super::rounding::{UNIT, whole_units};
use super::warm_lists::{ListKey, WarmLists};
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeSet;

const SMALLEST: u64 = 64;
const LARGEST: u64 = 64 << 10;
/// Number of blocks of a bucket that are created at once.
const BATCH: usize = 3;

/// Returns the bucket that serves a request, or `None` above 64 KiB.
fn bucket(bytes: u64) -> Option<u64> {
    (bytes <= LARGEST).then(|| bytes.max(SMALLEST).next_power_of_two())
}

/// Returns the size of a bucket's blocks in bytes.
fn cell_bytes(bucket: u64) -> u64 {
    bucket.max(UNIT)
}

/// The bucket of each of a pool's first blocks, in address order.
const FIRST: [u64; 11 * BATCH] = {
    let mut first = [SMALLEST; 11 * BATCH];
    let mut at = 0;
    while at < first.len() {
        first[at] = SMALLEST << (at / BATCH);
        at += 1;
    }
    first
};

/// The `buckets` policy. The module describes its rules.
#[derive(Default)]
pub struct Buckets {
    lists: WarmLists,
    /// Pools for which the creation of the first blocks was tried.
    started: BTreeSet<(Group, Stream)>,
}

impl Buckets {
    /// Creates the policy. It has no settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a pool's first blocks. A lack of memory for them is not an error.
    fn start(&mut self, supply: &mut Supply<'_>, key: ListKey) -> Result<(), SourceError> {
        match carve(&mut self.lists, supply, key, FIRST) {
            Ok(cells) => cells.into_iter().for_each(|id| self.lists.push(id)),
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error),
        }
        self.started.insert((key.group, key.stream));
        Ok(())
    }
}

/// Takes one slab with a block for each of these classes. Returns the blocks, which are not yet listed.
fn carve<const N: usize>(
    lists: &mut WarmLists,
    supply: &mut Supply<'_>,
    key: ListKey,
    classes: [u64; N],
) -> Result<[BlockId; N], SourceError> {
    let cells = classes.map(|class| (cell_bytes(class), ListKey { class, ..key }));
    let segment = supply.take(cells.iter().map(|(bytes, _)| bytes).sum())?;
    Ok(lists.add(segment, cells))
}

/// Creates a block for an empty list.
fn create(lists: &mut WarmLists, supply: &mut Supply<'_>, key: ListKey) -> Result<BlockId, SourceError> {
    if key.class <= LARGEST {
        let [first, rest @ ..] = carve(lists, supply, key, [key.class; BATCH])?;
        rest.into_iter().for_each(|id| lists.push(id));
        return Ok(first);
    }
    let [id] = carve(lists, supply, key, [key.class])?;
    Ok(id)
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
        let id = match self.lists.pop(key) {
            Some(id) => id,
            None => self
                .lists
                .grow(supply, key, |lists, supply| create(lists, supply, key))?,
        };
        Ok(self.lists.hand_out(id, request))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.lists.free(&block);
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.lists.release_cached(supply);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.lists.layout(visit);
    }

    fn check(&self) {
        self.lists.check();
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
