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
//! [`Tensor`]s draw from the same pools. Views share their storage, and what ends in `_assign` or `_into` allocates nothing:
//!
//! ```
//! use millpond::{DType, Pool, Tensor};
//!
//! let pool = Pool::host()?;
//! let inputs = Tensor::from_fn_in(&pool, [100, 4], |at| (at[0] + at[1]) as f32)?;
//! let weights = Tensor::full_in(&pool, [4, 2], 0.5f32)?;
//! let mut outputs = Tensor::zeros_in(&pool, [32, 2], DType::F32)?;
//! let asked = pool.stats().allocations;
//! for batch in inputs.batches(0, 32)? {                    // views: the last one is of four rows
//!     let mut outputs = outputs.view_mut()?.slice(0, ..batch.size(0)?)?;
//!     batch.matmul_into(&weights, &mut outputs)?;
//!     outputs.mul_assign(2.0)?;
//! }
//! assert_eq!((outputs.get(&[3, 1])?.to_f64(), pool.stats().allocations), (Some(402.0), asked));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`DataSet`] is read by rows, however large its files are, and a [pass](DataSet::pass) takes no more than its budget:
//!
//! ```
//! # let path = std::env::temp_dir().join(format!("millpond-door-{}.f32", std::process::id()));
//! # std::fs::write(&path, [0u8; 4 * 784 * 100])?;
//! use millpond::{DataSet, Order};
//!
//! let images = DataSet::<f32>::builder().file(&path).row(784).open()?;
//! let first = images.batch(0, 64)?;                        // a pooled buffer of 64 rows
//! let passed = images.pass().order(Order::shuffled(7)).budget(8 << 20).for_each(|chunk| {
//!     chunk.iter_mut().for_each(|pixel| *pixel /= 255.0);  // while the next chunk is read
//! })?;
//! assert_eq!((first.len(), passed.rows), (64 * 784, 100));
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A structure of arrays has a pooled buffer for each field, written by a derive:
//!
#![cfg_attr(feature = "derive", doc = "```")]
#![cfg_attr(not(feature = "derive"), doc = "```ignore")]
//! use millpond::Soa;
//!
//! #[derive(Clone, Copy, Soa)]
//! struct Particle {
//!     position: [f32; 3],
//!     velocity: [f32; 3],
//!     kind: u8,
//! }
//!
//! let mut particles = ParticleVec::new()?;
//! particles.try_push(Particle { position: [0.0; 3], velocity: [1.0, 2.0, 3.0], kind: 7 })?;
//! let fields = particles.slices_mut();
//! for (x, v) in fields.position.as_flattened_mut().iter_mut().zip(fields.velocity.as_flattened()) {
//!     *x += 0.5 * v;
//! }
//! assert_eq!(particles.position()[0], [0.5, 1.0, 1.5]);
//! println!("{}", Particle::layout_report());               // what padding would lose in an array of structures
//! # Ok::<(), millpond::AllocError>(())
//! ```
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `matrixmultiply` (default) | products of matrices of `f32` and `f64` at a processor's speed |
//! | `quanta` (default) | times of events from the processor's counter |
//! | `allocator-api2`, `allocator-api2-02` | `Pool` as the `Allocator` of those versions, for collections |
//! | `cuda` | pools of CUDA devices, pinned and managed memory, copies, tensors and kernels; NVIDIA's driver is needed when the program runs only |
//! | `cudarc` | exchange with cudarc: its streams, slices and views |
//! | `derive` | `#[derive(Soa)]`, and [`limits`](mod@limits) as an attribute of tests |
//! | `dlpack` | tensors to and from other libraries in the process |
//! | `half` | `f16` and `bf16` as elements |
//! | `ndarray` | views of tensors as ndarray's, and of its arrays as ours |
//! | `num-complex` | its numbers as elements |
//! | `rayon` | large operations, and functions over elements, on several threads |
//! | `record` | recordings of all pools, [`Recorder`] and `MILLPOND_RECORD`, and snapshots, [`snapshot`] and `MILLPOND_OOM_SNAPSHOT`, as Arrow files; with `stacks` |
//! | `safetensors` | files of tensors by name, loaded or mapped |
//! | `serde` | tensors and types of elements written and read |
//! | `stacks` | stacks in the account of live blocks |
//! | `tracing` | events to `tracing`, with the span they happen in |
//!
//! Only this crate turns an address into memory, and it calls the system about memory in one place, `os`; files are mapped by
//! `memmap2`, where a data set is.
#![cfg_attr(loom, allow(unused, reason = "models take a part of the crate"))]
#![deny(unsafe_op_in_unsafe_fn)]

pub use millpond_engine as engine;

#[cfg(all(doctest, target_os = "linux"))]
mod book;

#[cfg(target_os = "linux")]
mod block;
#[forbid(unsafe_code)]
mod budget;
#[cfg(target_os = "linux")]
mod buffer;
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
mod fork;
#[forbid(unsafe_code)]
mod ledger;
mod memory;
#[forbid(unsafe_code)]
mod post_mortem;
#[forbid(unsafe_code)]
mod ranked;
#[forbid(unsafe_code)]
mod reentrancy;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod registry;
#[forbid(unsafe_code)]
mod scope;
#[cfg(all(feature = "record", target_os = "linux"))]
#[forbid(unsafe_code)]
mod session;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod stats;
#[forbid(unsafe_code)]
mod tag;
#[forbid(unsafe_code)]
mod tally;
#[forbid(unsafe_code)]
mod thread;
#[forbid(unsafe_code)]
mod time;
#[forbid(unsafe_code)]
mod watchers;

