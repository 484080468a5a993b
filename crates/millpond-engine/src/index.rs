//! Finds the smallest free block that is large enough, lowest address first among equals.
//!
//! Sizes fall into bins, 256 to each power of two, and a two-level bitmap names the bins that hold
//! something: the first bin at or above a size is two bit scans away. Inside a bin, entries are kept in
//! order of size and address, in chunks of at most [`CHUNK`], so that the answer is exact best fit and
//! not merely good fit: what an ordered tree gives, without its pointer chasing. A bin with *n* entries
//! costs a binary search over its chunks and one over a chunk; inserting moves at most one chunk's worth.
//!
//! The bins are those of two-level segregated fit (Masmano et al., 2004); keeping order within a bin is
//! what that design leaves out.

use crate::space::BlockId;

/// Entries in one chunk at most.
const CHUNK: usize = 64;
/// With ten thousand free blocks a bin still holds about twenty, a few lines of cache in one chunk.
const SUB_BITS: u32 = 8;
/// Bins of one power of two, made when the first of them is used.
const ROW: usize = 1 << SUB_BITS;
const BINS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;
const WORDS: usize = BINS.div_ceil(64);
const SUMMARY: usize = WORDS.div_ceil(64);

/// A free block as the index knows it; ordered by size, then address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Bytes of the block.
    pub bytes: u64,
    /// Its first address.
    pub address: u64,
    /// Its name.
    pub id: BlockId,
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.bytes, self.address)
    }
}

#[derive(Clone, Debug, Default)]
struct Bin {
    /// The first chunk, inline: almost every bin has no other.
    head: Vec<Entry>,
    /// Further chunks, none empty; every entry is above those of the chunk before.
    tail: Vec<Vec<Entry>>,
}

impl Bin {
    /// The chunk that holds, or would hold, a key.
    fn chunk(&self, key: (u64, u64)) -> usize {
        self.tail.partition_point(|chunk| chunk[0].key() <= key)
    }

    fn get(&self, chunk: usize) -> &Vec<Entry> {
        if chunk == 0 {
            &self.head
        } else {
            &self.tail[chunk - 1]
        }
    }

    fn get_mut(&mut self, chunk: usize) -> &mut Vec<Entry> {
        if chunk == 0 {
            &mut self.head
        } else {
            &mut self.tail[chunk - 1]
        }
    }

    fn insert(&mut self, entry: Entry) {
        let index = if self.tail.is_empty() {
            0
        } else {
            self.chunk(entry.key())
        };
        let chunk = self.get_mut(index);
        let at = chunk.partition_point(|e| e.key() < entry.key());
        chunk.insert(at, entry);
        if chunk.len() > CHUNK {
            let upper = chunk.split_off(CHUNK / 2);
            self.tail.insert(index, upper);
        }
    }

    fn remove(&mut self, key: (u64, u64)) -> bool {
        let index = if self.tail.is_empty() { 0 } else { self.chunk(key) };
        let chunk = self.get_mut(index);
        let at = chunk.partition_point(|e| e.key() < key);
        if chunk.get(at).is_none_or(|e| e.key() != key) {
            return false;
        }
        chunk.remove(at);
        self.drop_if_empty(index);
        true
    }

    /// Takes out the first entry at or above a key.
    #[inline]
    fn take_at_or_above(&mut self, key: (u64, u64)) -> Option<Entry> {
        let mut index = if self.tail.is_empty() { 0 } else { self.chunk(key) };
        let mut at = self.get(index).partition_point(|e| e.key() < key);
        if at == self.get(index).len() {
            (index, at) = (index + 1, 0);
            if index > self.tail.len() {
                return None;
            }
        }
        let entry = self.get_mut(index).remove(at);
        self.drop_if_empty(index);
        Some(entry)
    }

    #[inline]
    fn drop_if_empty(&mut self, index: usize) {
        if !self.tail.is_empty() && self.get(index).is_empty() {
            if index == 0 {
                self.head = self.tail.remove(0);
            } else {
                self.tail.remove(index - 1);
            }
        }
    }

    /// The first entry at or above a key.
    fn at_or_above(&self, key: (u64, u64)) -> Option<&Entry> {
        let index = if self.tail.is_empty() { 0 } else { self.chunk(key) };
        let chunk = self.get(index);
        let at = chunk.partition_point(|e| e.key() < key);
        chunk
            .get(at)
            .or_else(|| self.tail.get(index).and_then(|next| next.first()))
    }

