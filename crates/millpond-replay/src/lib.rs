//! Replays the allocations of a recorded program under any policy, on a device of any size, without the
//! device.
//!
//! A recording becomes a [`Program`], which holds only the calls that an allocator may see. [`run`] replays a
//! program under one policy on a simulated [`Device`]. [`replay`] does this for many policies and explains
//! the result. [`Prepared::run_on`] replays on any other source through [`Real`], for example on a GPU, whose
//! memory is then reserved and mapped during the replay.
//!
//! ```
//! use millpond_replay::{Options, replay};
//! use millpond_trace::{ReadOptions, read_bytes};
//!
//! let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,3000000,0,a\n1,free,1,3000000,0,\n";
//! let recording = read_bytes(csv, "tiny", &ReadOptions::default())?;
//! let options = Options { policies: vec!["torch-native".into()], ..Options::default() };
//! let replayed = replay(&recording.traces[0], &options, &|_, _| {})?;
//! assert_eq!(replayed.report.results[0].peak_reserved_bytes, 20 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod allocator;
#[cfg(feature = "recording")]
pub mod analysis;
mod cards;
#[cfg(feature = "recording")]
pub mod chart;
mod edit;
mod error;
mod family;
mod fit;
mod occupancy;
mod oom;
mod options;
mod outcome;
mod paced;
pub mod page;
mod parallel;
pub mod picture;
mod placement;
mod prepared;
mod program;
mod ranges;
mod real;
mod replay;
mod report;
mod run;
mod steps;
mod tags;
mod ticks;
mod trials;
mod tune;
mod verdict;
mod verify;
#[cfg(feature = "recording")]
pub mod view;
mod web;

pub use allocator::usual_policy;
pub use cards::{Card, DeviceSize, cards, cards_like, parse_device};
pub use edit::{AppliedEdit, Edit, EditError, Edited, Growing, apply as apply_edits};
pub use error::{MOST_HELD, ReplayError};
pub use family::Family;
pub use fit::{Smallest, smallest_device};
pub use millpond_trace::split_frames as tag_frames;
pub use occupancy::{Occupancy, PoolOccupancy, SegmentOccupancy, largest_fresh_request};
pub use oom::{
    CacheState, Cause, Failure, Holder, HoleClass, OomOrigin, OutOfMemory, RefusedRequest, Remedy,
    RemedyKind, holders, refused_requests,
};
pub use options::{Applied, Options, check_settings};
pub use outcome::{DriverCalls, Fit, PolicyResult};
pub use paced::Paced;
pub use parallel::Threads;
pub use placement::{Placement, PlacementRecorder, SegmentSpan};
pub use prepared::Prepared;
pub use program::{BEFORE, Op, OpKind, Program, Selection};
pub use real::{Meet, Real};
pub use replay::{Replayed, replay};
pub use report::{ALIKE, Choice, FittingCard, Recorded, Report, SCHEMA, Verdict};
pub use run::{Device, Observer, Run, Stop, request, run};
pub use steps::{Solved, StepClock, StepResult, Steps, Threaded};
pub use tags::{Redactor, tag_group};
pub use ticks::{TickClock, TickEvery, Ticks};
pub use trials::{Gain, Trial, TunedFamily};
pub use tune::{Proposal, TuneOptions, Tuned, tune};
pub use verify::{Verification, recorded_conf, verify};
