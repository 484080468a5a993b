//! The account of memory: tags, events, budgets, ledgers of live blocks, and reports of failed requests.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Other programs should use millpond,
//! because the names that are only for millpond's own crates change without notice.

#![cfg_attr(loom, allow(unused, reason = "models take a part of the crate"))]
#![forbid(unsafe_code)]

pub mod budget;
pub mod error;
pub mod event;
pub mod ledger;
pub mod memory;
pub mod post_mortem;
#[cfg(target_os = "linux")]
pub mod registry;
pub mod scope;
#[cfg(target_os = "linux")]
pub mod session;
#[cfg(target_os = "linux")]
pub mod stats;
pub mod table;
pub mod tags;
pub mod tally;
pub mod watchers;

pub use budget::{Budget, BudgetBuilder, BudgetError, Charge, Measure, Refusal, Report, SoftCrossing, Wait};
pub use error::{AllocError, OutOfMemory};
pub use event::{BlockInfo, EventKind, PoolLabel};
pub use ledger::{
    Frame, FreedBlock, Leak, LeakGroup, LeakReport, Ledger, LedgerBuilder, Mark, Record, Sampler, Stack,
    TagTotal, Tracking, WrongFree,
};
pub use memory::MemoryKind;
pub use post_mortem::{
    BudgetFigures, Holding, Least, Lister, Method, PostMortem, SpaceFigures, Survey, Text, Top,
};
#[cfg(target_os = "linux")]
pub use stats::PoolStats;
#[doc(hidden)]
pub use tags::TagSite as __TagSite;
pub use tags::{Tag, TagScope, tag};
#[cfg(feature = "tracing")]
pub use watchers::TracingSubscriber;
pub use watchers::{Context, Event, EventFilter, Subscriber, SubscriptionId, Watchers};
