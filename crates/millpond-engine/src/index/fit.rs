//! Finds a free block that fits closely, in constant time for any number of blocks.
//!
//! Rows and bins are those of [`SizeIndex`](super::SizeIndex), but a bin is an unordered list, and its links are stored
//! in a table for all blocks ([`Links`]). Insertion and removal are a few writes even if thousands of blocks share one
//! size. A bin costs four bytes, so the whole index stays in the caches. Order matters only when a block is taken. The
//! search looks at the first [`LOOK`] blocks of a bin for the smallest that fits, with the lowest address among equals.
//! This is the exact best fit if the bin holds no more blocks. In a fuller bin, the search looks at the newest blocks.
//! Its result exceeds the smallest fitting block of the bin by less than the width of the bin: 1 part in 256 of the
//! size in a new row, and 1 part in 2,048 in the widest row. If all of the newest blocks in the bin of the requested
//! size are too small, the search misses the older blocks of this bin and continues with the next bin. A
//! [`Search::Thorough`] finds these blocks.
//!
//! Two-level segregated fit (Masmano et al., 2004) takes the first block of the first bin in which every block is large
//! enough. This index also searches the bin of the size itself, and looks at several blocks. For this reason, sizes
//! that programs request repeatedly fit exactly.

use super::bits::Bits;
use super::row_of;
use crate::space::{BlockId, Space};

/// Number of blocks of a bin that a quick search looks at.
const LOOK: usize = 8;
/// Number of bins of a new row, as a power of two.
const FIRST_BITS: u32 = 8;
/// Number of bins of the widest row, as a power of two. [`Bits`] holds this many. A row gets four times as many bins
/// when it has a block for each bin.
const MOST_BITS: u32 = 11;

/// How many blocks a search may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// Looks at a bounded number of blocks. It can miss a block that barely fits.
    Quick,
    /// Looks at whole bins and finds the best fit. It is the last resort.
    Thorough,
}

/// The neighbours of a block in the list of its bin.
#[derive(Clone, Copy, Debug)]
struct Link {
    prev: BlockId,
    next: BlockId,
}

impl Link {
    const NONE: Self = Self {
        prev: BlockId::NONE,
        next: BlockId::NONE,
    };
}

/// The links of all blocks of one [`Space`]. Every index over the space shares them, because a block is in at most one
/// index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    all: Vec<Link>,
    /// Number of times that a row got more bins. The search order changes each time.
    widened: u32,
}

impl Links {
    #[inline]
    fn at(&mut self, id: BlockId) -> &mut Link {
        &mut self.all[id.index()]
    }

    #[inline]
    fn next(&self, id: BlockId) -> Option<BlockId> {
        self.all[id.index()].next.some()
    }

    /// Returns the blocks of a bin, beginning with `first`.
    fn from(&self, first: Option<BlockId>) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(first, |id| self.next(*id))
    }

    /// Returns a number that changes whenever the search order changes.
    #[inline]
    pub(crate) fn order(&self) -> u32 {
        self.widened
    }

    /// Reserves space for a total number of blocks.
    pub(crate) fn expect(&mut self, blocks: usize) {
        let blocks = blocks.min(BlockId::NONE.index()).max(self.all.len());
        if self.all.try_reserve(blocks - self.all.len()).is_ok() {
            self.all.resize(blocks, Link::NONE);
        }
    }

    /// Makes space for the links of a block.
    #[inline]
    fn reach(&mut self, id: BlockId) {
        if id.index() >= self.all.len() {
            self.all.resize((id.index() + 1).next_power_of_two(), Link::NONE);
        }
    }
}

/// The free blocks of one list. The module describes the structure.
#[derive(Clone, Debug, Default)]
pub(crate) struct FitIndex {
    /// The rows by power of two, up to the largest one used.
    rows: Vec<Row>,
    /// Bitmap of the rows that are not empty.
    used: u64,
}

impl FitIndex {
    /// Adds a block that is in no index.
    #[inline]
    pub(crate) fn insert(&mut self, links: &mut Links, space: &Space, id: BlockId) {
        let bytes = space.bytes(id);
        let row = row_of(bytes);
        if row >= self.rows.len() {
            self.make_rows(row);
        }
        links.reach(id);
        self.rows[row].insert(links, space, id, bytes);
        self.used |= 1 << row;
    }

