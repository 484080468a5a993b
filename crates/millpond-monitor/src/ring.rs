//! A history of samples in bounded memory. Old samples are joined and never dropped.
//!
//! ```text
//!   newest            one point for each sample          oldest two of a full row become one of the next
//!     v
//!   | o o o o o o | O   O   O   O | O       O       O |  ...  the last row is halved when it is full
//! ```
//!
//! A point of the last row therefore represents more and more samples, and has their minimum and maximum.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of rows. Each row has half the resolution of the one before.
const ROWS: usize = 4;

/// The summary of one series over the samples of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) last: u64,
    pub(super) sum: u128,
    pub(super) samples: u64,
}

impl Span {
    pub(super) fn of(value: u64) -> Self {
        Self {
            least: value,
            most: value,
            last: value,
            sum: u128::from(value),
            samples: 1,
        }
    }

    /// Adds a later summary.
    pub(super) fn join(&mut self, later: Self) {
        self.least = self.least.min(later.least);
        self.most = self.most.max(later.most);
        self.last = later.last;
        self.sum += later.sum;
        self.samples += later.samples;
    }

    pub(super) fn mean(&self) -> u64 {
        u64::try_from(self.sum / u128::from(self.samples.max(1))).unwrap_or(u64::MAX)
    }
}

/// One or more consecutive samples. Invariant: `values` is in order of series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) from: Duration,
    pub(super) to: Duration,
    pub(super) samples: u64,
    pub(super) values: Vec<(u64, Span)>,
}

impl Point {
    fn join(&mut self, later: Self) {
        self.to = later.to;
        self.samples += later.samples;
        for (series, span) in later.values {
            match self.values.binary_search_by_key(&series, |(of, _)| *of) {
                Ok(place) => self.values[place].1.join(span),
                Err(place) => self.values.insert(place, (series, span)),
            }
        }
    }

    pub(super) fn get(&self, series: u64) -> Option<&Span> {
        let place = self.values.binary_search_by_key(&series, |(of, _)| *of).ok()?;
        Some(&self.values[place].1)
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    /// The rows, the newest first, each with its oldest point first.
    rows: [VecDeque<Point>; ROWS],
    each: usize,
}

impl Ring {
    /// Makes a ring for at most the given number of points.
    pub(super) fn new(points: usize) -> Self {
        Self {
            rows: Default::default(),
            each: (points / ROWS).max(2),
        }
    }

    pub(super) fn push(&mut self, point: Point) {
        let mut next = Some(point);
        for row in &mut self.rows {
            let Some(point) = next.take() else { return };
            if row.len() >= self.each
                && let Some(mut oldest) = row.pop_front()
            {
                if let Some(second) = row.pop_front() {
                    oldest.join(second);
                }
                next = Some(oldest);
            }
            row.push_back(point);
        }
        // The last row has no next row. Its points are joined in pairs, and this one is the first of a pair.
        let Some(first) = next else { return };
        let last = &mut self.rows[ROWS - 1];
        let mut rest = std::mem::take(last).into_iter();
        last.push_back(first);
        while let Some(mut point) = rest.next() {
            if let Some(later) = rest.next() {
                point.join(later);
            }
            last.push_back(point);
        }
    }

    /// Returns the points, the oldest first.
    pub(super) fn points(&self) -> impl DoubleEndedIterator<Item = &Point> {
        self.rows.iter().rev().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(at: u64, value: u64) -> Point {
        Point {
            from: Duration::from_secs(at),
            to: Duration::from_secs(at),
            samples: 1,
            values: vec![(at % 3, Span::of(value)), (7, Span::of(value))],
        }
    }

    proptest! {
        #[test]
        fn no_sample_is_lost_and_newer_samples_have_a_higher_resolution(
            values in proptest::collection::vec(0u64..1000, 1..3000), points in 8usize..64,
        ) {
            let mut ring = Ring::new(points);
            for (at, value) in values.iter().enumerate() {
                ring.push(sample(at as u64, *value));
                prop_assert!(ring.points().count() <= points.max(8));
            }
            let kept: Vec<&Point> = ring.points().collect();
            prop_assert_eq!(kept.iter().map(|point| point.samples).sum::<u64>(), values.len() as u64);
            prop_assert_eq!(kept[0].from, Duration::ZERO);
            for pair in kept.windows(2) {
                prop_assert_eq!(pair[0].to + Duration::from_secs(1), pair[1].from);
            }
            let newest = kept.len().min(points / ROWS / 2);
            prop_assert!(kept[kept.len() - newest..].iter().all(|point| point.samples == 1));
            let spans: Vec<&Span> = kept.iter().filter_map(|point| point.get(7)).collect();
            prop_assert_eq!(spans.iter().map(|span| span.sum).sum::<u128>(), values.iter().map(|v| u128::from(*v)).sum());
            prop_assert_eq!(spans.iter().map(|span| span.most).max(), values.iter().copied().max());
            prop_assert_eq!(spans.iter().map(|span| span.least).min(), values.iter().copied().min());
            prop_assert_eq!(spans.last().map(|span| span.last), values.last().copied());
            for series in 0..3 {
                let samples: u64 = kept.iter().filter_map(|point| point.get(series)).map(|span| span.samples).sum();
                prop_assert_eq!(samples, (0..values.len() as u64).filter(|at| at % 3 == series).count() as u64);
            }
        }
    }
}
