//! The memory layer for tensor and GPU computing.
//!
//! This crate is the door to the others. It opens onto the engine that places blocks, the same code that
//! `millpond replay` runs on a simulated card, and onto the sources of host memory: [`Host`], [`Pinned`].
//! Pools, buffers and tensors come here, over the engine's [`Source`](engine::Source).
//!
//! ```
//! use millpond::engine::{Engine, Request, Settings, Simulated, Stream, policies};
//!
//! let card = Simulated::new().with_capacity(Some(80 << 30));
//! let mut engine = Engine::new(policies::build("millpond", &Settings::default())?, card);
//! let block = engine.allocate(Request::new(1 << 30, Stream::DEFAULT))?;
//! assert_eq!(engine.stats().reserved.current, 1 << 30);
//! engine.free(block, &[]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
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
pub mod pressure;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod profile;
#[cfg(target_os = "linux")]
#[deny(unsafe_code)]
mod rental;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod storage;
#[cfg(target_os = "linux")]
mod tenant;
#[cfg(target_os = "linux")]
mod unpooled;
#[cfg(target_os = "linux")]
mod workspace;

pub use budget::{Budget, BudgetBuilder, BudgetError, Charge, Measure, Refusal, Report, SoftCrossing, Wait};
#[cfg(target_os = "linux")]
pub use buffer::{Buffer, Leaks, LengthError, PoolRef, RawBuffer, SharedBuffer, leaks};
pub use bytemuck;
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
#[cfg(target_os = "linux")]
pub use pinned::{Pinned, is_pinned, pinned_bytes};
#[cfg(target_os = "linux")]
pub use pool::{Pool, PoolBuilder, PoolError, PoolStats, Prewarm};
pub use post_mortem::{
    BudgetFigures, Holding, Least, Lister, Method, PostMortem, SpaceFigures, Survey, Text, Top,
};
#[cfg(target_os = "linux")]
pub use pressure::{Pressure, Watch, pressure};
#[cfg(target_os = "linux")]
pub use profile::{PoolProfile, ProfileReport, profile};
#[cfg(target_os = "linux")]
pub use rental::{Rental, RentalStats, Rented};
#[cfg(target_os = "linux")]
pub use storage::Storage;
#[doc(hidden)]
pub use tag::TagSite as __TagSite;
pub use tag::{Tag, TagScope, tag};
#[cfg(target_os = "linux")]
pub use tenant::Tenant;
pub use thread::thread_number;
pub use time::Time;
#[cfg(target_os = "linux")]
pub use unpooled::Unpooled;
#[cfg(target_os = "linux")]
pub use workspace::{Named, Scratch, Workspace, WorkspaceBuilder, WorkspaceError, WorkspaceStats};
