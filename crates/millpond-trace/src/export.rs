//! Writes a recording in the formats of other tools. Any [`History`] can be written as a file for a viewer or profiler.
//!
//! ```text
//!  History   --events-->  consistent allocations and frees of one device or one time range
//!                 |--> written in order:      perfetto  snapshot  heaptrack  chrome  csv  recording
//!                 |--> summed up by stack:    pprof  speedscope  folded  dhat
//!                 '--> held in memory:        traces
//! ```
//!
//! Events are held in memory only for a replay. A writer keeps the live blocks, the stacks and the sums of its format.
//! Names and tags come from untrusted files. Control characters in them are replaced by spaces, and names that are too
//! long for other tools are cut.

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

/// The blocks that a profile counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// The blocks that were live when the most bytes were requested at once.
    #[default]
    Peak,
    /// All blocks of the recording.
    Total,
    /// The blocks that were still live at the end.
    End,
}

/// The part of a recording to write, and how to write it.
#[derive(Clone, Copy, Default)]
pub struct ExportOptions<'a> {
    /// Which blocks a profile counts.
    pub at: At,
    /// Writes only the events on this device. -1 is the host.
    pub device: Option<i32>,
    /// The start of the time range, in nanoseconds since the recording began. Blocks that are live at the start appear
    /// as allocated at that time.
    pub from: Option<u64>,
    /// The end of the time range.
    pub to: Option<u64>,
    /// Maximum number of events of each device in a snapshot. The last events are kept.
    pub last: Option<u64>,
    /// Whether profiles contain the frames that frameworks put around every call. Other formats contain every frame.
    pub every_frame: bool,
    /// A callback that regularly receives the number of rows visited and the number of all rows. A format may visit the
    /// rows several times.
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
            .field("every_frame", &self.every_frame)
            .finish_non_exhaustive()
    }
}

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of events that the file contains.
    pub events: u64,
    /// The parts of the recording that the file does not contain, as phrases that follow "lost: ". Empty if nothing is
    /// lost.
    pub lost: Vec<String>,
}

impl Exported {
    fn new(events: u64, lost: impl Into<String>) -> Self {
        Self {
            events,
            lost: vec![lost.into()],
        }
    }
}

/// Why a recording could not be written in another format.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The recording could not be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The output could not be written.
    #[error("the output could not be written: {0}")]
    Io(#[from] io::Error),
    /// Rows of a recording could not be encoded.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recording has no events for the options. The field describes them.
    #[error("the recording has no memory events{0}")]
    Nothing(String),
    /// The recording has more allocations than a trace can number.
    #[error("the recording has more than {limit} allocations; select a shorter time range")]
    TooMany {
        /// Maximum number of allocations of a trace.
        limit: u32,
    },
}

/// Calls `each` for the events that the options select. The events are consistent: a free repeats the facts of its
/// allocation, and keyframes are resolved. Returns the number of events, and the losses of the recording itself.
///
/// # Errors
/// Returns an error if the recording can no longer be read or if `each` fails.
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
/// Returns an error if the recording cannot be read, if the options select no event, or if the output cannot be
/// written.
pub fn export(
    history: &History,
    symbols: &dyn Symbols,
    target: Target,
    options: &ExportOptions<'_>,
    out: impl Write,
) -> Result<Exported, ExportError> {
    let source = events::Source::new(history, symbols, options);
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
    let mut exported = target.packing.pack(out, |out| write(&source, out))?;
    if source.is_empty() {
        return Err(ExportError::Nothing(source.asked_for()));
    }
    let mut lost = source.lost();
    lost.append(&mut exported.lost);
    Ok(Exported { lost, ..exported })
}
