//! Compares two recordings, or two moments of one. Groups are matched by their names.

use super::groups::By;
use super::held::{Held, Sum};
use super::summary::Summary;
use super::{Map, shown};
use serde::Serialize;

/// A figure of both recordings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// The name of the figure.
    pub name: &'static str,
    /// The value in the first recording. `None` if it is not recorded.
    pub before: Option<f64>,
    /// The value in the second recording.
    pub after: Option<f64>,
    /// Whether it counts bytes.
    pub is_bytes: bool,
}

/// A group in both recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// The bytes and blocks that the group holds in the first.
    pub before: Sum,
    /// The bytes and blocks that the group holds in the second.
    pub after: Sum,
}

impl Change {
    /// Returns the absolute difference in bytes.
    #[must_use]
    pub fn difference(&self) -> u64 {
        shown(self.after.bytes.abs_diff(self.before.bytes))
    }

    /// Returns whether the second holds more.
    #[must_use]
    pub fn is_more(&self) -> bool {
        self.after.bytes > self.before.bytes
    }
}

/// The differences between two recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// Figures of the whole windows.
    pub measures: Vec<Measure>,
    /// The total held at the moment.
    pub total: Change,
    /// The groups that differ most, with the largest difference first.
    pub groups: Vec<Change>,
    /// The sum of the other groups that differ.
    pub rest: Change,
    /// The number of these other groups.
    pub rest_groups: u64,
    /// The number of groups that hold the same bytes in both.
    pub unchanged: u64,
}

/// Compares two moments and the figures of their windows. Lists the `most` groups that differ most.
#[must_use]
pub fn diff(windows: [&Summary; 2], moments: [&Held; 2], by: By, most: usize) -> Diff {
    let mut changes: Map<&str, Change> = Map::default();
    for (side, held) in moments.into_iter().enumerate() {
        for group in held.by(by) {
            let change = changes.entry(&group.name).or_insert_with(|| Change {
                name: group.name.clone(),
                before: Sum::default(),
                after: Sum::default(),
            });
            let sum = if side == 0 {
                &mut change.before
            } else {
                &mut change.after
            };
            *sum = sum.and(group.sum);
        }
    }
    let all = changes.len();
    let mut changes: Vec<Change> = changes.into_values().collect();
    changes.retain(|change| change.before.bytes != change.after.bytes);
    changes.sort_by(|a, b| {
        let size = |change: &Change| change.after.bytes.abs_diff(change.before.bytes);
        size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name))
    });
    let unchanged = (all - changes.len()) as u64;
    let others = changes.split_off(most.min(changes.len()));
    let together = |of: fn(&Change) -> Sum| others.iter().fold(Sum::default(), |sum, one| sum.and(of(one)));
    Diff {
        measures: measures(windows),
        total: Change {
            name: "all".to_owned(),
            before: moments[0].sum,
            after: moments[1].sum,
        },
        rest: Change {
            name: "others".to_owned(),
            before: together(|change| change.before),
            after: together(|change| change.after),
        },
        rest_groups: others.len() as u64,
        groups: changes,
        unchanged,
    }
}

/// A figure of a window: the name that [gates](super::Gate) use, whether it counts bytes, and its value.
pub(super) type Figure = (&'static str, bool, fn(&Summary) -> Option<f64>);

pub(super) const FIGURES: [Figure; 9] = [
    ("peak", true, |s| Some(s.peak.sum.shown() as f64)),
    ("requested", true, |s| Some(s.peak_requested.bytes as f64)),
    ("reserved", true, |s| {
        s.peak_reserved.map(|peak| peak.bytes as f64)
    }),
    ("fragmentation", false, |s| s.peak.fragmentation()),
    ("end", true, |s| Some(s.end.sum.shown() as f64)),
    ("leaks", true, |s| Some(s.kept.sum.shown() as f64)),
    ("allocations", false, |s| Some(s.allocated.blocks as f64)),
    ("allocated", true, |s| Some(s.allocated.shown() as f64)),
    ("temporaries", false, |s| Some(s.temporary.blocks as f64)),
];

fn measures([before, after]: [&Summary; 2]) -> Vec<Measure> {
    let measure = |(name, is_bytes, of): Figure| {
        // The state at one moment has no figures for the time before it.
        let told = |summary: &Summary| of(summary).filter(|_| !summary.state_only || name == "end");
        Measure {
            name,
            before: told(before),
            after: told(after),
            is_bytes,
        }
    };
    FIGURES.into_iter().map(measure).collect()
}
