//! Findings of a reader that did not stop it, with their counts.
//!
//! A finding is always reported and never fatal, because the reader of a report must know how complete the recording
//! is.

use std::fmt;

/// The number of innermost frames that the tag of a stack names.
pub(crate) const TAG_FRAMES: usize = 8;

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
    /// Frees of blocks that were not allocated in the recording.
    UnknownFrees {
        /// Number of such frees.
        count: u64,
    },
    /// Ids or addresses that were allocated again without a free in between.
    AllocatedTwice {
        /// Number of such allocations.
        count: u64,
    },
    /// Allocations of no bytes.
    ZeroBytes {
        /// Number of such allocations.
        count: u64,
    },
    /// Events with a negative size.
    NegativeBytes {
        /// Number of such events.
        count: u64,
    },
    /// Events with a size above 2^62 bytes.
    AbsurdBytes {
        /// Number of such events.
        count: u64,
    },
    /// Frees whose size differs from the allocation's size.
    FreeBytesDiffer {
        /// Number of such frees.
        count: u64,
    },
    /// Blocks freed twice while they waited for a stream.
    FreedTwice {
        /// Number of such frees.
        count: u64,
    },
    /// Events earlier than the one before them.
    TimesBackwards {
        /// Number of such events.
        count: u64,
    },
    /// The events carry no times.
    NoTimes,
    /// Events that do not concern memory, such as marks.
    OtherEvents {
        /// Number of such events.
        count: u64,
    },
    /// Entries that lack a field or hold a value of the wrong type.
    UnreadableEvents {
        /// Number of such entries.
        count: u64,
    },
    /// Places where the final state of a snapshot contradicts its history.
    StateDisagrees {
        /// Number of contradictions.
        count: u64,
    },
    /// Blocks of a snapshot that overlap or lie outside every segment.
    BlocksMisplaced {
        /// Number of such blocks.
        count: u64,
    },
    /// Segments of a snapshot whose blocks do not fill them, or that overlap.
    SegmentsMisshapen {
        /// Number of such segments.
        count: u64,
    },
    /// Tags that were dropped because the text of all tags was too large.
    TagsDropped {
        /// Number of dropped tags.
        count: u64,
    },
    /// Events on more streams or pools than the reader can distinguish.
    StreamsFolded {
        /// Number of such events.
        count: u64,
    },
    /// Stacks that have more frames than their tags, which name only the innermost ones.
    StacksCut {
        /// Number of different stacks.
        count: u64,
    },
    /// A device of a snapshot with a state but no history.
    NoHistory {
        /// The device's number. -1 is the host.
        device: i32,
    },
    /// Frees for which the recorder did not separate request and completion.
    FreesNotCompleted {
        /// Number of such frees.
        count: u64,
    },
    /// Allocations after which more than 2^64 bytes were held. Sums stop at that number.
    SumsCapped {
        /// Number of such allocations.
        count: u64,
    },
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
                "So blocks may end later than they did, or be missing: where the recording lists what was live, it is right \
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
                    "the recorder's ring was full: older events are missing, though none of their blocks still lived"
                )
            }
            Self::RingWrapped {
                initial_blocks,
                initial_bytes,
                full,
            } => {
                write!(
                    f,
                    "the recording starts after {} of {} already lived",
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
                "the file is cut after {}; what is whole before that was read",
                size(bytes)
            ),
            Self::EventsLost { count: n } => {
                write!(
                    f,
                    "{} lost by the recorder, which had no room for them",
                    was(n, "event")
                )
            }
            Self::UnknownFrees { count: n } => {
                write!(
                    f,
                    "{} of blocks never seen allocated {} ignored",
                    count(n, "free"),
                    were(n)
                )
            }
            Self::AllocatedTwice { count: n } => {
                write!(
                    f,
                    "{} allocated again without a free; the older block was ended there",
                    was(n, "id or address")
                )
            }
            Self::ZeroBytes { count: n } => {
                write!(f, "{} for zero bytes", count_is(n, "allocation"))
            }
            Self::NegativeBytes { count: n } => {
                write!(f, "{} skipped for a negative size", was(n, "event"))
            }
            Self::AbsurdBytes { count: n } => {
                write!(f, "{} skipped for a size above 2^62 bytes", was(n, "event"))
            }
            Self::FreeBytesDiffer { count: n } => {
                write!(
                    f,
                    "{} recorded with another size than the allocation; the allocation's was kept",
                    was(n, "free")
                )
            }
            Self::FreedTwice { count: n } => {
                write!(
                    f,
                    "{} of blocks already given back {} ignored",
                    count(n, "free"),
                    were(n)
                )
            }
            Self::TimesBackwards { count: n } => {
                write!(
                    f,
                    "{} earlier than the one before; the recorded order was kept",
                    count_is(n, "event")
                )
            }
            Self::NoTimes => {
                f.write_str("the recording has no times; the order of events is all that is known")
            }
            Self::OtherEvents { count: n } => {
                write!(
                    f,
                    "{} about something else than memory {} ignored",
                    count(n, "event"),
                    were(n)
                )
            }
            Self::UnreadableEvents { count: n } => {
                write!(
                    f,
                    "{} skipped for a missing field or a value of the wrong type",
                    was(n, "entry")
                )
            }
            Self::StateDisagrees { count: n } => {
                write!(
                    f,
                    "history and final state of the snapshot contradict each other in {}",
                    count(n, "place")
                )
            }
            Self::BlocksMisplaced { count: n } => {
                write!(
                    f,
                    "{} overlapping another or outside every segment",
                    count_is(n, "block")
                )
            }
            Self::SegmentsMisshapen { count: n } => {
                write!(
                    f,
                    "{} not filled by its blocks or overlapping another",
                    count_is(n, "segment")
                )
            }
            Self::TagsDropped { count: n } => write!(
                f,
                "{} left out because all tags together grew too long",
                was(n, "tag")
            ),
            Self::StacksCut { count: n } => write!(
                f,
                "{} cut to the {TAG_FRAMES} innermost frames: the callers of these are not shown",
                was(n, "stack")
            ),
            Self::NoHistory { device } => {
                match device {
                    ..0 => f.write_str("the host")?,
                    device => write!(f, "device {device}")?,
                }
                f.write_str(
                    " was recorded without a history: the figures are what its allocator held when the snapshot was written",
                )
            }
            Self::StreamsFolded { count: n } => {
                write!(
                    f,
                    "{} put on the default stream or pool because there are more than 65535",
                    was(n, "event")
                )
            }
            Self::FreesNotCompleted { count: n } => {
                write!(
                    f,
                    "{} taken as complete because the recorder left completions out",
                    was(n, "free")
                )
            }
            Self::SumsCapped { count: n } => {
                write!(
                    f,
                    "more than 2^64 bytes were held after {}; sums stop at that number",
                    count(n, "allocation")
                )
            }
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

fn was(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), were(n))
}

