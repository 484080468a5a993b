//! Finds the smallest free block that is large enough. Among equal sizes it finds the lowest address.
//!
//! Sizes are divided into rows, one for each power of two, and each row into bins of equal width. Bitmaps record which
//! rows and bins are not empty, so finding the first bin at or above a size takes a few bit scans. The entries of a bin
//! are sorted by size and address. The result is the exact best fit, as an ordered tree would give, without following
//! its pointers.
//!
//! A bin fills one cache line and holds two entries in place. Most bins never hold more. To keep it so, a row starts
//! with 32 bins and gets four times as many whenever it holds twice as many entries as bins, up to 2,048. More bins do
//! not separate entries of equal size. The entries that do not fit in place are stored in sorted chunks behind the bin.
//! Even then an operation costs a binary search and moves at most one chunk.
//!
//! Rows and bins follow two-level segregated fit (Masmano et al., 2004). That design has neither the order within a bin
//! nor widths that depend on the sizes seen. A variant with bins as sorted vectors on the heap, 32 to 256 in every row,
//! was tried. At ten thousand free blocks it took twice the time, mostly for the search in a vector two cache lines
//! away.

mod bin;
mod bits;
mod chunks;
mod fit;
mod row;

use crate::space::{BlockId, Space};
pub(crate) use fit::{FitIndex, Links, Search};
use row::Row;

/// A free block in the index. Entries are ordered by size, then address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Bytes of the block.
    pub bytes: u64,
    /// First address of the block.
    pub address: u64,
    /// Identifier of the block.
    pub id: BlockId,
}

impl Entry {
    /// Creates the entry of a block.
    #[inline]
    #[must_use]
    pub fn of(space: &Space, id: BlockId) -> Self {
        Self {
            bytes: space.bytes(id),
            address: space.address(id),
            id,
        }
    }

    fn key(&self) -> (u64, u64) {
        (self.bytes, self.address)
    }
}

/// An ordered set of free blocks. The module describes the structure.
#[derive(Clone, Debug, Default)]
pub struct SizeIndex {
    /// The rows by power of two, up to the largest one used.
    rows: Vec<Row>,
    /// Bitmap of the rows that are not empty.
    used: u64,
    len: usize,
}

impl SizeIndex {
    /// Creates an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the index is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a free block.
    #[inline]
    pub fn insert(&mut self, entry: Entry) {
        let row = row_of(entry.bytes);
        if row >= self.rows.len() {
            self.make_rows(row);
        }
        self.rows[row].insert(entry);
        self.used |= 1 << row;
        self.len += 1;
    }

    /// Removes a block. Returns whether it was in the index.
    #[inline]
    pub fn remove(&mut self, bytes: u64, address: u64) -> bool {
        let row = row_of(bytes);
        let found = self.rows.get_mut(row).is_some_and(|r| r.remove((bytes, address)));
        debug_assert!(found, "no free block of {bytes} bytes at {address:#x}");
        if found {
            self.took_from(row);
        }
        found
    }

    /// Returns the smallest block of at least `bytes`, with the lowest address among equals.
    #[inline]
    #[must_use]
    pub fn best_fit(&self, bytes: u64) -> Option<Entry> {
        self.at_or_above((bytes, 0))
    }

    /// Removes and returns the block that [`best_fit`](Self::best_fit) finds.
    #[inline]
    pub fn take_best_fit(&mut self, bytes: u64) -> Option<Entry> {
        let own = row_of(bytes);
        let here = self
            .rows
            .get_mut(own)
            .and_then(|row| row.take_at_or_above((bytes, 0)));
        let (row, entry) = match here {
            Some(entry) => (own, entry),
            None => {
                let row = self.next_row(own)?;
                (row, self.rows[row].take_at_or_above((0, 0))?)
            }
        };
        self.took_from(row);
        Some(entry)
    }

    /// Returns the next block in order of size and address.
    #[must_use]
    pub fn after(&self, entry: &Entry) -> Option<Entry> {
        self.at_or_above((entry.bytes, entry.address.checked_add(1)?))
    }

