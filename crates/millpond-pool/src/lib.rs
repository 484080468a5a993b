//! Pools and buffers of host memory: sources, pools, blocks, buffers, rentals, and the global allocator.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Programs should depend on millpond:
//! the names that only millpond's own crates need may change without notice.

#![cfg_attr(loom, allow(unused, reason = "models take a part of the crate"))]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(target_os = "linux")]
pub mod block;
#[cfg(target_os = "linux")]
pub mod buffer;
#[forbid(unsafe_code)]
pub mod dtype;
#[cfg(target_os = "linux")]
pub mod global;
#[cfg(target_os = "linux")]
pub mod host;
pub mod memory;
#[cfg(target_os = "linux")]
pub mod pinned;
#[cfg(target_os = "linux")]
pub mod pool;
#[cfg(target_os = "linux")]
#[deny(unsafe_code)]
pub mod rental;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
pub mod storage;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
pub mod tenant;
#[cfg(target_os = "linux")]
pub mod unpooled;

#[cfg(target_os = "linux")]
pub use block::{ForeignMemory, Origin, foreign_memory};
#[cfg(target_os = "linux")]
pub use buffer::{Buffer, Leaks, LengthError, RawBuffer, SharedBuffer, leaks};
pub use dtype::{DType, DTypeError, Element, ParseDTypeError};
#[cfg(target_os = "linux")]
pub use global::GlobalPool;
#[cfg(target_os = "linux")]
pub use host::{Host, HostBuilder, HostError, HugePages, Node};
pub use memory::MemorySource;
#[cfg(target_os = "linux")]
pub use pinned::{Pinned, is_pinned, pinned_bytes};
#[cfg(target_os = "linux")]
pub use pool::{
    FaultPlace, FaultReport, GuardStats, LeakCheck, Pool, PoolBuilder, PoolError, PoolRef, Prewarm,
    ReadSettings, describe_fault,
};
#[cfg(target_os = "linux")]
pub use rental::{Rental, RentalStats, Rented};
#[cfg(target_os = "linux")]
pub use storage::Storage;
#[cfg(target_os = "linux")]
pub use tenant::Tenant;
#[cfg(target_os = "linux")]
pub use unpooled::Unpooled;
