//! Measures the engine beside its peers: where blocks go (`placement`), what less memory would cost
//! (`frontier`) and how fast calls are (`speed`). Its program `host` measures host memory beside other allocators.
//!
//! The only crate that links peers; nothing of it is published.
#![forbid(unsafe_code)] // The program `host` is a crate of its own, and calls allocators.

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
