//! Millpond's own recordings, `.mpr`: every event of a process's pools, on one clock.
//!
//! A file is an Arrow IPC stream of one table, its batches compressed with zstd, so that whatever reads Arrow reads it: pandas,
//! polars, DuckDB. A row is an event, or says what a number in events means. Nothing needs an index, a footer or a second
//! file: what was written before a process died can be read up to the last whole batch.
//!
//! ```text
//!  batch    batch row                 absolute: the time, the newest serial number, the rows before it
//!           rows                      relative to those: times as differences, serial numbers counted back from the newest
//!  batch    ..
//!           keyframe row, live rows   every so often, all blocks in callers' hands
//!  batch    ..
//!           end row                   the recording was closed, and was not cut
//! ```
//!
//! | column | type | what |
//! |---|---|---|
//! | `kind` | `UInt8` | see [`Kind`] |
//! | `time` | `Int64` | nanoseconds since the last row that is not a live row; in a batch row since the recording began |
//! | `id` | `Int64` | newest serial number before this row, less this row's; in a batch row that newest number |
//! | `address` | `UInt64` | of the block, in an allocation |
//! | `requested`, `bytes` | `UInt64` | bytes asked for; bytes of the block. A free repeats its allocation's |
//! | `pool`, `stream`, `thread`, `tag`, `stack` | `UInt32` | numbers, each defined by a row before it is first used; 0 is none |
//! | `text` | `Utf8`, nullable | what a definition or a mark says |
//! | `list` | `List<UInt64>`, nullable | the addresses of a stack, the innermost first; the facts of a pool or module |
//!
//! What a reader of another version may rely on: columns are found by name, kinds that are not known are passed over, and the
//! schema's metadata has `millpond.version`. A reader refuses a version it does not know.

mod error;
mod message;
mod read;
mod row;
mod schema;
#[cfg(test)]
mod tests;
mod write;

pub use error::RecordingError;
pub use read::{Batch, End, Reader};
pub use row::{Gauge, Kind, Row};
pub use write::Writer;

/// What a mark begins with that says what a snapshot does not have block by block.
pub const STATES: &str = "snapshot: ";

/// The ending of a recording's name.
pub const ENDING: &str = "mpr";
