//! Placement of blocks in memory, as safe bookkeeping on integers.
//!
//! The engine decides *where* bytes are placed. It never accesses memory, an operating system or a clock. Addresses and
//! streams are numbers, and time is the order of calls. The same [`Engine`] serves a pool on a CUDA device, an arena on
//! the host and a simulated 80 GiB device. Only the [`Source`] differs. A replay is therefore exact, because it runs
//! the same code as the pool.
//!
//! ```text
//!   Engine            counts, defers, checks        stats, meter, deferred
//!     Policy          chooses a block               policies/*, one file each
//!       Space         tiles segments into blocks    space
//!       an index      finds free blocks by size     index: exact or close fits
//!     Supply          meters every source call      supply
//!       Source        gives and takes ranges        source, simulated, wrappers
//! ```
//!
//! A lower row never depends on a higher one.
//!
//! ```
//! use millpond_engine::{Engine, Request, Settings, Simulated, Stream, policies};
//!
//! let policy = policies::build("torch-native", &Settings::default())?;
//! let mut engine = Engine::new(policy, Simulated::new());
//! let block = engine.allocate(Request::new(3 << 20, Stream::DEFAULT))?;
//! assert_eq!(engine.stats().allocated.current, 3 << 20);
//! assert_eq!(engine.stats().reserved.current, 20 << 20); // PyTorch takes 20 MiB for it
//! engine.free(block, &[]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod block;
mod compaction;
mod conf;
mod costs;
mod deferred;
mod engine;
mod error;
mod index;
mod meter;
pub mod plan;
pub mod policies;
mod policy;
mod simulated;
mod size;
mod source;
mod space;
mod stale;
mod stats;
mod supply;
mod wrappers;

pub use block::{Block, Group, Request, Stream};
pub use compaction::Compaction;
pub use conf::{
    Amount, ConfError, Key, MillpondConf, RetainConf, RoundupDivisions, Settings, TorchBackend, TorchConf,
};
pub use costs::{Costs, CostsError};
pub use deferred::Deferred;
pub use engine::Engine;
pub use error::{AllocError, SourceError};
pub use index::{Entry, SizeIndex};
pub use meter::{Calls, Meter};
pub use policy::{Adopted, Fidelity, Mark, Policy, Refusal};
pub use simulated::{Change, Fault, Simulated};
pub use size::{ParseSizeError, display_size, display_size_exact, display_size_up, parse_size};
pub use source::{Event, Range, Segment, Source};
pub use space::{BlockId, Piece, PieceState, Space, State};
pub use stats::{Gauge, Stats};
pub use supply::{Aliased, Supply};
pub use wrappers::{
    CallKind, Counted, Counts, Failure, Faulty, Limit, Limited, Logged, SourceEvent, SourceWrapper, Tally,
    When,
};
#[doc(hidden)]
pub use wrappers::{HeldMemory, LimitedMemory};
