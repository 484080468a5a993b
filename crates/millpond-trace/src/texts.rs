//! Finds texts kept elsewhere by what they say.

use crate::hash::Seeded;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Numbers of texts, found by hash.
///
/// The hash is kept beside each number: a table that grows would else read all texts again, and those of another
/// hash need not be compared.
#[derive(Default)]
pub(crate) struct Texts {
    table: HashTable<Entry>,
    hasher: Seeded,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    number: u32,
}

impl Texts {
    /// The number of `text`, or the hash to add it under; `get` is the text of a number.
    #[inline]
    pub(crate) fn find<'a>(&self, text: &[u8], get: impl Fn(u32) -> &'a [u8]) -> Result<u32, u32> {
        let hash = self.hasher.hash_one(text) as u32;
        let same = |entry: &Entry| entry.hash == hash && get(entry.number) == text;
        match self.table.find(spread(hash), same) {
            Some(entry) => Ok(entry.number),
            None => Err(hash),
        }
    }

    /// Makes room for so many numbers more.
    pub(crate) fn reserve(&mut self, numbers: usize) {
        self.table.reserve(numbers, |entry| spread(entry.hash));
    }

    /// Adds what [`Self::find`] did not find.
    #[inline]
    pub(crate) fn add(&mut self, hash: u32, number: u32) {
        let entry = Entry { hash, number };
        self.table
            .insert_unique(spread(hash), entry, |entry| spread(entry.hash));
    }
}

/// The table tells entries apart by the highest bits and finds their places by the lowest.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) | u64::from(hash) << 32
}