fn were(n: u64) -> &'static str {
    if n == 1 { "was" } else { "were" }
}

fn count_is(n: u64, noun: &str) -> String {
    format!("{} {}", count(n, noun), if n == 1 { "is" } else { "are" })
}

/// The counters of the cautions. A counter of zero gives no caution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) unknown_frees: u64,
    pub(crate) allocated_twice: u64,
    pub(crate) zero_bytes: u64,
    pub(crate) negative_bytes: u64,
    pub(crate) absurd_bytes: u64,
    pub(crate) free_bytes_differ: u64,
    pub(crate) freed_twice: u64,
    pub(crate) times_backwards: u64,
    pub(crate) other_events: u64,
    pub(crate) unreadable_events: u64,
    pub(crate) state_disagrees: u64,
    pub(crate) blocks_misplaced: u64,
    pub(crate) segments_misshapen: u64,
    pub(crate) tags_dropped: u64,
    pub(crate) streams_folded: u64,
    pub(crate) frees_not_completed: u64,
    pub(crate) sums_capped: u64,
    pub(crate) stacks_cut: u64,
}

impl Findings {
    pub(crate) fn cautions(&self) -> Vec<Caution> {
        type Make = fn(u64) -> Caution;
        let all: [(u64, Make); 18] = [
            (self.state_disagrees, |count| Caution::StateDisagrees { count }),
            (self.blocks_misplaced, |count| Caution::BlocksMisplaced { count }),
            (self.segments_misshapen, |count| Caution::SegmentsMisshapen {
                count,
            }),
            (self.unknown_frees, |count| Caution::UnknownFrees { count }),
            (self.allocated_twice, |count| Caution::AllocatedTwice { count }),
            (self.freed_twice, |count| Caution::FreedTwice { count }),
            (self.frees_not_completed, |count| Caution::FreesNotCompleted {
                count,
            }),
            (self.free_bytes_differ, |count| Caution::FreeBytesDiffer { count }),
            (self.negative_bytes, |count| Caution::NegativeBytes { count }),
            (self.absurd_bytes, |count| Caution::AbsurdBytes { count }),
            (self.zero_bytes, |count| Caution::ZeroBytes { count }),
            (self.unreadable_events, |count| Caution::UnreadableEvents {
                count,
            }),
            (self.other_events, |count| Caution::OtherEvents { count }),
            (self.times_backwards, |count| Caution::TimesBackwards { count }),
            (self.tags_dropped, |count| Caution::TagsDropped { count }),
            (self.streams_folded, |count| Caution::StreamsFolded { count }),
            (self.sums_capped, |count| Caution::SumsCapped { count }),
            (self.stacks_cut, |count| Caution::StacksCut { count }),
        ];
        all.into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, make)| make(count))
            .collect()
    }
}
