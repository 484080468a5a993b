//! The C library of Millpond: the functions of `millpond.h`.
//!
//! `cargo xtask c-library` makes `libmillpond.so` from this crate, and installs it with its headers. `docs/c.md` is the guide for its users.
//!
//! # Rules on arguments
//!
//! Every function that can fail returns a [`millpond_status`]. No panic leaves a function. These arguments are checked, and a wrong one
//! results in a status and a text: handles, null and misaligned pointers, texts that are not UTF-8, sizes, alignments, flags, and the
//! addresses of blocks unless a function says otherwise. These cannot be checked, so they are the conditions of every `unsafe` function:
//!
//! - A pointer to a result is valid for a write of its type, and a pointer to a structure for reads and writes of the bytes that its field
//!   `size` says.
//! - A text ends with a zero byte.
//! - A stream is a live stream of the device's primary context.
//! - Nothing uses a block when it is freed.
//!
//! # Modules
//!
//! ```text
//!   status      codes, the text of the last error, and the guard of each entry point
//!   arguments   checked reads and writes through pointers of the caller
//!   open_device a device pool with its blocks
//!   handles     the table of live handles
//!   any_pool    a pool of either kind
//!   pool        creates and destroys pools of both kinds
//!   figures     statistics, limits and reports of pools of both kinds
//!   block       blocks of host pools
//!   device      blocks of device pools, and streams
//!   plugin      device memory for PyTorch
//!   budget, tag, recording
//! ```
#![expect(non_camel_case_types, reason = "these types are named as in C")]

mod any_pool;
mod arguments;
mod block;
mod budget;
mod device;
mod figures;
mod handles;
mod open_device;
pub mod plugin;
mod pool;
mod recording;
mod status;
mod tag;

pub use block::*;
pub use budget::*;
pub use device::*;
pub use figures::*;
pub use handles::{millpond_budget, millpond_pool, millpond_recording};
pub use pool::*;
pub use recording::*;
pub use status::*;
pub use tag::*;
