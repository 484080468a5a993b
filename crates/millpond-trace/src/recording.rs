//! Millpond's recording format, `.mpr`: every event of a process's pools, on one clock.
//!
//! A file is an Arrow IPC stream of one table with batches compressed by zstd. Any Arrow reader can read it, such as
//! pandas, polars or DuckDB. A row is an event, or it defines a number that events use. The file needs no index, no
//! footer and no second file. If a process dies, the recording can be read up to the last complete batch.
//!
//! ```text
//!  batch    batch row                 absolute: the time, the newest serial number, the rows before it
//!           rows                      relative to those: times as differences, serial numbers counted back from the newest
//!  batch    ..
//!           keyframe row, live rows   regularly, all blocks that callers hold
//!  batch    ..
//!           end row                   the recording was closed and is complete
//! ```
//!
//! | column | type | contents |
//! |---|---|---|
//! | `kind` | `UInt8` | see [`Kind`] |
//! | `time` | `Int64` | nanoseconds since the last row that is not a live row; in a batch row since the recording began |
//! | `id` | `Int64` | newest serial number before this row minus this row's; in a batch row that newest number |
//! | `address` | `UInt64` | of the block, in an allocation |
//! | `requested`, `bytes` | `UInt64` | requested bytes; bytes of the block. A free repeats those of its allocation |
//! | `pool`, `stream`, `thread`, `tag`, `stack` | `UInt32` | numbers, each defined by a row before its first use; 0 means none |
//! | `text` | `Utf8`, nullable | the text of a definition or a mark |
//! | `list` | `List<UInt64>`, nullable | the addresses of a stack, innermost first; the facts of a pool or module |
//!
//! Readers of other versions can rely on the following. Columns are found by name, unknown kinds are skipped, and the
//! schema's metadata has `millpond.version`. A reader refuses a version that it does not know. The metadata also has facts
//! about the recording, such as `millpond.fact.start`, the moment from which times count, in seconds since 1970.

mod error;
mod facts;
mod message;
mod read;
mod row;
mod schema;
#[cfg(test)]
mod tests;
mod write;

pub use error::RecordingError;
pub(crate) use facts::{bytes_per_stack, start_of};
pub use facts::{set_bytes_per_stack, set_start};
pub use read::{Batch, End, Reader};
pub use row::{Gauge, Kind, Row};
pub use write::Writer;

/// The prefix of a mark in a snapshot. The mark says what the snapshot does not list block by block.
pub const STATES: &str = "snapshot: ";

/// The file name extension of a recording.
pub const ENDING: &str = "mpr";
