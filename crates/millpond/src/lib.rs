//! The memory layer for tensor and GPU computing.
//!
//! This crate is the door to the others. It opens onto the engine that places blocks, the same code that
//! `millpond replay` runs on a simulated card, and onto the sources of host memory: [`Host`], [`Pinned`].
//! Pools, buffers and tensors are here, over the engine's [`Source`](engine::Source).
//!
//! ```
//! use millpond::{Budget, Measure, Pool};
//! use std::time::Duration;
//!
//! let pool = Pool::builder().limit(2 << 30).cache_size(512 << 20).host()?;
//!
//! let mut weights = pool.alloc_zeroed::<f32>(1 << 20)?;    // 64-byte aligned; goes back when dropped, from any thread
//! weights[7] = 1.0;
//! println!("{:?}", pool.stats());                          // requested, allocated, reserved, peaks, hits
//!
//! let tenant = Budget::builder("tenant a").measure(Measure::Allocated).limit(64 << 20).build()?;
//! let theirs = pool.tenant(&tenant)?.wait(Duration::from_secs(1)).alloc_from(&weights)?;
//!
//! let _scope = millpond::tag("activations");               // names what is allocated until it ends
//! let error = pool.alloc_zeroed::<u8>(4 << 30).unwrap_err();
//! println!("{error}");                                     // the request, what is free, who holds what, what would have to go
//!
//! drop((weights, theirs));
//! pool.trim();                                             // back to the system, what idle threads keep too
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Who wants memory and no more than that draws from the process's own set of pools ([`Pools`]):
//!
//! ```
//! let mut weights = millpond::alloc_zeroed::<f32>(1000)?;
//! weights[7] = 1.0;
//! println!("{}", millpond::memory_stats());
//! # Ok::<(), millpond::AllocError>(())
//! ```
//!
//! Only this crate turns an address into memory, and it calls the system in one place, `os`.
#![deny(unsafe_op_in_unsafe_fn)]

pub use millpond_engine as engine;

#[cfg(target_os = "linux")]
mod block;
#[forbid(unsafe_code)]
mod budget;
#[cfg(target_os = "linux")]
mod buffer;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub mod cuda;
#[cfg(target_os = "linux")]
mod data;
#[forbid(unsafe_code)]
mod device;
#[forbid(unsafe_code)]
mod dtype;
#[forbid(unsafe_code)]
mod error;
#[forbid(unsafe_code)]
mod event;
#[forbid(unsafe_code)]
mod ledger;
mod memory;
#[forbid(unsafe_code)]
mod post_mortem;
#[forbid(unsafe_code)]
mod ranked;
#[forbid(unsafe_code)]
mod tag;
#[forbid(unsafe_code)]
mod thread;
#[forbid(unsafe_code)]
mod time;

#[cfg(target_os = "linux")]
mod global;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod os;
#[cfg(target_os = "linux")]
mod pinned;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod pools;
#[cfg(target_os = "linux")]
pub mod pressure;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod profile;
#[cfg(target_os = "linux")]
#[deny(unsafe_code)]
mod rental;
#[cfg(all(feature = "derive", target_os = "linux"))]
#[forbid(unsafe_code)]
mod soa;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod storage;
#[cfg(target_os = "linux")]
mod tenant;
#[cfg(target_os = "linux")]
mod tensor;
#[cfg(target_os = "linux")]
mod unpooled;
#[cfg(target_os = "linux")]
mod workspace;

#[cfg(target_os = "linux")]
pub use block::{ForeignMemory, foreign_memory};
pub use budget::{Budget, BudgetBuilder, BudgetError, Charge, Measure, Refusal, Report, SoftCrossing, Wait};
#[cfg(target_os = "linux")]
pub use buffer::{Buffer, Leaks, LengthError, Origin, PoolRef, RawBuffer, SharedBuffer, leaks};
pub use bytemuck;
#[cfg(target_os = "linux")]
pub use data::{
    Access, Chunk, DataError, DataSet, DataSetBuilder, Mapped, Npy, NpyError, Order, Pass, Progress,
};
#[cfg(all(feature = "safetensors", target_os = "linux"))]
pub use data::{MappedTensors, SafeTensors, SafeTensorsError, TensorInfo};
pub use device::Device;
pub use dtype::{DType, DTypeError, Element, ParseDTypeError};
pub use error::{AllocError, OutOfMemory};
#[cfg(feature = "tracing")]
pub use event::TracingSubscriber;
pub use event::{Context, Event, EventKind, Facts, PoolLabel, Sees, Subscriber, SubscriptionId, Watchers};
#[cfg(target_os = "linux")]
pub use global::GlobalPool;
#[cfg(target_os = "linux")]
pub use host::{Host, HostBuilder, HostError, HugePages, Node};
pub use ledger::{
    Frame, FreedBlock, Leak, LeakGroup, LeakReport, Ledger, LedgerBuilder, Mark, Record, Sampler, Stack,
    TagTotal, Tracking, WrongFree,
};
pub use memory::{MemoryKind, MemorySource};
#[cfg(feature = "derive")]
pub use millpond_derive::Soa;
#[cfg(target_os = "linux")]
pub use pinned::{Pinned, is_pinned, pinned_bytes};
#[cfg(target_os = "linux")]
pub use pool::{
    FaultPlace, FaultReport, GuardStats, LeakCheck, Pool, PoolBuilder, PoolError, PoolStats, Prewarm,
    describe_fault,
};
#[cfg(target_os = "linux")]
pub use pools::{
    Pools, PoolsBuilder, PoolsEntry, PoolsScope, PoolsStats, alloc, alloc_from, alloc_from_fn, alloc_zeroed,
    collect_garbage, compact, empty_cache, memory_stats, pools, set_default_pools, storage,
};
pub use post_mortem::{
    BudgetFigures, Holding, Least, Lister, Method, PostMortem, SpaceFigures, Survey, Text, Top,
};
#[cfg(target_os = "linux")]
pub use pressure::{Pressure, Watch, pressure};
#[cfg(target_os = "linux")]
pub use profile::{PoolProfile, ProfileReport, profile};
#[cfg(target_os = "linux")]
pub use rental::{Rental, RentalStats, Rented};
#[cfg(all(feature = "derive", target_os = "linux"))]
pub use soa::{Soa, SoaChunks, SoaField, SoaIndexError, SoaLayout};
#[cfg(target_os = "linux")]
pub use storage::Storage;
#[doc(hidden)]
pub use tag::TagSite as __TagSite;
pub use tag::{Tag, TagScope, tag};
#[cfg(target_os = "linux")]
pub use tenant::Tenant;
#[cfg(all(feature = "dlpack", target_os = "linux"))]
pub use tensor::dlpack;
#[cfg(target_os = "linux")]
pub use tensor::{
    Batches, BatchesMut, EmptyTensor, MAX_RANK, Operand, Output, Scalar, SharedOrCopied, StillShared, Tensor,
    TensorError, TensorMut, TensorRef, set_threads, threads,
};
pub use thread::thread_number;
pub use time::Time;
#[cfg(target_os = "linux")]
pub use unpooled::Unpooled;
#[cfg(target_os = "linux")]
pub use workspace::{Named, Scratch, Workspace, WorkspaceBuilder, WorkspaceError, WorkspaceStats};

/// What the code that `derive(Soa)` makes calls.
#[cfg(all(feature = "derive", target_os = "linux"))]
#[doc(hidden)]
pub mod __soa {
    pub use crate::soa::{Column, Cut, Split, arrange, chunks, here, padding_after};
}