    /// Returns the previous block in order of size and address.
    #[must_use]
    pub fn before(&self, entry: &Entry) -> Option<Entry> {
        let own = row_of(entry.bytes);
        let here = self.rows.get(own).and_then(|row| row.below(entry.key()));
        here.or_else(|| {
            let lower = self.used & ((1 << own) - 1);
            self.rows[lower.checked_ilog2()? as usize].last()
        })
    }

    /// Returns the largest block.
    #[must_use]
    pub fn largest(&self) -> Option<Entry> {
        self.rows[self.used.checked_ilog2()? as usize].last()
    }

    /// Returns every block, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let used = self.used;
        let rows = self
            .rows
            .iter()
            .enumerate()
            .filter(move |(row, _)| used >> row & 1 == 1);
        rows.flat_map(|(_, row)| row.iter())
    }

    /// Asserts order, bitmaps and count.
    ///
    /// # Panics
    /// Panics if one of them is wrong.
    pub fn check(&self) {
        let mut last = None;
        let mut count = 0;
        for entry in self.iter() {
            assert!(last < Some(entry.key()), "order broken at {entry:?}");
            last = Some(entry.key());
            count += 1;
        }
        assert_eq!(count, self.len, "count of entries");
        for (at, row) in self.rows.iter().enumerate() {
            row.check();
            assert_eq!(self.used >> at & 1 == 1, !row.is_empty(), "bit of row {at}");
            assert!(
                row.iter().all(|e| row_of(e.bytes) == at),
                "entry in a foreign row"
            );
        }
    }

    #[inline]
    fn at_or_above(&self, key: (u64, u64)) -> Option<Entry> {
        let own = row_of(key.0);
        let here = self.rows.get(own).and_then(|row| row.at_or_above(key));
        here.or_else(|| self.rows[self.next_row(own)?].at_or_above((0, 0)))
    }

    /// Returns the first row above `row` that is not empty.
    #[inline]
    fn next_row(&self, row: usize) -> Option<usize> {
        let above = self.used & (u64::MAX << row << 1);
        (above != 0).then(|| above.trailing_zeros() as usize)
    }

    #[inline]
    fn took_from(&mut self, row: usize) {
        self.len -= 1;
        if self.rows[row].is_empty() {
            self.used &= !(1 << row);
        }
    }

    #[cold]
    fn make_rows(&mut self, row: usize) {
        for log in self.rows.len()..=row {
            self.rows.push(Row::new(log as u32));
        }
    }
}

/// Returns the row of a size.
#[inline]
fn row_of(bytes: u64) -> usize {
    63 - (bytes | 1).leading_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares the index with an ordered tree, the simplest structure with the same meaning.
        #[test]
        fn agrees_with_a_tree(ops in proptest::collection::vec((any::<bool>(), 0u64..3000, 0u64..400), 1..1500), scale in 0u32..40) {
            let mut index = SizeIndex::new();
            let mut tree = BTreeSet::new();
            for (insert, size, address) in ops {
                let bytes = size << scale;
                if insert {
                    if tree.insert((bytes, address)) {
                        index.insert(Entry { bytes, address, id: BlockId::from_index(7) });
                    }
                } else {
                    let expected = tree.range((bytes, 0)..).next().copied();
                    let found = index.take_best_fit(bytes);
                    prop_assert_eq!(found.map(|e| e.key()), expected);
                    if let Some(key) = expected {
                        let after = tree.range((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded)).next().copied();
                        prop_assert_eq!(index.after(&found.expect("found")).map(|e| e.key()), after);
                        let before = tree.range(..key).next_back().copied();
                        prop_assert_eq!(index.before(&found.expect("found")).map(|e| e.key()), before);
                        tree.remove(&key);
                    }
                }
                prop_assert_eq!(index.largest().map(|e| e.key()), tree.last().copied());
            }
            index.check();
            prop_assert!(index.iter().map(|e| e.key()).eq(tree.iter().copied()));
        }
    }
}
