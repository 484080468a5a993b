//! The free blocks of one power of two, in bins of equal width.

use super::Entry;
use super::bin::Bin;
use super::bits::Bits;

/// Number of bins of a new row, as a power of two.
const FIRST_BITS: u32 = 5;
/// Number of bins of the widest row, as a power of two. [`Bits`] holds this many.
const MOST_BITS: u32 = 11;
/// A row gets four times as many bins when it holds this many entries for each bin.
const CROWDED: usize = 2;

/// A row. The module describes it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The power of two. Sizes range from `1 << log` (0 in the first row) to twice that.
    log: u32,
    /// There are `1 << bits` bins, each for `1 << (log - bits)` sizes. There are no bins before the first entry.
    bits: u32,
    bins: Vec<Bin>,
    /// The bins that are not empty.
    used: Bits,
    len: usize,
}

impl Row {
    pub(super) fn new(log: u32) -> Self {
        Self {
            log,
            bits: FIRST_BITS.min(log),
            bins: Vec::new(),
            used: Bits::default(),
            len: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn bin_of(&self, bytes: u64) -> usize {
        (bytes >> (self.log - self.bits)) as usize & ((1 << self.bits) - 1)
    }

    #[inline]
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.len >= self.bins.len() * CROWDED {
            self.widen();
        }
        let bin = self.bin_of(entry.bytes);
        self.bins[bin].insert(entry);
        self.used.insert(bin);
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, key: (u64, u64)) -> bool {
        let bin = self.bin_of(key.0);
        let found = self.bins.get_mut(bin).is_some_and(|b| b.remove(key));
        if found {
            self.took_from(bin);
        }
        found
    }

    /// Removes and returns the first entry at or above a key. A key below the row selects the first entry of the row.
    #[inline]
    pub(super) fn take_at_or_above(&mut self, key: (u64, u64)) -> Option<Entry> {
        if self.len == 0 {
            return None;
        }
        let own = self.bin_of(key.0);
        if let Some(entry) = self.bins[own].take_at_or_above(key) {
            self.took_from(own);
            return Some(entry);
        }
        let bin = self.used.at_or_above(own + 1)?;
        let entry = self.bins[bin].take_at_or_above((0, 0))?;
        self.took_from(bin);
        Some(entry)
    }

    /// Returns the first entry at or above a key. A key below the row selects the first entry of the row.
    #[inline]
    pub(super) fn at_or_above(&self, key: (u64, u64)) -> Option<Entry> {
        if self.len == 0 {
            return None;
        }
        let own = self.bin_of(key.0);
        self.bins[own]
            .at_or_above(key)
            .or_else(|| self.bins[self.used.at_or_above(own + 1)?].at_or_above((0, 0)))
    }

    /// Returns the last entry below a key of this row.
    pub(super) fn below(&self, key: (u64, u64)) -> Option<Entry> {
        let own = self.bin_of(key.0);
        self.bins
            .get(own)?
            .below(key)
            .or_else(|| self.bins[self.used.below(own)?].last())
    }

    pub(super) fn last(&self) -> Option<Entry> {
        self.bins.get(self.used.below(self.bins.len())?)?.last()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let used = std::iter::successors(self.used.at_or_above(0), |bin| self.used.at_or_above(bin + 1));
        used.flat_map(|bin| self.bins[bin].iter())
    }

    pub(super) fn check(&self) {
        assert_eq!(self.iter().count(), self.len, "entries of row {}", self.log);
        for (at, bin) in self.bins.iter().enumerate() {
            bin.check();
            assert_eq!(self.used.contains(at), !bin.is_empty(), "bit of bin {at}");
            assert!(
                bin.iter().all(|e| self.bin_of(e.bytes) == at),
                "entry in a foreign bin"
            );
        }
    }

    /// Creates the first bins, or four times as many as there are, while this still separates sizes.
    #[cold]
    fn widen(&mut self) {
        let most = MOST_BITS.min(self.log);
        if self.bins.is_empty() {
            self.bins.resize_with(1 << self.bits, Bin::default);
            return;
        }
        if self.bits == most {
            return;
        }
        self.bits = (self.bits + 2).min(most);
        let mut bins = Vec::new();
        bins.resize_with(1 << self.bits, Bin::default);
        let old = std::mem::replace(&mut self.bins, bins);
        self.used = Bits::default();
        for entry in old.iter().flat_map(Bin::iter) {
            let bin = self.bin_of(entry.bytes);
            self.bins[bin].insert(entry);
            self.used.insert(bin);
        }
    }

    #[inline]
    fn took_from(&mut self, bin: usize) {
        self.len -= 1;
        if self.bins[bin].is_empty() {
            self.used.remove(bin);
        }
    }
}
