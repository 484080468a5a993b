//! Findings of a reader that did not stop it, with their counts.
//!
//! A finding is always reported and never fatal, because the reader of a report must know how complete the recording
//! is.

use std::collections::BTreeMap;
use std::fmt;

/// The number of innermost frames that are kept of a stack that is cut because all tags together are too long.
pub(crate) const CUT_FRAMES: usize = 8;

/// A finding that limits the conclusions from a recording.
///
/// Its `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caution {
    /// The recording starts after the program: blocks were live before its first event.
    RingWrapped {
        /// Number of blocks known to be older than the first event.
        initial_blocks: u64,
        /// Bytes requested for these blocks.
        initial_bytes: u64,
        /// Whether the file itself says that the recorder's ring was full.
        full: bool,
    },
    /// The file ends in the middle of a line, a value or a compressed block.
    Cut {
        /// Decompressed bytes that were read.
        bytes: u64,
    },
    /// The recording itself says that events are missing.
    EventsLost {
        /// Number of missing events.
        count: u64,
    },
    /// The events carry no times.
    NoTimes,
    /// A device of a snapshot with a state but no history.
    NoHistory {
        /// The device's number. -1 is the host.
        device: i32,
    },
    /// A finding that was counted.
    Counted(Finding, u64),
}

/// A finding that is counted. The order is that of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Finding {
    /// Places where the final state of a snapshot contradicts its history.
    StateDisagrees,
    /// Blocks of a snapshot that overlap or lie outside every segment.
    BlocksMisplaced,
    /// Segments of a snapshot whose blocks do not fill them, or that overlap.
    SegmentsMisshapen,
    /// Frees of blocks that were not allocated in the recording.
    UnknownFrees,
    /// Ids or addresses that were allocated again without a free in between.
    AllocatedTwice,
    /// Blocks freed twice while they waited for a stream.
    FreedTwice,
    /// Frees for which the recorder did not separate request and completion.
    FreesNotCompleted,
    /// Frees whose size differs from the allocation's size.
    FreeBytesDiffer,
    /// Events with a negative size.
    NegativeBytes,
    /// Events with a size above 2^62 bytes.
    AbsurdBytes,
    /// Allocations of no bytes.
    ZeroBytes,
    /// Entries that lack a field or hold a value of the wrong type.
    UnreadableEvents,
    /// Events that do not concern memory, such as marks.
    OtherEvents,
    /// Events earlier than the one before them.
    TimesBackwards,
    /// Tags that were dropped because the text of all tags was too large.
    TagsDropped,
    /// Events on more streams or pools than the reader can distinguish.
    StreamsFolded,
    /// Allocations after which more than 2^64 bytes were held. Sums stop at that number.
    SumsCapped,
    /// Stacks whose outer frames were dropped, because the stacks or all tags together are too long.
    StacksCut,
}

impl Caution {
    /// Returns the conclusions that the finding rules out, if its own sentence does not state them.
    #[must_use]
    pub fn consequence(&self) -> Option<&'static str> {
        match self {
            Self::RingWrapped { .. } => Some(
                "So nothing can be said about the time before: whether the peak was higher then, how much memory the \
                 program's start took, and how fragmented the memory was when the recording began.",
            ),
            Self::Cut { .. } => Some(
                "So nothing can be said about the time after: the peak, the smallest device and the first failure hold \
                 for the part that was read.",
            ),
            Self::EventsLost { .. } => Some(
                "So blocks may end later than they did, or be missing, until the recording lists the live blocks \
                 again.",
            ),
            Self::NoHistory { .. } => Some(
                "So nothing can be said about its peak, or about what was allocated and freed before: call \
                 torch.cuda.memory._record_memory_history() before the next dump.",
            ),
            _ => None,
        }
    }

    /// Returns the finding and its consequence as sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let consequence = self.consequence().map(str::to_owned);
        std::iter::once(self.to_string()).chain(consequence).collect()
    }
}

