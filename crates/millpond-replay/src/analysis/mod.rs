//! What a recording holds, as figures: nothing here prints.
//!
//! ```text
//!   History ──▶ ledger.rs   rows become blocks that open and close, keyframes and losses put right
//!                 │         groups.rs says what each block belongs to
//!                 ├─▶ summary.rs   peak, end, sums; who held what; what is still held (held.rs, tally.rs)
//!                 ├─▶ timeline.rs  bytes by group over time, in a few columns that lose no peak
//!                 ├─▶ blocks.rs    the table of all blocks, in parts, for whoever asks about any window
//!                 ├─▶ steps.rs     the steps of the program, and what each holds
//!                 └─▶ findings/    what is worth changing, one file for each kind, in the walk of a summary
//!   History ──▶ overview.rs    a glance straight from its rows
//!               report.rs      all of it of a window, side by side
//!               diff.rs, gate.rs   two of them side by side, and conditions that they must not meet
//! ```
//!
//! All of it walks the recording a few times and remembers the blocks that live and the groups there are, so a recording may be
//! larger than memory. Sums are kept in 128 bits: whatever sizes a file names, groups and rest add up to the whole.

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
pub use groups::{By, Lines};
pub use held::{Group, Held, HeldBlock, Sum, Top, top};
pub use moment::{At, Moment, MomentError, at};
pub use overview::{Keeping, Overview, Sizes, Strand, Strands, open, overview};
pub use report::{Report, report, report_with_timeline};
pub use steps::{RecordedStep, RecordedSteps, StepSource, recorded_steps};
pub use summary::{Hits, Lifetimes, Loss, Peak, PoolSummary, Summary, missing, summary};
pub use timeline::{Band, Sample, Timeline, TimelineOptions, timeline};
pub use window::Window;

use hashbrown::HashMap;
use millpond_trace::history::HistoryError;

/// Maps whose keys come from files: seeded, so that no file can make their lookups slow.
type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A sum as it is shown: sums beyond 64 bits, which no memory has, are shown as the largest number there is.
fn shown(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// Why a recording could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// It could not be walked.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A moment that it does not have.
    #[error(transparent)]
    Moment(#[from] MomentError),
}
