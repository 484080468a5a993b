//! Replays what a program allocated under any policy, on any size of device, without the device.
#![forbid(unsafe_code)]

pub mod page;

mod error;
mod placement;
mod program;
mod run;

pub use error::ReplayError;
pub use placement::{Placement, PlacementRecorder, SegmentSpan};
pub use program::{BEFORE, Op, OpKind, Program, Selection};
pub use run::{Device, Observer, Run, Stop, request, run};
