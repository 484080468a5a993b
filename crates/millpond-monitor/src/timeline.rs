//! The history of the series, as values.

use super::series::{Quantity, Subject};
use std::time::Duration;

/// The history of every series since the start of a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// The series in the order of their subjects.
    pub series: Vec<TimelineSeries>,
}

impl Timeline {
    /// Returns the series of one quantity by the name of its subject.
    #[must_use]
    pub fn get(&self, of: &str, quantity: Quantity) -> Option<&TimelineSeries> {
        let mut series = self.series.iter();
        series.find(|series| series.quantity == quantity && series.of.to_string() == of)
    }
}

/// One series.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineSeries {
    /// The subject.
    pub of: Subject,
    /// The quantity.
    pub quantity: Quantity,
    /// The points, the oldest first. Each of the newest points contains one sample. Older points join more samples the
    /// older they are.
    pub points: Vec<TimelinePoint>,
}

/// One or more consecutive samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelinePoint {
    /// The time of the first sample since the start.
    pub from: Duration,
    /// The time of the last sample.
    pub to: Duration,
    /// The minimum.
    pub least: u64,
    /// The mean.
    pub mean: u64,
    /// The maximum.
    pub most: u64,
    /// The last sample.
    pub last: u64,
    /// The number of samples.
    pub samples: u64,
}