    /// The last entry below a key.
    fn below(&self, key: (u64, u64)) -> Option<&Entry> {
        let index = self.chunk(key);
        let chunk = self.get(index);
        match chunk.partition_point(|e| e.key() < key).checked_sub(1) {
            Some(at) => chunk.get(at),
            None => index.checked_sub(1).and_then(|before| self.get(before).last()),
        }
    }

    fn last(&self) -> Option<&Entry> {
        self.tail.last().unwrap_or(&self.head).last()
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.head.iter().chain(self.tail.iter().flatten())
    }
}

/// An ordered set of free blocks; see the module.
#[derive(Clone, Debug)]
pub struct SizeIndex {
    /// By power of two; an empty row was never used.
    rows: Vec<Vec<Bin>>,
    words: [u64; WORDS],
    summary: [u64; SUMMARY],
    len: usize,
}

impl Default for SizeIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl SizeIndex {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rows: Vec::new(),
            words: [0; WORDS],
            summary: [0; SUMMARY],
            len: 0,
        }
    }

    /// Blocks in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a free block.
    #[inline]
    pub fn insert(&mut self, entry: Entry) {
        let bin = bin_of(entry.bytes);
        let row = bin / ROW;
        if self.rows.get(row).is_none_or(Vec::is_empty) {
            self.make_row(row);
        }
        self.rows[row][bin % ROW].insert(entry);
        self.mark(bin);
        self.len += 1;
    }

    /// Takes a block out; answers whether it was there.
    #[inline]
    pub fn remove(&mut self, bytes: u64, address: u64) -> bool {
        let bin = bin_of(bytes);
        let row = self.rows.get_mut(bin / ROW);
        let found = row
            .and_then(|row| row.get_mut(bin % ROW))
            .is_some_and(|b| b.remove((bytes, address)));
        debug_assert!(found, "no free block of {bytes} bytes at {address:#x}");
        if found {
            self.len -= 1;
            self.clear_if_empty(bin);
        }
        found
    }

    /// The smallest block of at least `bytes`, lowest address first.
    #[inline]
    #[must_use]
    pub fn best_fit(&self, bytes: u64) -> Option<Entry> {
        self.at_or_above((bytes, 0))
    }

    /// Takes out what [`best_fit`](Self::best_fit) finds.
    #[inline]
    pub fn take_best_fit(&mut self, bytes: u64) -> Option<Entry> {
        let own = bin_of(bytes);
        let here = self
            .rows
            .get_mut(own / ROW)
            .and_then(|row| row.get_mut(own % ROW));
        let (bin, entry) = match here.and_then(|b| b.take_at_or_above((bytes, 0))) {
            Some(entry) => (own, entry),
            None => {
                let bin = self.next_bin(own + 1)?;
                (bin, self.rows[bin / ROW][bin % ROW].take_at_or_above((bytes, 0))?)
            }
        };
        self.len -= 1;
        self.clear_if_empty(bin);
        Some(entry)
    }

    /// The next block in order of size and address.
    #[must_use]
    pub fn after(&self, entry: &Entry) -> Option<Entry> {
        self.at_or_above((entry.bytes, entry.address.checked_add(1)?))
    }

    /// The block before in order of size and address.
    #[must_use]
    pub fn before(&self, entry: &Entry) -> Option<Entry> {
        let bin = bin_of(entry.bytes);
        let here = self.bin(bin).and_then(|b| b.below(entry.key()));
        if let Some(found) = here {
            return Some(*found);
        }
        let bin = self.last_bin_below(bin)?;
        self.bin(bin)?.last().copied()
    }

    /// The largest block.
    #[must_use]
    pub fn largest(&self) -> Option<Entry> {
        let bin = self.last_bin_below(BINS)?;
        self.bin(bin)?.last().copied()
    }

    /// Every block, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let used = std::iter::successors(self.next_bin(0), |bin| self.next_bin(bin + 1));
        used.filter_map(|bin| self.bin(bin)).flat_map(Bin::iter).copied()
    }

    /// Asserts order, bitmaps and count.
    ///
    /// # Panics
    /// When one of them is wrong.
    pub fn check(&self) {
        let mut last = None;
        let mut count = 0;
        for entry in self.iter() {
            assert!(last < Some(entry.key()), "order broken at {entry:?}");
            last = Some(entry.key());
            count += 1;
        }
        assert_eq!(count, self.len, "count of entries");
        for bin in 0..BINS {
            let Some(b) = self.bin(bin) else { continue };
            let marked = self.words[bin / 64] >> (bin % 64) & 1 == 1;
            assert_eq!(marked, b.iter().next().is_some(), "bitmap of bin {bin}");
            assert!(
                b.tail.iter().all(|chunk| !chunk.is_empty()),
                "empty chunk in bin {bin}"
            );
        }
        for (word, bits) in self.words.iter().enumerate() {
            assert_eq!(
                self.summary[word / 64] >> (word % 64) & 1 == 1,
                *bits != 0,
                "summary of word {word}"
            );
        }
    }

    #[inline]
    fn at_or_above(&self, key: (u64, u64)) -> Option<Entry> {
        let bin = bin_of(key.0);
        if let Some(entry) = self.bin(bin).and_then(|b| b.at_or_above(key)) {
            return Some(*entry);
        }
        let bin = self.next_bin(bin + 1)?;
        self.bin(bin)?.head.first().copied()
    }

    #[inline]
    fn bin(&self, bin: usize) -> Option<&Bin> {
        self.rows.get(bin / ROW)?.get(bin % ROW)
    }

    #[cold]
    fn make_row(&mut self, row: usize) {
        if self.rows.len() <= row {
            self.rows.resize_with(row + 1, Vec::new);
        }
        self.rows[row].resize_with(ROW, Bin::default);
    }

    #[inline]
    fn mark(&mut self, bin: usize) {
        let word = bin / 64;
        self.words[word] |= 1 << (bin % 64);
        self.summary[word / 64] |= 1 << (word % 64);
    }

    /// The first bin at or above this one that holds something.
    #[inline]
    fn next_bin(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let here = self.words.get(word)? & (u64::MAX << (bin % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let next = word + 1;
        let mut mask = u64::MAX << (next % 64);
        for at in next / 64..SUMMARY {
            let above = self.summary[at] & mask;
            if above != 0 {
                let word = at * 64 + above.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// The last bin below this one that holds something.
    fn last_bin_below(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let here = self.words.get(word).map_or(0, |w| w & ((1 << (bin % 64)) - 1));
        if let Some(bit) = here.checked_ilog2() {
            return Some(word * 64 + bit as usize);
        }
        let mut mask = (1 << (word % 64)) - 1;
        for at in (0..=(word / 64).min(SUMMARY - 1)).rev() {
            if let Some(bit) = (self.summary[at] & mask).checked_ilog2() {
                let word = at * 64 + bit as usize;
                return Some(word * 64 + self.words[word].checked_ilog2()? as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    #[inline]
    fn clear_if_empty(&mut self, bin: usize) {
        if self.bin(bin).is_some_and(|b| b.head.is_empty()) {
            let word = bin / 64;
            self.words[word] &= !(1 << (bin % 64));
            if self.words[word] == 0 {
                self.summary[word / 64] &= !(1 << (word % 64));
            }
        }
    }
}

/// The bin of a size: its power of two and the next [`SUB_BITS`] bits. Grows with the size.
#[inline]
fn bin_of(bytes: u64) -> usize {
    let log = 63 - (bytes | 1).leading_zeros();
    if log < SUB_BITS {
        return bytes as usize;
    }
    let sub = (bytes >> (log - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
    (((log - SUB_BITS + 1) as usize) << SUB_BITS) | sub
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn bins_grow_with_the_size() {
        let mut last = 0;
        for bytes in (0..1u64 << 16)
            .chain((16..64).flat_map(|log| [(1u64 << log) - 1, 1 << log, (1 << log) + (1 << (log - 1))]))
        {
            let bin = bin_of(bytes);
            assert!(bin < BINS);
            if bytes < 1 << 16 {
                assert!(bin >= last, "{bytes}");
                last = bin;
            }
        }
        assert!(bin_of(u64::MAX) < BINS);
    }

    proptest! {
        /// Against an ordered tree, the plainest thing with the same meaning.
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
