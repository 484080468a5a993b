//! Recordings in other tools' formats: any [`History`] is written as what a viewer or profiler of the field reads.
//!
//! ```text
//!  History   --events-->  allocations and frees that agree with each other, of one device or a stretch of time
//!                 |--> written as they come:  perfetto  snapshot  heaptrack  chrome  csv  recording
//!                 |--> summed up by stack:    pprof  speedscope  folded  dhat
//!                 '--> held in memory:        traces
//! ```
//!
//! Events are never held but for a replay: what a writer keeps is the live blocks, the stacks and the sums of its format. Names and tags
//! come from files of strangers, so control characters in them become blanks, and those longer than any format is at ease with are cut.

mod chrome;
mod csv;
mod dhat;
mod events;
mod folded;
mod heaptrack;
mod perfetto;
mod pickle;
mod pprof;
mod profile;
mod protobuf;
mod recording;
mod segments;
mod snapshot;
mod speedscope;
mod stacks;
mod target;
mod traces;

pub use target::{Dialect, Packing, Target};
pub use traces::{Traces, traces};

use crate::history::{History, HistoryError, Symbols};
use crate::recording::{RecordingError, Row};
use std::io::{self, Write};

/// Which blocks a profile counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// Those that lived when most bytes were asked for at once.
    #[default]
    Peak,
    /// All that there ever were.
    Total,
    /// Those that still lived at the end.
    End,
}

/// What of a recording is written, and how.
#[derive(Clone, Copy, Default)]
pub struct ExportOptions<'a> {
    /// Which blocks a profile counts.
    pub at: At,
    /// Only what is on this device; -1 is the host.
    pub device: Option<i32>,
    /// Nothing before, in nanoseconds since the recording began; blocks that lived then are allocated there.
    pub from: Option<u64>,
    /// Nothing after.
    pub to: Option<u64>,
    /// At most so many of the last events of each device, in a snapshot.
    pub last: Option<u64>,
    /// Told now and then how many rows of all were walked; a format may take several walks.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

impl std::fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportOptions")
            .field("at", &self.at)
            .field("device", &self.device)
            .field("from", &self.from)
            .field("to", &self.to)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Events that went into it.
    pub events: u64,
    /// What of the recording is not in it, in words that follow on "lost: "; empty where nothing is.
    pub lost: Vec<String>,
}

/// A recording that could not be written in another format.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The recording could not be walked.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The system did not take what was written.
    #[error("the result cannot be written: {0}")]
    Io(#[from] io::Error),
    /// Rows of a recording could not be put together.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// Nothing is there to write; what was asked for stands behind.
    #[error("the recording has no memory events{0}")]
    Nothing(String),
    /// There is more of it than a trace has numbers for.
    #[error("the recording has more than {limit} allocations; take a stretch of it")]
    TooMany {
        /// How many a trace can have.
        limit: u32,
    },
}

/// Walks what the options ask for, as events that agree with each other: a free repeats its allocation's facts, keyframes are resolved.
/// Answers what is lost in the recording itself.
///
/// # Errors
/// The recording cannot be walked any more, or `each` failed.
pub fn walk(
    history: &History,
    options: &ExportOptions<'_>,
    mut each: impl FnMut(&Row, Option<&str>) -> io::Result<()>,
) -> Result<Exported, ExportError> {
    let source = events::Source::new(history, &history.definitions, options);
    let mut events = 0;
    source.walk(|event| {
        events += 1;
        Ok(each(&event.row, event.text)?)
    })?;
    if source.is_empty() {
        return Err(ExportError::Nothing(source.asked_for()));
    }
    Ok(Exported {
        events,
        lost: source.lost(),
    })
}

/// Writes a recording in another format.
///
/// # Errors
/// It cannot be walked, nothing of it was asked for, or the system does not take what is written.
pub fn export(
    history: &History,
    symbols: &dyn Symbols,
    target: Target,
    options: &ExportOptions<'_>,
    out: impl Write,
) -> Result<Exported, ExportError> {
    let source = events::Source::new(history, symbols, options);
    let mut out = target.packing.writer(out)?;
    let write = match target.dialect {
        Dialect::Perfetto => perfetto::write,
        Dialect::Snapshot => snapshot::write,
        Dialect::Pprof => pprof::write,
        Dialect::Speedscope => speedscope::write,
        Dialect::Folded => folded::write,
        Dialect::Dhat => dhat::write,
        Dialect::Heaptrack => heaptrack::write,
        Dialect::Chrome => chrome::write,
        Dialect::Recording => recording::write,
        Dialect::Csv => csv::write,
    };
    let mut exported = write(&source, &mut out)?;
    out.finish()?;
    if source.is_empty() {
        return Err(ExportError::Nothing(source.asked_for()));
    }
    let mut lost = source.lost();
    lost.append(&mut exported.lost);
    Ok(Exported { lost, ..exported })
}