#[cfg(target_os = "linux")]
mod global;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod gpu;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
pub mod limits;
#[cfg(target_os = "linux")]
mod metadata;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
pub mod monitor;
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
#[forbid(unsafe_code)]
pub mod pressure;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod profile;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod profiler;
#[cfg(all(feature = "record", target_os = "linux"))]
#[forbid(unsafe_code)]
mod recorder;
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
#[forbid(unsafe_code)]
mod tenant;
#[cfg(target_os = "linux")]
mod tensor;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod threads;
#[cfg(target_os = "linux")]
mod unpooled;
#[cfg(target_os = "linux")]
mod workspace;

/// CUDA: devices, streams, pools of device memory, copies, kernels and device tensors.
///
/// NVIDIA's driver is needed when the program runs, and nothing of CUDA when it is built. Without a driver every function returns an
/// error that says so. A function that the driver lacks or refuses is an error too.
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub mod cuda {
    pub use crate::gpu::*;
    #[cfg(feature = "derive")]
    pub use crate::soa::{DeviceField, DeviceSoa};
    pub use crate::tensor::{DeviceOperand, DeviceOutput, DeviceTensor, DeviceTensorMut};
    pub use crate::workspace::device::{DeviceNamed, DeviceScratch, DeviceWorkspace, DeviceWorkspaceBuilder};
}

#[cfg(target_os = "linux")]
pub use block::{ForeignMemory, Origin, foreign_memory};
pub use budget::{Budget, BudgetBuilder, BudgetError, Charge, Measure, Refusal, Report, SoftCrossing, Wait};
#[cfg(target_os = "linux")]
pub use buffer::{Buffer, Leaks, LengthError, RawBuffer, SharedBuffer, leaks};
pub use bytemuck;
#[cfg(target_os = "linux")]
pub use data::{
    Access, Chunk, DataError, DataSet, DataSetBuilder, Mapped, MappedNpy, Npy, NpyError, Order, Pass,
    Progress,
};
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub use data::{DeviceChunk, DevicePass};
#[cfg(all(feature = "safetensors", target_os = "linux"))]
pub use data::{MappedTensors, SafeTensors, SafeTensorsError, TensorInfo};
pub use device::Device;
pub use dtype::{DType, DTypeError, Element, ParseDTypeError};
pub use error::{AllocError, OutOfMemory};
pub use event::{EventKind, Facts, PoolLabel};
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
pub use millpond_derive::{Soa, limits};
#[cfg(target_os = "linux")]
pub use monitor::{Monitor, Snapshot};
#[cfg(target_os = "linux")]
pub use pinned::{Pinned, is_pinned, pinned_bytes};
#[cfg(target_os = "linux")]
pub use pool::{
    FaultPlace, FaultReport, GuardStats, LeakCheck, Pool, PoolBuilder, PoolError, PoolRef, Prewarm,
    ReadSettings, describe_fault,
};
#[cfg(target_os = "linux")]
pub use pools::{
    Pools, PoolsBlock, PoolsBlocks, PoolsBuilder, PoolsEntry, PoolsScope, PoolsStats, alloc, alloc_from,
    alloc_from_fn, alloc_zeroed, collect_garbage, compact, empty_cache, memory_stats, pools,
    set_default_pools, storage,
};
pub use post_mortem::{
    BudgetFigures, Holding, Least, Lister, Method, PostMortem, SpaceFigures, Survey, Text, Top,
};
#[cfg(target_os = "linux")]
pub use pressure::{Pressure, Watch, pressure};
#[cfg(target_os = "linux")]
pub use profile::{PoolProfile, ProfileReport, profile};
#[cfg(target_os = "linux")]
pub use profiler::{PoolUse, Profiler, ProfilerReport, ProfilerSummary, TagPeak, profiler};
#[cfg(all(feature = "record", target_os = "linux"))]
pub use recorder::{
    RecordError, RecordReport, RecordSettingError, RecordStacks, Recorder, RecorderBuilder, SnapshotReport,
    Snapshots, mark, snapshot, snapshot_on_oom, step,
};
#[cfg(target_os = "linux")]
pub use rental::{Rental, RentalStats, Rented};
#[cfg(all(feature = "derive", target_os = "linux"))]
pub use soa::{Soa, SoaChunks, SoaField, SoaIndexError, SoaLayout};
#[cfg(target_os = "linux")]
pub use stats::PoolStats;
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
    Batches, BatchesMut, Destination, EmptyTensor, MAX_RANK, Operand, Output, Scalar, SharedOrCopied,
    StillShared, Tensor, TensorError, TensorMut, TensorRef,
};
pub use thread::thread_number;
#[cfg(target_os = "linux")]
pub use threads::{set_threads, threads};
pub use time::Time;
#[cfg(target_os = "linux")]
pub use unpooled::Unpooled;
#[cfg(feature = "tracing")]
pub use watchers::TracingSubscriber;
pub use watchers::{Context, Event, Sees, Subscriber, SubscriptionId, Watchers};
#[cfg(target_os = "linux")]
pub use workspace::{Named, Scratch, Workspace, WorkspaceBuilder, WorkspaceError, WorkspaceStats};

/// What the code that `derive(Soa)` makes calls.
#[cfg(all(feature = "derive", target_os = "linux"))]
#[doc(hidden)]
pub mod __soa {
    pub use crate::soa::{Column, Cut, Split, arrange, chunks, forbid_padding, here, padding_after};
}
