//! Address ranges that were taken from a source. Ranges may be taken and released in any pieces.

use std::collections::BTreeMap;

/// Ranges that do not overlap. Adjacent ranges are not joined.
#[derive(Debug, Default)]
pub(crate) struct Ranges<T> {
    /// One past the end of each range, by its start.
    all: BTreeMap<u64, (u64, T)>,
}

impl<T: Clone> Ranges<T> {
    /// Adds a range, and cuts the ranges that it overlaps.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, with: T) {
        let Some(end) = end(address, bytes) else { return };
        self.remove(address, bytes);
        self.all.insert(address, (end, with));
    }

    /// Removes a range, which may consist of several pieces. Returns the start, the end and the value of each piece.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64) -> Vec<(u64, u64, T)> {
        let Some(end) = end(address, bytes) else {
            return Vec::new();
        };
        let before = self
            .all
            .range(..address)
            .next_back()
            .map(|(from, (to, _))| (*from, *to));
        let first = before
            .filter(|(_, to)| *to > address)
            .map_or(address, |(from, _)| from);
        let overlapping = self.all.range(first..end);
        let overlapping: Vec<(u64, (u64, T))> = overlapping.map(|(from, of)| (*from, of.clone())).collect();
        for (from, (to, with)) in &overlapping {
            self.all.remove(from);
            if *from < address {
                self.all.insert(*from, (address, with.clone()));
            }
            if *to > end {
                self.all.insert(end, (*to, with.clone()));
            }
        }
        let pieces = overlapping.into_iter();
        pieces
            .map(|(from, (to, with))| (from.max(address), to.min(end), with))
            .collect()
    }
}

impl<T> Ranges<T> {
    /// Returns the start, the length and the value of each range.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &T)> {
        self.all
            .iter()
            .map(|(from, (to, with))| (*from, *to - *from, with))
    }
}

#[cfg(feature = "recording")]
impl<T> Ranges<T> {
    /// Returns the range that contains an address: its start, its length, and its value.
    pub(crate) fn of(&mut self, address: u64) -> Option<(u64, u64, &mut T)> {
        let (from, (to, with)) = self.all.range_mut(..=address).next_back()?;
        (*to > address).then_some((*from, *to - *from, with))
    }

    /// Returns the start of the range that contains an address.
    pub(crate) fn start_of(&self, address: u64) -> Option<u64> {
        let (from, (to, _)) = self.all.range(..=address).next_back()?;
        (*to > address).then_some(*from)
    }
}

fn end(address: u64, bytes: u64) -> Option<u64> {
    address.checked_add(bytes).filter(|_| bytes > 0)
}

#[cfg(all(test, feature = "recording"))]
mod tests {
    use super::*;

    #[test]
    fn ranges_can_be_added_and_removed_in_any_pieces() {
        let mut ranges = Ranges::default();
        ranges.add(100, 100, 'a');
        ranges.add(200, 50, 'b');
        ranges.remove(150, 75);
        let all: Vec<_> = ranges
            .iter()
            .map(|(from, bytes, with)| (from, bytes, *with))
            .collect();
        assert_eq!(all, [(100, 50, 'a'), (225, 25, 'b')]);
        ranges.remove(110, 10);
        assert_eq!(ranges.iter().count(), 3);
        assert_eq!(
            ranges.of(105).map(|(from, bytes, _)| (from, bytes)),
            Some((100, 10))
        );
        assert!(ranges.of(110).is_none() && ranges.of(99).is_none() && ranges.of(150).is_none());
        ranges.add(0, 1000, 'c');
        assert_eq!(ranges.iter().count(), 1);
        ranges.add(u64::MAX, 2, 'd');
        ranges.remove(0, u64::MAX);
        assert_eq!(ranges.iter().count(), 0);
    }
}