    /// Removes a block of this index that has this size.
    #[inline]
    pub(crate) fn remove(&mut self, links: &mut Links, id: BlockId, bytes: u64) {
        let row = row_of(bytes);
        self.rows[row].remove(links, id, bytes);
        if self.rows[row].len == 0 {
            self.used &= !(1 << row);
        }
    }

    /// Removes and returns a block of at least `bytes`.
    #[inline]
    pub(crate) fn take(
        &mut self,
        links: &mut Links,
        space: &Space,
        bytes: u64,
        search: Search,
    ) -> Option<BlockId> {
        let id = self.find(links, space, bytes, search)?;
        self.remove(links, id, space.bytes(id));
        Some(id)
    }

    /// Returns every block. Bins of larger sizes come first.
    pub(crate) fn descending<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = BlockId> + 'a {
        self.rows.iter().rev().flat_map(|row| row.descending(links))
    }

    /// Returns the blocks from the power of two of `bytes` on. Bins of smaller sizes come first.
    pub(crate) fn ascending<'a>(
        &'a self,
        links: &'a Links,
        bytes: u64,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let rows = self.rows.iter().skip(row_of(bytes));
        rows.flat_map(|row| row.ascending(links))
    }

    /// Returns the block that [`take`](Self::take) would take.
    #[inline]
    pub(crate) fn find(&self, links: &Links, space: &Space, bytes: u64, search: Search) -> Option<BlockId> {
        let look = match search {
            Search::Quick => LOOK,
            Search::Thorough => usize::MAX,
        };
        let own = row_of(bytes);
        let here = self
            .rows
            .get(own)
            .and_then(|row| row.find(links, space, bytes, look));
        here.or_else(|| {
            let above = self.used & (u64::MAX << own << 1);
            if above == 0 {
                return None;
            }
            let row = above.trailing_zeros() as usize;
            self.rows[row].find(links, space, 1 << row, look)
        })
    }

    #[cold]
    fn make_rows(&mut self, row: usize) {
        for log in self.rows.len()..=row {
            self.rows.push(Row::new(log as u32));
        }
    }

    /// Asserts links, bitmaps and counts.
    ///
    /// # Panics
    /// Panics if one of them is wrong.
    pub(crate) fn check(&self, links: &Links, space: &Space) {
        for (at, row) in self.rows.iter().enumerate() {
            row.check(links, space);
            assert_eq!(self.used >> at & 1 == 1, row.len > 0, "bit of row {at}");
        }
    }
}

/// The blocks of one power of two.
#[derive(Clone, Debug)]
struct Row {
    /// The power of two. Sizes range from `1 << log` (0 in the first row) to twice that.
    log: u32,
    /// There are `1 << bits` bins, each for `1 << (log - bits)` sizes. There are no bins before the first block.
    bits: u32,
    /// The first block of each bin.
    heads: Vec<BlockId>,
    /// The bins that are not empty.
    used: Bits,
    len: usize,
}

impl Row {
    fn new(log: u32) -> Self {
        Self {
            log,
            bits: FIRST_BITS.min(log),
            heads: Vec::new(),
            used: Bits::default(),
            len: 0,
        }
    }

    #[inline]
    fn bin_of(&self, bytes: u64) -> usize {
        (bytes >> (self.log - self.bits)) as usize & ((1 << self.bits) - 1)
    }

    #[inline]
    fn insert(&mut self, links: &mut Links, space: &Space, id: BlockId, bytes: u64) {
        if self.len >= self.heads.len() {
            self.widen(links, space);
        }
        self.link(links, id, bytes);
        self.len += 1;
    }

    #[inline]
    fn link(&mut self, links: &mut Links, id: BlockId, bytes: u64) {
        let bin = self.bin_of(bytes);
        let next = std::mem::replace(&mut self.heads[bin], id);
        let prev = BlockId::NONE;
        *links.at(id) = Link { prev, next };
        #[cfg(test)]
        tests::visit();
        match next.some() {
            Some(next) => links.at(next).prev = id,
            None => self.used.insert(bin),
        }
    }

    #[inline]
    fn remove(&mut self, links: &mut Links, id: BlockId, bytes: u64) {
        #[cfg(test)]
        tests::visit();
        let Link { prev, next } = *links.at(id);
        if let Some(next) = next.some() {
            links.at(next).prev = prev;
        }
        match prev.some() {
            Some(prev) => links.at(prev).next = next,
            None => {
                let bin = self.bin_of(bytes);
                debug_assert_eq!(self.heads[bin], id, "the block is in no bin, or in another");
                self.heads[bin] = next;
                if next == BlockId::NONE {
                    self.used.remove(bin);
                }
            }
        }
        self.len -= 1;
    }

