//! Millpond CSV: one `#` line with a JSON header, one line of column names, one line for each event.
//!
//! ```text
//! # {"trace": "example"}
//! time_us,action,id,bytes,stream,tag
//! 0,alloc,1,4096,0,forward;layer 0
//! 9,free,1,4096,0,
//! ```
//!
//! Columns are found by name, in any order. `action`, `id` and `bytes` must be there; `time_us`, `stream`,
//! `tag`, `address`, `pool` (`a:b`), `device` and `allocated` may be. A tag holds no comma unless it is the
//! last column. Actions are those in [`ACTIONS`]; ids may be reused after a free. What stood before the
//! first event is written as `initial_segment`, `initial_block` and `initial_pending` rows.

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

/// A segment held before the first event; its `id` says what kind of segment it is.
const INITIAL_SEGMENT: &str = "initial_segment";
/// A block that lived before the first event.
const INITIAL_BLOCK: &str = "initial_block";
/// A block given back before the first event that still waited for a stream.
const INITIAL_PENDING: &str = "initial_pending";

/// Bits of the `id` of an [`INITIAL_SEGMENT`] row.
const SMALL: u64 = 1;
/// See [`SMALL`].
const EXPANDABLE: u64 = 2;
