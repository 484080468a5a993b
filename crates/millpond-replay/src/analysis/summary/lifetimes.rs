//! Collects the lifetimes of blocks in a histogram of fixed size with a precision of a sixteenth.

use serde::Serialize;

/// The number of parts of each power of two.
const PARTS: u32 = 16;
const BITS: u32 = PARTS.ilog2();

/// Lifetimes of the blocks that were freed, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lifetimes {
    /// The number of blocks.
    pub blocks: u64,
    /// The lifetime that half of them did not exceed, within a sixteenth.
    pub median: u64,
    /// The lifetime that nine of ten did not exceed.
    pub p90: u64,
    /// The lifetime that 99 of a hundred did not exceed.
    pub p99: u64,
    /// The longest lifetime, exactly.
    pub longest: u64,
}

/// Counts by lifetime.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    longest: u64,
}

impl Histogram {
    pub(super) fn note(&mut self, nanoseconds: u64) {
        let place = place(nanoseconds);
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.longest = self.longest.max(nanoseconds);
    }

    pub(super) fn told(&self) -> Lifetimes {
        let blocks: u64 = self.counts.iter().sum();
        let at = |hundredths: u64| {
            let wanted = (u128::from(blocks) * u128::from(hundredths)).div_ceil(100) as u64;
            let mut seen = 0;
            let found = self.counts.iter().position(|count| {
                seen += count;
                seen >= wanted && wanted > 0
            });
            found.map_or(0, |place| last_of(place).min(self.longest))
        };
        Lifetimes {
            blocks,
            median: at(50),
            p90: at(90),
            p99: at(99),
            longest: self.longest,
        }
    }
}

/// Returns the index of a length. Each length below [`PARTS`] has its own index. Above, each power of two has
/// that many.
fn place(length: u64) -> usize {
    if length < u64::from(PARTS) {
        return length as usize;
    }
    let power = length.ilog2();
    let part = (length >> (power - BITS)) - u64::from(PARTS);
    ((power - BITS + 1) * PARTS) as usize + part as usize
}

/// Returns the longest length with this index.
fn last_of(place: usize) -> u64 {
    let place = place as u64;
    let parts = u64::from(PARTS);
    if place < parts {
        return place;
    }
    let (row, part) = (place / parts - 1, place % parts);
    let first = (parts + part) << row;
    first + ((1 << row) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_an_index_with_a_precision_of_a_sixteenth() {
        let lengths = (0..300).chain((8..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        for length in lengths.chain([u64::MAX]) {
            let (last, first) = (
                last_of(place(length)),
                place(length).checked_sub(1).map_or(0, |p| last_of(p) + 1),
            );
            assert!((first..=last).contains(&length), "{length}");
            assert!(last - first <= length / 16, "{length}");
        }
    }

    #[test]
    fn percentiles_of_a_few_lifetimes() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.told(), Lifetimes::default());
        for length in 1..=10 {
            histogram.note(length);
        }
        let told = histogram.told();
        assert_eq!(
            (told.blocks, told.median, told.p90, told.p99, told.longest),
            (10, 5, 9, 10, 10)
        );
    }
}
