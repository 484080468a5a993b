//! A hash table that never allocates or frees under its lock.
//!
//! The observed pool may be the program's allocator. A table that grew under its lock would then call that pool and
//! take its locks after the ledger's lock, while other threads take them in the opposite order. So a full table is
//! replaced: a larger one is allocated without a lock and filled under the lock.

use super::lock;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use millpond_os::ranked::{Rank, Ranked};
use std::hash::BuildHasher;

/// A value on its own cache lines. The alignment is two lines because processors fetch them in pairs.
#[repr(align(128))]
pub(super) struct CacheLine<T>(pub(super) T);

impl<T> CacheLine<Ranked<T>> {
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self(Ranked::new(rank, value))
    }
}

/// Hashes an address. All bits influence the result, also the upper ones.
#[inline]
pub(super) fn hash(address: usize) -> u64 {
    FixedState::with_seed(0).hash_one(address)
}

/// Returns true if one more entry fits without an allocation.
pub(super) fn has_room<T>(table: &HashTable<T>) -> bool {
    table.len() < table.capacity()
}

/// Makes an empty table with spare space for the given number of entries. Returns `None` if memory is short.
pub(super) fn larger<T>(len: usize, hash: impl Fn(&T) -> u64) -> Option<HashTable<T>> {
    let mut table = HashTable::new();
    table.try_reserve((len * 2).max(16), hash).ok()?;
    Some(table)
}

/// Moves all entries to the larger table and swaps the tables. Does nothing if the entries no longer fit with room to spare.
pub(super) fn refill<T>(table: &mut HashTable<T>, larger: &mut HashTable<T>, hash: impl Fn(&T) -> u64) {
    if larger.capacity() <= table.len() {
        return;
    }
    for entry in table.drain() {
        larger.insert_unique(hash(&entry), entry, &hash);
    }
    std::mem::swap(table, larger);
}

/// Makes space for one more entry in a table behind a lock. Returns true on success.
pub(super) fn grow<S, T>(
    mutex: &Ranked<S>,
    table: impl Fn(&mut S) -> &mut HashTable<T>,
    hash: impl Fn(&T) -> u64,
) -> bool {
    // The table must not use the program's pool, because that pool's figures describe the program and a table may grow
    // at any time.
    let _inside = millpond_os::reentrancy::inside();
    let len = table(&mut lock(mutex)).len();
    let Some(mut made) = larger(len, &hash) else {
        return false;
    };
    refill(table(&mut lock(mutex)), &mut made, hash);
    // The old table is dropped here, without the lock.
    true
}
