//! Free parts of a range of numbers: addresses, or the granules of a device.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Free ranges by their start. Adjacent ranges are merged, so that freed ranges become large again.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeList {
    free: BTreeMap<u64, u64>,
    total: u64,
}

impl FreeList {
    pub(crate) fn new(start: u64, len: u64) -> Self {
        let mut list = Self::default();
        list.give(start, len);
        list
    }

    /// Returns the total size of all free ranges.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Allocates the lowest range of length `len` in one piece. `align` must be a power of two.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let fits = |(start, size): (&u64, &u64)| {
            let at = start.checked_next_multiple_of(align.max(1))?;
            (at.checked_add(len)? <= start + size).then_some(at)
        };
        let at = self.free.iter().find_map(fits)?;
        self.take_at(at, len).then_some(at)
    }

    /// Allocates exactly this range, if all of it is free.
    pub(crate) fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&start, &size)) = self.free.range(..=at).next_back() else {
            return false;
        };
        let Some(end) = at.checked_add(len).filter(|end| *end <= start + size) else {
            return false;
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if end < start + size {
            self.free.insert(end, start + size - end);
        }
        self.total -= len;
        true
    }

    /// Allocates `len` in as many pieces as necessary, the lowest first.
    pub(crate) fn take_pieces(&mut self, len: u64) -> Option<Vec<(u64, u64)>> {
        if len > self.total {
            return None;
        }
        let mut pieces = Vec::new();
        let mut left = len;
        while left > 0 {
            let (&start, &size) = self.free.iter().next()?;
            let part = size.min(left);
            self.take_at(start, part);
            pieces.push((start, part));
            left -= part;
        }
        Some(pieces)
    }

    pub(crate) fn give(&mut self, start: u64, len: u64) {
        let (mut from, mut to) = (start, start + len);
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            self.free.remove(&before);
            from = before;
        }
        if let Some(size) = self.free.remove(&to) {
            to += size;
        }
        self.free.insert(from, to - from);
        self.total += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_are_merged() {
        let mut list = FreeList::new(100, 100);
        let a = list.take(10, 1).unwrap();
        let b = list.take(10, 32).unwrap();
        assert_eq!((a, b, list.total()), (100, 128, 80));
        assert!(!list.take_at(127, 2));
        assert_eq!(list.take_pieces(30), Some(vec![(110, 18), (138, 12)]));
        assert_eq!(list.take_pieces(51), None);
        for (at, len) in [(110, 18), (128, 10), (100, 10), (138, 12)] {
            list.give(at, len);
        }
        assert_eq!(list.take(100, 1), Some(100));
        assert_eq!((list.take(1, 1), list.total()), (None, 0));
    }
}
