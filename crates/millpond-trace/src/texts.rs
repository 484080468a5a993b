//! Finds texts that are stored elsewhere by their content.

use crate::hash::Seeded;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// The numbers of texts, found by hash.
///
/// The hash is stored with each number. Otherwise a growing table would read all texts again. Texts with different
/// hashes need not be compared.
#[derive(Default)]
pub(crate) struct Texts {
    table: HashTable<HashedNumber>,
    hasher: Seeded,
}

#[derive(Clone, Copy)]
struct HashedNumber {
    hash: u32,
    number: u32,
}

impl Texts {
    /// Returns the number of `text`, or the hash for [`add`](Self::add) if it is not found. `get` returns the text of a
    /// number.
    #[inline]
    pub(crate) fn find<'a>(&self, text: &[u8], get: impl Fn(u32) -> &'a [u8]) -> Result<u32, u32> {
        let hash = self.hasher.hash_one(text) as u32;
        let same = |entry: &HashedNumber| entry.hash == hash && get(entry.number) == text;
        match self.table.find(spread(hash), same) {
            Some(entry) => Ok(entry.number),
            None => Err(hash),
        }
    }

    /// Reserves space for `numbers` more numbers.
    pub(crate) fn reserve(&mut self, numbers: usize) {
        self.table.reserve(numbers, |entry| spread(entry.hash));
    }

    /// Adds a text that [`Self::find`] did not find.
    #[inline]
    pub(crate) fn add(&mut self, hash: u32, number: u32) {
        let entry = HashedNumber { hash, number };
        self.table
            .insert_unique(spread(hash), entry, |entry| spread(entry.hash));
    }
}

/// Repeats the hash, because the table distinguishes entries by the highest bits and places them by the lowest.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) | u64::from(hash) << 32
}
