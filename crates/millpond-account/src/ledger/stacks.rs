//! The stacks of allocations and frees as addresses. Each distinct stack is stored once.
//!
//! A stack is found by its addresses and has a number. At most 2^18 are stored, which take 70 MB; further new stacks
//! are not stored. The stacks come from the walker (`os/stack.rs`), with the feature `stacks`.

use super::lock;
use super::stack::Stack;
use super::table::{CacheLine, grow, has_room};
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use millpond_os::ranked::{Locked, Rank, Ranked};
use std::hash::BuildHasher;
use std::mem;
use std::num::NonZeroU32;

/// The maximum number of frames of a stack, from the innermost.
pub(super) const FRAMES: usize = 32;
const SHARDS: usize = 16;
const MOST_IN_SHARD: usize = (1 << 18) / SHARDS;

/// The number of a stack: its position in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StackId(NonZeroU32);

impl StackId {
    fn new(shard: usize, at: usize) -> Option<Self> {
        NonZeroU32::new((at * SHARDS + shard + 1) as u32).map(Self)
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    fn place(self) -> (usize, usize) {
        let at = self.0.get() as usize - 1;
        (at % SHARDS, at / SHARDS)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Addresses {
    len: usize,
    all: [usize; FRAMES],
}

impl Addresses {
    fn as_slice(&self) -> &[usize] {
        self.all.get(..self.len).unwrap_or_default()
    }

    fn hash(&self) -> u64 {
        FixedState::with_seed(0).hash_one(self.as_slice())
    }
}

#[derive(Default)]
struct Shard {
    /// The hash, and the index in `kept`.
    by_hash: HashTable<(u64, u32)>,
    kept: Vec<Addresses>,
}

/// The table of stacks.
pub(super) struct Stacks(Box<[CacheLine<Ranked<Shard>>]>);

/// All locks of the table, held.
pub(crate) struct StackLocks<'a> {
    _shards: [Locked<'a, Shard>; SHARDS],
}

impl Stacks {
    pub(super) fn new() -> Self {
        Self(
            (0..SHARDS)
                .map(|_| CacheLine::new(Rank::Stacks, Shard::default()))
                .collect(),
        )
    }

    /// Returns the number of the caller's stack.
    #[inline(never)]
    pub(super) fn here(&self) -> Option<StackId> {
        let mut here = Addresses {
            len: 0,
            all: [0; FRAMES],
        };
        walk(&mut here);
        if here.len == 0 { None } else { self.number(&here) }
    }

    #[cfg(test)]
    pub(super) fn made(&self, addresses: &[usize]) -> Option<StackId> {
        let mut all = [0; FRAMES];
        all[..addresses.len()].copy_from_slice(addresses);
        self.number(&Addresses {
            len: addresses.len(),
            all,
        })
    }

    fn number(&self, stack: &Addresses) -> Option<StackId> {
        let hash = stack.hash();
        let shard_at = (hash >> 48) as usize % SHARDS;
        let shard = &self.0[shard_at].0;
        loop {
            let mut this = lock(shard);
            let same = |(_, at): &(u64, u32)| this.kept.get(*at as usize) == Some(stack);
            if let Some((_, at)) = this.by_hash.find(hash, same) {
                return StackId::new(shard_at, *at as usize);
            }
            let at = this.kept.len();
            if at >= MOST_IN_SHARD {
                return None;
            }
            let (hashes, room) = (has_room(&this.by_hash), this.kept.capacity() > at);
            if hashes && room {
                this.kept.push(*stack);
                this.by_hash
                    .insert_unique(hash, (hash, at as u32), |entry| entry.0);
                return StackId::new(shard_at, at);
            }
            drop(this);
            let grown = hashes || grow(shard, |this| &mut this.by_hash, |entry| entry.0);
            if !grown || !(room || more_room(shard, at)) {
                return None;
            }
        }
    }

    /// Returns a copy of a stack.
    pub(super) fn get(&self, id: StackId) -> Option<Stack> {
        let (shard, at) = id.place();
        let found = lock(&self.0.get(shard)?.0).kept.get(at).copied();
        found.map(|found| Stack::new(found.as_slice()))
    }

    pub(super) fn rest(&self) -> StackLocks<'_> {
        StackLocks {
            _shards: std::array::from_fn(|at| lock(&self.0[at].0)),
        }
    }

    /// Frees the tables with all stacks.
    #[cfg(target_os = "linux")]
    pub(super) fn give_back(&self) {
        for shard in &self.0 {
            let gone = mem::take(&mut *lock(&shard.0));
            // The old table is dropped outside the lock.
            drop(gone);
        }
    }

    pub(super) fn clear(&mut self) {
        drop(mem::take(&mut self.0));
    }
}

/// Makes space for more stacks without allocating under the lock. Returns true on success.
fn more_room(shard: &Ranked<Shard>, len: usize) -> bool {
    // The table must not use the program's pool.
    let _inside = millpond_os::reentrancy::inside();
    let mut larger = Vec::new();
    if larger.try_reserve_exact((len * 2).max(16)).is_err() {
        return false;
    }
    let mut this = lock(shard);
    if larger.capacity() > this.kept.len() {
        larger.extend_from_slice(&this.kept);
        mem::swap(&mut this.kept, &mut larger);
    }
    // The lock is released before the old table is dropped.
    drop(this);
    true
}

#[cfg(target_os = "linux")]
fn walk(into: &mut Addresses) {
    // The walk may allocate. These allocations are not recorded.
    let _quiet = millpond_os::reentrancy::quiet();
    millpond_os::walk(FRAMES, |address| {
        if let Some(place) = into.all.get_mut(into.len) {
            *place = address;
            into.len += 1;
        }
    });
}

#[cfg(not(target_os = "linux"))]
fn walk(_: &mut Addresses) {}
