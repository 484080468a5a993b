//! Millpond CSV: one `#` line with a JSON header, one line of column names, and one line for each event.
//!
//! ```text
//! # {"trace": "example"}
//! time_us,action,id,bytes,stream,tag
//! 0,alloc,1,4096,0,forward;layer 0
//! 9,free,1,4096,0,
//! ```
//!
//! Columns are found by name and may have any order. `action`, `id` and `bytes` are required. `time_us`, `stream`,
//! `tag`, `address`, `pool` (`a:b`), `device` and `allocated` are optional. A tag contains no comma unless it is the
//! last column. The actions are listed in [`ACTIONS`]. An id may be reused after a free. The state before the first
//! event is written as `initial_segment`, `initial_block` and `initial_pending` rows.

mod read;
mod write;

pub(crate) use read::read;
#[cfg(feature = "recording")]
pub(crate) use write::word;
pub use write::write_csv;

use crate::Action;

/// The word for each action.
pub(crate) const ACTIONS: [(&str, Action); 9] = [
    ("alloc", Action::Alloc),
    ("free", Action::Free),
    ("free_requested", Action::FreeRequested),
    ("free_completed", Action::FreeCompleted),
    ("segment_alloc", Action::SegmentAlloc),
    ("segment_free", Action::SegmentFree),
    ("segment_map", Action::SegmentMap),
    ("segment_unmap", Action::SegmentUnmap),
    ("oom", Action::OutOfMemory),
];

/// A segment held before the first event. Its `id` encodes the kind of segment.
const INITIAL_SEGMENT: &str = "initial_segment";
/// A block that was live before the first event.
const INITIAL_BLOCK: &str = "initial_block";
/// A block freed before the first event that still waited for a stream.
const INITIAL_PENDING: &str = "initial_pending";

/// The bit for a segment of the small pool in the `id` of an [`INITIAL_SEGMENT`] row.
const SMALL: u64 = 1;
/// The bit for an expandable segment in the `id` of an [`INITIAL_SEGMENT`] row.
const EXPANDABLE: u64 = 2;
