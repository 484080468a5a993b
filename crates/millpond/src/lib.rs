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

#[forbid(unsafe_code)]
mod budget;
#[cfg(target_os = "linux")]
mod buffer;
#[forbid(unsafe_code)]
mod error;
mod memory;
#[forbid(unsafe_code)]
mod post_mortem;

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

pub use budget::{Budget, BudgetBuilder, BudgetError, Charge, Measure, Refusal, Report, SoftCrossing, Wait};
#[cfg(target_os = "linux")]
pub use buffer::{Buffer, Plain};
pub use error::{AllocError, OutOfMemory};
#[cfg(target_os = "linux")]
pub use host::{Host, HostBuilder, HostError, HugePages, Node};
pub use memory::{MemoryKind, MemorySource};
#[cfg(target_os = "linux")]
pub use pinned::{Pinned, is_pinned, pinned_bytes};
#[cfg(target_os = "linux")]
pub use pool::{Pool, PoolBuilder, PoolError, PoolStats, Raw};
pub use post_mortem::{
    BudgetFigures, Holding, Least, Lister, Method, PostMortem, SpaceFigures, Survey, Text, Top,
};
#[cfg(target_os = "linux")]
pub use pressure::{Pressure, Watch, pressure};
