//! Recordings of a program's allocations and frees, and readers for their formats.
//!
//! A [`Trace`] contains one device's events in order. Every allocation has a dense serial number, so users of a trace
//! never look up an address. A reader is chosen by a file's content, never by its name. Readers treat every file as
//! untrusted: see [`read`].
#![forbid(unsafe_code)]

mod caution;
mod chrome;
mod csv;
mod detect;
mod error;
#[cfg(feature = "recording")]
pub mod export;
mod formats;
mod hash;
mod header;
#[cfg(feature = "recording")]
pub mod history;
mod json;
mod ledger;
mod lines;
mod model;
mod options;
mod pickle;
mod read;
#[cfg(feature = "recording")]
pub mod recording;
mod rmm;
mod source;
mod stack;
mod strings;
mod table;
mod tape;
mod texts;
mod torch;

pub use caution::{Caution, Finding};
pub use csv::write_csv;
pub use error::ReadError;
pub use formats::{read_bytes, read_from};
pub use model::{
    Action, Allocation, DeviceState, Event, Format, InitialBlock, InitialSegment, NO_ALLOCATION, OLDER,
    Origin, PoolState, Recording, Settings, Trace,
};
pub use options::{Interrupt, Progress, ReadOptions};
pub use read::read;
pub use stack::{AROUND_CALLS, is_plumbing, split_frames, split_tag, tag_site};
pub use strings::Strings;
