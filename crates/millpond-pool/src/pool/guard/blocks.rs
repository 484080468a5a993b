//! The places of guarded blocks, live and in quarantine. This file works on addresses only and accesses no memory.

use millpond_account::ledger::{FreedBlock, Record};
use std::collections::{BTreeMap, VecDeque};

/// The addresses of the parts of a block's pages.
///
/// ```text
///   base       address            address + requested     fence          end
///    |  filled  |  the caller's bytes  |  filled, < align  |  page, closed  |
/// ```
///
/// Invariant: `base`, `fence` and `end` are multiples of the page. `fence` and `address` are multiples of the alignment.
/// `base <= address` and `address + requested <= fence < end`. For a request of 0 bytes, the caller has one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) address: usize,
    pub(super) fence: usize,
    pub(super) end: usize,
}

/// The pages that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes from the block's address to the fence.
    room: usize,
    page: usize,
    /// The bytes of all pages, and the alignment of their first address.
    pub(super) whole: usize,
    pub(super) align: usize,
}

impl Shape {
    /// Returns the shape of a request, or `None` if the sizes are too large. Alignments are those of a pool, at least 64.
    /// The pages have at least `bytes` bytes, so that the bytes that are counted as allocated are never more than the reserved
    /// ones.
    pub(super) fn of(requested: usize, align: usize, bytes: usize, page: usize) -> Option<Self> {
        let room = requested.max(1).checked_next_multiple_of(align.max(64))?;
        let align = align.max(page);
        let whole = room
            .max(bytes)
            .checked_next_multiple_of(align)?
            .checked_add(page)?;
        Some(Self {
            room,
            page,
            whole,
            align,
        })
    }

    /// Returns the place of the block in pages that begin at `base`.
    pub(super) fn at(self, base: usize) -> Place {
        let end = base + self.whole;
        let fence = end - self.page;
        Place {
            base,
            address: fence - self.room,
            fence,
            end,
        }
    }
}

impl Place {
    pub(super) fn bytes(&self) -> usize {
        self.end - self.base
    }
}

/// A block that was allocated, and possibly freed since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(super) place: Place,
    pub(super) record: Record,
    /// The record of the free.
    pub(super) freed: Option<FreedBlock>,
    /// Whether the fence is protected. Otherwise it is filled and checked.
    pub(super) fenced: bool,
    /// Whether the block's own pages are protected.
    pub(super) shut: bool,
}

impl Entry {
    /// Returns the end of the fill after the block.
    pub(super) fn filled_to(&self) -> usize {
        if self.fenced {
            self.place.fence
        } else {
            self.place.end
        }
    }
}

/// The record of guarded blocks. Invariant: `queue` has the base of each freed entry exactly once, in the order of the frees,
/// and `held` is the number of bytes of their pages.
#[derive(Debug, Default)]
pub(crate) struct GuardedBlocks {
    /// By base.
    entries: BTreeMap<usize, Entry>,
    queue: VecDeque<usize>,
    held: usize,
    pub(super) unfenced: u64,
}

impl GuardedBlocks {
    pub(super) fn enter(&mut self, entry: Entry) {
        self.unfenced += u64::from(!entry.fenced);
        self.entries.insert(entry.place.base, entry);
    }

    /// Returns the block whose pages contain this address.
    pub(super) fn around(&self, address: usize) -> Option<&Entry> {
        let (_, entry) = self.entries.range(..=address).next_back()?;
        Some(entry).filter(|entry| address < entry.place.end)
    }

    /// Returns the block that begins at this address.
    pub(super) fn at(&self, address: usize) -> Option<&Entry> {
        self.around(address)
            .filter(|entry| entry.place.address == address)
    }

    /// Moves a live block into quarantine.
    pub(super) fn retire(&mut self, base: usize, by: FreedBlock, shut: bool) {
        if let Some(entry) = self.entries.get_mut(&base)
            && entry.freed.is_none()
        {
            entry.freed = Some(by);
            entry.shut = shut;
            self.held += entry.place.bytes();
            self.queue.push_back(base);
        }
    }

    /// Returns the block that has been in quarantine for longest, if the quarantine has more than `bytes` bytes.
    pub(super) fn oldest_above(&self, bytes: usize) -> Option<&Entry> {
        let base = self.queue.front().filter(|_| self.held > bytes)?;
        self.entries.get(base)
    }

    /// Removes the oldest block from quarantine.
    pub(super) fn forget_oldest(&mut self) {
        if let Some(base) = self.queue.pop_front()
            && let Some(entry) = self.entries.remove(&base)
        {
            self.held -= entry.place.bytes();
        }
    }

    /// Returns the number of live blocks, of blocks in quarantine, and the bytes of the latter's pages.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let freed = self.queue.len();
        (self.entries.len() - freed, freed, self.held)
    }

    /// Asserts the invariant, and that no two blocks share a page.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let freed: Vec<&Entry> = self.entries.values().filter(|e| e.freed.is_some()).collect();
        let mut queued: Vec<usize> = self.queue.iter().copied().collect();
        queued.sort_unstable();
        assert_eq!(queued, freed.iter().map(|e| e.place.base).collect::<Vec<_>>());
        let held: usize = freed.iter().map(|e| e.place.bytes()).sum();
        assert_eq!(held, self.held);
        let mut last = 0;
        for (base, Entry { place, record, .. }) in &self.entries {
            assert!(*base == place.base && last <= *base, "{place:?} overlaps");
            assert!(
                place.base <= place.address && place.fence < place.end,
                "{place:?}"
            );
            assert!(place.address + record.requested <= place.fence, "{place:?}");
            assert!(place.address.is_multiple_of(record.align.max(64)), "{place:?}");
            last = place.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_where_its_fence_begins() {
        for bytes in [0, 1, 63, 64, 65, 4000, 4096, 4097, 70_000] {
            for align in [1usize, 64, 128, 4096, 1 << 16, 1 << 21] {
                let shape = Shape::of(bytes, align, bytes, 4096).expect("a size");
                let place = shape.at(shape.align * 3);
                assert!(place.base.is_multiple_of(4096) && place.address >= place.base);
                assert!(
                    place.address.is_multiple_of(align.max(64)),
                    "{bytes} at {align}: {place:?}"
                );
                let slack = place.fence - place.address - bytes;
                assert!(
                    slack < align.max(64) || bytes == 0,
                    "{bytes} at {align}: {place:?}"
                );
                assert_eq!(place.end - place.fence, 4096);
                assert_eq!(place.bytes(), shape.whole);
            }
        }
        assert_eq!(Shape::of(usize::MAX - 5000, 64, 0, 4096), None);
        assert_eq!(Shape::of(usize::MAX, 64, 0, 4096), None);
    }
}
