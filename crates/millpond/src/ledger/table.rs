//! A hash table under whose lock nothing is allocated or freed.
//!
//! Where the pool that is accounted for is the program's allocator, a table that grew under its lock would ask that
//! pool, and so take the pool's locks after the ledger's, while others take them in the other order. So a table that is
//! full is left; a larger one is made without a lock, and filled under the lock again.

use super::lock;
use crate::ranked::{Rank, Ranked};
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Something on cache lines of its own, two of them as they are fetched in pairs.
#[repr(align(128))]
pub(super) struct Line<T>(pub(super) T);

impl<T> Line<Ranked<T>> {
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self(Ranked::new(rank, value))
    }
}

/// A good hash of an address: all of its bits count, the upper ones too.
#[inline]
pub(super) fn hash(address: usize) -> u64 {
    FixedState::with_seed(0).hash_one(address)
}

/// Whether one more fits without an allocation.
pub(super) fn has_room<T>(table: &HashTable<T>) -> bool {
    table.len() < table.capacity()
}

/// An empty table with room to spare for so many; none if there is no memory for it.
pub(super) fn larger<T>(len: usize, hash: impl Fn(&T) -> u64) -> Option<HashTable<T>> {
    let mut table = HashTable::new();
    table.try_reserve((len * 2).max(16), hash).ok()?;
    Some(table)
}

/// Moves everything to the larger table and leaves the smaller, empty, in its place; not if it is not larger by now.
pub(super) fn refill<T>(table: &mut HashTable<T>, larger: &mut HashTable<T>, hash: impl Fn(&T) -> u64) {
    if larger.capacity() <= table.len() {
        return;
    }
    for entry in table.drain() {
        larger.insert_unique(hash(&entry), entry, &hash);
    }
    std::mem::swap(table, larger);
}

/// Makes room for one more in a table behind a lock; answers whether it could.
pub(super) fn grow<S, T>(
    mutex: &Ranked<S>,
    table: impl Fn(&mut S) -> &mut HashTable<T>,
    hash: impl Fn(&T) -> u64,
) -> bool {
    // The program's pool must not serve the table: its figures are those of the program, and a table may grow at any time.
    let _inside = crate::reentrancy::inside();
    let len = table(&mut lock(mutex)).len();
    let Some(mut made) = larger(len, &hash) else {
        return false;
    };
    refill(table(&mut lock(mutex)), &mut made, hash);
    // What is left is dropped here, without the lock.
    true
}
