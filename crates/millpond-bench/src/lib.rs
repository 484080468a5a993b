//! Measures the engine beside its peers: where blocks go (`placement`), what less memory would cost
//! (`frontier`) and how fast calls are (`speed`), each a program of its own. [`host`] measures host memory beside
//! other allocators, for the program of that name and for `millpond bench` and `millpond replay --source host`. [`tensors`],
//! [`layout`] and [`data`] measure tensors, structures of arrays and passes through files, each for the program of its name
//! and for `millpond bench seeds`. [`device`] measures a CUDA driver and pools of its devices, for `millpond bench driver`,
//! `millpond bench alloc` and `millpond bench kernels`; [`transfer`] copies to and from a device, for `millpond bench transfer`;
//! [`record`] measures what a recording costs, for `millpond bench record`.
//!
//! The only crate that links peers.
#![deny(unsafe_code)]

mod clock;
#[cfg(target_os = "linux")]
pub mod data;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub mod device;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "calls allocators, and writes to what they answer")]
pub mod host;
pub mod layout;
mod outcome;
mod peers;
mod program;
#[cfg(target_os = "linux")]
pub mod record;
mod say;
mod table;
pub mod tensors;
#[cfg(target_os = "linux")]
pub mod transfer;

pub use clock::CpuClock;
pub use outcome::{Outcome, run};
pub use peers::{OffsetAllocator, Ranges, Trees};
pub use program::{Op, Program, find};
pub use say::{exit, print, say};
pub use table::Table;