    /// Returns a block of at least `bytes` from the bin of that size or from the next bin that is not empty.
    #[inline]
    fn find(&self, links: &Links, space: &Space, bytes: u64, look: usize) -> Option<BlockId> {
        if self.len == 0 {
            return None;
        }
        let own = self.bin_of(bytes);
        self.smallest(links, space, own, bytes, look)
            .or_else(|| self.smallest(links, space, self.used.at_or_above(own + 1)?, bytes, look))
    }

    /// Returns the smallest block of at least `bytes` among the first `look` blocks of a bin, with the lowest address
    /// among equals.
    #[inline]
    fn smallest(&self, links: &Links, space: &Space, bin: usize, bytes: u64, look: usize) -> Option<BlockId> {
        let mut best = (u64::MAX, u64::MAX, BlockId::NONE);
        let mut at = self.heads[bin];
        for _ in 0..look {
            let Some(id) = at.some() else { break };
            #[cfg(test)]
            tests::visit();
            let candidate = (space.bytes(id), space.address(id), id);
            if candidate.0 >= bytes && (candidate.0, candidate.1) < (best.0, best.1) {
                best = candidate;
            }
            at = links.all[id.index()].next;
        }
        best.2.some()
    }

    fn descending<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = BlockId> + 'a {
        let last = self.used.below(self.heads.len());
        let bins = std::iter::successors(last, |bin| self.used.below(*bin));
        bins.flat_map(|bin| links.from(self.heads[bin].some()))
    }

    fn ascending<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = BlockId> + 'a {
        let first = self.used.at_or_above(0);
        let bins = std::iter::successors(first, |bin| self.used.at_or_above(bin + 1));
        bins.flat_map(|bin| links.from(self.heads[bin].some()))
    }

    /// Creates the first bins, or four times as many as there are, while this still separates sizes.
    #[cold]
    fn widen(&mut self, links: &mut Links, space: &Space) {
        let most = MOST_BITS.min(self.log);
        if self.heads.is_empty() {
            self.heads = vec![BlockId::NONE; 1 << self.bits];
        } else if self.bits < most {
            links.widened = links.widened.wrapping_add(1);
            let held: Vec<BlockId> = self.descending(links).collect();
            self.bits = (self.bits + 2).min(most);
            self.heads = vec![BlockId::NONE; 1 << self.bits];
            self.used = Bits::default();
            for id in held {
                self.link(links, id, space.bytes(id));
            }
        }
    }

    fn check(&self, links: &Links, space: &Space) {
        let mut held = 0;
        for (bin, head) in self.heads.iter().enumerate() {
            assert_eq!(self.used.contains(bin), head.some().is_some(), "bit of bin {bin}");
            let mut prev = BlockId::NONE;
            for id in links.from(head.some()) {
                assert_eq!(links.all[id.index()].prev, prev, "links disagree at {id:?}");
                let bytes = space.bytes(id);
                assert_eq!(row_of(bytes), self.log as usize, "{id:?} in a foreign row");
                assert_eq!(self.bin_of(bytes), bin, "{id:?} in a foreign bin");
                prev = id;
                held += 1;
            }
        }
        assert_eq!(held, self.len, "blocks of row {}", self.log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::State;
    use proptest::prelude::*;
    use std::cell::Cell;

    thread_local! {
        static VISITS: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts a block that is looked at, linked or unlinked on this thread.
    pub(super) fn visit() {
        VISITS.set(VISITS.get() + 1);
    }

    /// Blocks without neighbours, so that their sizes can be arbitrary.
    #[derive(Default)]
    struct Blocks {
        space: Space,
        links: Links,
        index: FitIndex,
        /// The blocks in the index, unordered.
        held: Vec<BlockId>,
    }

    impl Blocks {
        fn add(&mut self, bytes: u64) {
            let address = (self.space.len() as u64) << 50;
            let id = self.space.add_segment(address, bytes, 0, 0, State::Free);
            self.index.insert(&mut self.links, &self.space, id);
            self.held.push(id);
        }

        fn take(&mut self, bytes: u64, search: Search) -> Option<BlockId> {
            self.index.take(&mut self.links, &self.space, bytes, search)
        }

        fn best(&self, bytes: u64) -> Option<u64> {
            let sizes = self.held.iter().map(|id| self.space.bytes(*id));
            sizes.filter(|size| *size >= bytes).min()
        }

        fn forget(&mut self, id: BlockId) -> u64 {
            self.held.retain(|held| *held != id);
            self.space.bytes(id)
        }
    }

    proptest! {
        /// Compares with a search of all blocks. The result is never too small, it is close to the best fit, and a
        /// thorough search misses nothing.
        #[test]
        fn a_quick_search_fits_closely_and_a_thorough_one_exactly(ops in proptest::collection::vec((0u8..8, 1u64..3000), 1..1500), scale in 0u32..40) {
            let mut blocks = Blocks::default();
            for (op, size) in ops {
                let bytes = size << scale;
                match op {
                    0..4 => blocks.add(bytes),
                    4 if !blocks.held.is_empty() => {
                        let id = blocks.held.swap_remove(size as usize % blocks.held.len());
                        blocks.index.remove(&mut blocks.links, id, blocks.space.bytes(id));
                    }
                    5 => {
                        let best = blocks.best(bytes);
                        let id = blocks.take(bytes, Search::Thorough);
                        prop_assert_eq!(id.map(|id| blocks.forget(id)), best);
                    }
                    _ => {
                        let best = blocks.best(bytes);
                        let peeked = blocks.index.find(&blocks.links, &blocks.space, bytes, Search::Quick);
                        let id = blocks.take(bytes, Search::Quick);
                        prop_assert_eq!(id, peeked);
                        if let Some(id) = id {
                            let (found, best) = (blocks.forget(id), best.expect("one fits"));
                            prop_assert!(found >= bytes);
                            prop_assert!(found - best <= best >> (FIRST_BITS - 1), "{} for {}", found, best);
                        } else {
                            prop_assert!(best.is_none_or(|best| best - bytes <= bytes >> FIRST_BITS), "{:?} passed over", best);
                        }
                    }
                }
            }
            blocks.index.check(&blocks.links, &blocks.space);
            let mut listed: Vec<BlockId> = blocks.index.descending(&blocks.links).collect();
            listed.sort_unstable();
            blocks.held.sort_unstable();
            prop_assert_eq!(listed, blocks.held);
        }
    }

    /// A few blocks are found in exact order, with ties resolved by address. Of many blocks in one bin, a quick search
    /// sees only the newest.
    #[test]
    fn only_a_thorough_search_visits_all_blocks_of_a_full_bin() {
        let mut blocks = Blocks::default();
        let (small, wanted) = (1 << 30, (1 << 30) + 1);
        blocks.add(wanted);
        for _ in 0..LOOK {
            blocks.add(small);
        }
        assert_eq!(blocks.take(wanted, Search::Quick), None);
        let found = blocks.take(wanted, Search::Thorough);
        assert_eq!(found, Some(blocks.held[0]));
        let lowest = blocks.take(small, Search::Quick);
        assert_eq!(lowest, Some(blocks.held[1]), "the lowest address among equals");
        blocks.index.check(&blocks.links, &blocks.space);
    }

    /// Returns the average number of blocks visited to take one block and put it back, with `count` blocks of random
    /// sizes.
    fn visits(count: u32) -> f64 {
        let mut chance = 7_u64;
        let mut size = || {
            chance = chance
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            256 << (chance >> 60) | (chance >> 40 & 0xff) << 8
        };
        let mut blocks = Blocks::default();
        for index in 0..u64::from(count) {
            let id = blocks.space.add_segment(index << 40, size(), 0, 0, State::Free);
            blocks.index.insert(&mut blocks.links, &blocks.space, id);
        }
        VISITS.set(0);
        let turns = 10_000;
        for _ in 0..turns {
            if let Some(id) = blocks.take(size(), Search::Quick) {
                blocks.index.insert(&mut blocks.links, &blocks.space, id);
            }
        }
        VISITS.get() as f64 / f64::from(turns)
    }

    /// Counts visits instead of measuring time.
    #[test]
    fn visits_grow_no_faster_than_the_logarithm() {
        let counts = [1_000, 10_000, 100_000, 1_000_000];
        let visits = counts.map(visits);
        println!("visits with {counts:?} blocks: {visits:.1?}");
        // Visits increase until the bins are full, and then stay constant.
        assert!(visits[3] <= visits[0] * 2.0, "{visits:?}");
        assert!(visits[3] <= visits[2] * 1.05, "{visits:?}");
        assert!(visits.iter().all(|v| *v <= (2 * LOOK + 2) as f64), "{visits:?}");
    }
}
