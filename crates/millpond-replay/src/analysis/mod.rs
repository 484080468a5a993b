//! Analyses recordings and returns figures. This module prints nothing.
//!
//! ```text
//!   History ──▶ ledger.rs   turns rows into blocks that open and close, and applies keyframes and losses
//!                 │         groups.rs determines the groups of each block
//!                 ├─▶ summary.rs   peak, end and sums; memory by group; blocks that are still held (held.rs, tally.rs)
//!                 ├─▶ timeline.rs  bytes by group over time, in a few columns that lose no peak
//!                 ├─▶ blocks.rs    the table of all blocks, in parts, for queries about any window
//!                 ├─▶ steps.rs     the steps of the program, and the memory of each
//!                 └─▶ findings/    recommended changes, one file for each kind, in the walk of a summary
//!   History ──▶ overview.rs    a coarse overview directly from its rows
//!               report.rs      all analyses of a window, in parallel
//!               diff.rs, gate.rs   the comparison of two recordings, and conditions that fail it
//! ```
//!
//! Every analysis walks the recording a few times and remembers only the live blocks and the groups, so a
//! recording may be larger than memory. Sums have 128 bits. So the groups and the rest add up to the total,
//! even for the largest sizes in a file.

mod blocks;
mod diff;
pub mod findings;
mod gate;
mod groups;
mod held;
mod ledger;
mod moment;
mod overview;
mod report;
mod steps;
mod summary;
mod tally;
mod timeline;
mod window;

#[cfg(test)]
mod tests;

pub use blocks::{Part, TableError, TableSize, blocks};
pub use diff::{Change, Diff, Measure, diff};
pub use findings::{Finding, Who, examine};
pub use gate::{Gate, GateError, Verdict};
pub use groups::{By, Lines, NO_STACK, site};
pub use held::{Group, Held, HeldBlock, Sum, Top, top};
pub use moment::{At, Moment, MomentError, at};
pub use overview::{Keeping, Overview, Sizes, open, overview};
pub use report::{Report, report, report_with_timeline};
pub use steps::{RecordedStep, RecordedSteps, StepSource, recorded_steps};
pub use summary::{Hits, Lifetimes, Loss, Peak, PoolSummary, Summary, missing, summary};
pub use timeline::{Band, Sample, Timeline, TimelineOptions, timeline};
pub use window::Window;

use hashbrown::HashMap;
use millpond_trace::history::HistoryError;

/// Maps whose keys come from files. The hash is seeded, so that no file can make lookups slow.
type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Limits a sum to 64 bits for display. No memory is larger, but a damaged file may contain larger sizes.
fn shown(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// The reason why a recording could not be analysed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// The recording could not be walked.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The recording does not have this moment.
    #[error(transparent)]
    Moment(#[from] MomentError),
}
