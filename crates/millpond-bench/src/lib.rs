//! Measures the engine and compares it with other allocators: the placement of blocks (`placement`) and the speed of calls
//! (`speed`), each in its own program. [`host`] measures host memory and other allocators,
//! for the program with that name and for `millpond bench` and `millpond replay --source host`. [`tensors`], [`layout`] and
//! [`data`] measure tensors, structures of arrays and passes through files, each for the program with its name and for
//! `millpond bench seeds`. [`device`] measures a CUDA driver and pools of its devices, for `millpond bench driver`, `millpond
//! bench alloc` and `millpond bench kernels`. [`transfer`] measures copies to and from a device, for `millpond bench transfer`.
//! [`record`] measures the cost of recording, for `millpond bench record`.
//!
//! This is the only crate that links other allocators.
#![deny(unsafe_code)]

mod console;
#[cfg(target_os = "linux")]
pub mod data;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub mod device;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "calls allocators, and writes to what they answer")]
pub mod host;
mod jitter;
pub mod layout;
pub mod measure;
mod outcome;
mod peers;
mod program;
#[cfg(target_os = "linux")]
pub mod record;
#[cfg(target_os = "linux")]
mod scratch;
mod table;
pub mod tensors;
#[cfg(target_os = "linux")]
pub mod transfer;

pub use console::{at_least_one, exit, print, say};
pub use outcome::{Outcome, one_in, run};
pub use peers::{OffsetAllocator, Policy, Ranges, Trees};
pub use program::{Op, Program, find};
pub use table::Table;

pub(crate) use console::parse;
