//! The course of what was followed, as values.

use super::series::{Quantity, Subject};
use std::time::Duration;

/// The course of every series, from a monitor's start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// In order of what they are of.
    pub series: Vec<TimelineSeries>,
}

impl Timeline {
    /// The series of one quantity, by the name of what it is of.
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
    /// What is measured.
    pub of: Subject,
    /// What of it.
    pub quantity: Quantity,
    /// Oldest first. The newest are of one sample each; of older ones several are joined, the more the older they are.
    pub points: Vec<TimelinePoint>,
}

/// One or more samples after one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelinePoint {
    /// When the first was taken, since the start.
    pub from: Duration,
    /// When the last was taken.
    pub to: Duration,
    /// The least of them.
    pub least: u64,
    /// Their mean.
    pub mean: u64,
    /// The most.
    pub most: u64,
    /// The last.
    pub last: u64,
    /// How many there are.
    pub samples: u64,
}
