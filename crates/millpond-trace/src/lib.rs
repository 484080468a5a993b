//! Recordings of what a program allocated and freed, and the readers of the formats they come in.
//!
//! A [`Trace`] is one device's events in order, with every allocation under a dense serial number, so
//! that nothing downstream ever looks an address up. Readers are chosen by a file's content, never by
//! its name, and treat every file as hostile: see [`read`].
#![forbid(unsafe_code)]

mod model;

pub use model::{
    Action, Allocation, Caution, Event, Format, InitialBlock, InitialSegment, Origin, Settings, Strings,
    Trace,
};