impl fmt::Display for Caution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RingWrapped {
                initial_blocks: 0,
                full: _,
                ..
            } => {
                write!(
                    f,
                    "the recorder's ring was full: older events are missing, but none of their blocks were still live"
                )
            }
            Self::RingWrapped {
                initial_blocks,
                initial_bytes,
                full,
            } => {
                write!(
                    f,
                    "the recording starts with {} of {} already live",
                    count(initial_blocks, "block"),
                    size(initial_bytes)
                )?;
                f.write_str(if full {
                    ": the recorder's ring was full and older events are missing"
                } else {
                    ": recording was switched on late, or its ring lost older events"
                })
            }
            Self::Cut { bytes } => write!(
                f,
                "the file is truncated after {}; the complete part before that was read",
                size(bytes)
            ),
            Self::EventsLost { count: n } => {
                let was = if n == 1 { "was" } else { "were" };
                write!(
                    f,
                    "{} {was} lost by the recorder, which had no room for them",
                    count(n, "event")
                )
            }
            Self::NoTimes => f.write_str("the recording has no times; only the order of its events is known"),
            Self::NoHistory { device } => {
                match device {
                    ..0 => f.write_str("the host")?,
                    device => write!(f, "device {device}")?,
                }
                f.write_str(
                    " was recorded without a history: the figures are what its allocator held when the snapshot was written",
                )
            }
            Self::Counted(finding, n) => {
                let (noun, sentence) = finding.words();
                let sentence = sentence.replace("{count}", &count(n, noun));
                let (is, was) = if n == 1 { ("is", "was") } else { ("are", "were") };
                f.write_str(&sentence.replace("{is}", is).replace("{was}", was))
            }
        }
    }
}

impl Finding {
    /// Returns the noun for the counted items, and the sentence about them.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::StateDisagrees => (
                "place",
                "the history and the final state of the snapshot contradict each other in {count}",
            ),
            Self::BlocksMisplaced => (
                "block",
                "{count} {is} overlapping another or outside every segment",
            ),
            Self::SegmentsMisshapen => (
                "segment",
                "{count} {is} not filled by its blocks or overlapping another",
            ),
            Self::UnknownFrees => (
                "free",
                "{count} of blocks without a recorded allocation {was} ignored",
            ),
            Self::AllocatedTwice => (
                "id or address",
                "{count} {was} allocated again without a free; the older block was ended there",
            ),
            Self::FreedTwice => ("free", "{count} of blocks that were already freed {was} ignored"),
            Self::FreesNotCompleted => (
                "free",
                "{count} {was} treated as complete because the recorder omitted completions",
            ),
            Self::FreeBytesDiffer => (
                "free",
                "{count} {was} recorded with another size than the allocation; the allocation's was kept",
            ),
            Self::NegativeBytes => ("event", "{count} {was} skipped for a negative size"),
            Self::AbsurdBytes => ("event", "{count} {was} skipped for a size above 2^62 bytes"),
            Self::ZeroBytes => ("allocation", "{count} {is} for zero bytes"),
            Self::UnreadableEvents => (
                "entry",
                "{count} {was} skipped for a missing field or a value of the wrong type",
            ),
            Self::OtherEvents => ("event", "{count} about something other than memory {was} ignored"),
            Self::TimesBackwards => (
                "event",
                "{count} {is} earlier than the one before; the recorded order was kept",
            ),
            Self::TagsDropped => (
                "tag",
                "{count} {was} omitted because all tags together were too long",
            ),
            Self::StreamsFolded => (
                "event",
                "{count} {was} assigned to the default stream or pool because there are more than 65535 streams or pools",
            ),
            Self::SumsCapped => (
                "allocation",
                "more than 2^64 bytes were held after {count}; sums stop at that number",
            ),
            Self::StacksCut => (
                "stack",
                "{count} {was} too long to keep in full: the outermost callers are not shown",
            ),
        }
    }
}

/// Formats a size with three significant digits and a binary unit, as in reports.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1023.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[unit])
}

fn count(n: u64, noun: &str) -> String {
    match (n, noun) {
        (1, _) => format!("1 {noun}"),
        (_, "entry") => format!("{n} entries"),
        (_, "id or address") => format!("{n} ids or addresses"),
        _ => format!("{n} {noun}s"),
    }
}

/// The counts of findings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings(BTreeMap<Finding, u64>);

impl Findings {
    #[cold]
    pub(crate) fn count(&mut self, finding: Finding) {
        self.add(finding, 1);
    }

    /// Adds to a count. A count of zero gives no caution.
    pub(crate) fn add(&mut self, finding: Finding, count: u64) {
        if count > 0 {
            *self.0.entry(finding).or_default() += count;
        }
    }

    pub(crate) fn cautions(&self) -> Vec<Caution> {
        let counts = self.0.iter();
        counts
            .map(|(&finding, &count)| Caution::Counted(finding, count))
            .collect()
    }
}
