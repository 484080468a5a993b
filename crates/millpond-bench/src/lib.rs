//! Measures the engine beside its peers: where blocks go (`placement`) and how fast (`speed`).
//!
//! The only crate that links peers; nothing of it is published.
#![forbid(unsafe_code)]

mod clock;
mod peers;
mod program;
mod table;

pub use clock::CpuClock;
pub use peers::{OffsetAllocator, Ranges, Trees};
pub use program::{Op, Program, find};
pub use table::Table;
