//! A set of pools for every kind of memory, the default set, and scopes that measure what a program allocates.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Other programs should use
//! millpond, because the names that it does not re-export may change without notice.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod limits;
pub mod pools;
pub mod profile;
pub mod profiler;

pub use pools::{
    Pools, PoolsBlock, PoolsBlocks, PoolsBuilder, PoolsEntry, PoolsScope, PoolsStats, alloc, alloc_from,
    alloc_from_fn, alloc_zeroed, collect_garbage, compact, empty_cache, memory_stats, pools,
    set_default_pools, storage,
};
pub use profile::{PoolProfile, ProfileReport, profile};
pub use profiler::{PoolUse, Profiler, ProfilerReport, ProfilerSummary, TagPeak, profiler};
