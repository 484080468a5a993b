//! Measures the engine beside its peers: where blocks go (`placement`), what less memory would cost
//! (`frontier`) and how fast calls are (`speed`).
//!
//! The only crate that links peers; nothing of it is published.
#![forbid(unsafe_code)]

mod clock;
mod outcome;
mod peers;
mod program;
mod table;

pub use clock::CpuClock;
pub use outcome::{Outcome, run};
pub use peers::{OffsetAllocator, Ranges, Trees};
pub use program::{Op, Program, find};
pub use table::Table;
