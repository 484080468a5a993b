//! Samples of one time, and their summary.

use std::collections::BTreeMap;

/// Samples of one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn add(&mut self, time: f64) {
        self.0.push(time);
    }

    /// Returns the median, the minimum and the maximum, or `None` without a sample.
    pub(super) fn spread(&self) -> Option<Spread> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: *sorted.get(sorted.len() / 2)?,
            least: *sorted.first()?,
            most: *sorted.last()?,
        })
    }
}

/// The summary of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Samples by number of pages.
#[derive(Clone, Debug, Default)]
pub(super) struct BySize(BTreeMap<u64, Samples>);

impl BySize {
    pub(super) fn add(&mut self, pages: u64, time: f64) {
        self.0.entry(pages).or_default().add(time);
    }

    /// Returns the summary of calls without pages.
    pub(super) fn of_no_pages(&self) -> Option<Spread> {
        self.0.get(&0)?.spread()
    }

    /// Returns the summary for each number of pages.
    pub(super) fn spreads(&self) -> Vec<(u64, Spread)> {
        let all = self.0.iter();
        all.filter_map(|(pages, samples)| Some((*pages, samples.spread()?)))
            .collect()
    }

    /// Fits a straight line to the medians, and returns the cost of a call and of each page. Neither is negative.
    ///
    /// The slope is the median of the slopes between any two sizes, so that one outlier does not change it.
    pub(super) fn line(&self) -> Option<(f64, f64)> {
        let points: Vec<(f64, f64)> = self
            .spreads()
            .iter()
            .map(|(pages, spread)| (*pages as f64, spread.median))
            .collect();
        let mut slopes = Samples::default();
        for (index, (x, y)) in points.iter().enumerate() {
            for (other_x, other_y) in &points[index + 1..] {
                slopes.add((other_y - y) / (other_x - x));
            }
        }
        let slope = slopes.spread().map_or(0.0, |slopes| slopes.median.max(0.0));
        let mut rests = Samples::default();
        for (x, y) in &points {
            rests.add(y - slope * x);
        }
        Some((rests.spread()?.median.max(0.0), slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_through_noise() {
        let mut costs = BySize::default();
        for pages in [1, 4, 16, 64, 256] {
            for noise in [-0.5, 0.0, 90.0] {
                costs.add(pages, 20.0 + 0.25 * pages as f64 + noise);
            }
        }
        assert_eq!(costs.line(), Some((20.0, 0.25)));
        let largest = costs.spreads().pop().expect("sizes");
        assert_eq!((largest.0, largest.1.median, largest.1.least), (256, 84.0, 83.5));
        assert_eq!(largest.1.most, 174.0);
    }

    #[test]
    fn what_falls_with_size_costs_nothing_for_a_page() {
        let mut costs = BySize::default();
        for (pages, time) in [(1, 30.0), (4, 20.0), (16, 25.0)] {
            costs.add(pages, time);
        }
        assert_eq!(costs.line(), Some((25.0, 0.0)));
        assert_eq!(BySize::default().line(), None);
    }
}
