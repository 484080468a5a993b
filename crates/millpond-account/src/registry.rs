//! The live pools of the process.
//!
//! Recordings, the monitor and the profiler go through all pools, and see a pool as a [`LivePool`]. Each kind of pool
//! [provides](provide) a function that returns the pools of its kind.
//!
//! The recorder and the monitor are below the pools, so that a pool can call them directly when it is created. They could not register a
//! hook for new pools: nothing of a library runs before `main`, so a program that does not name the recorder would not be recorded.

mod accounts;

pub use accounts::{Watching, are_wanted, begin_account, sampled};

use crate::budget::Budget;
use crate::event::PoolLabel;
use crate::ledger::{Ledger, LedgerBuilder};
use crate::stats::PoolStats;
use crate::watchers::Watchers;
use millpond_engine::{Compaction, ConfError};
use millpond_os::device::Device;
use std::sync::{Arc, OnceLock};

/// A pool of this process that has memory.
pub trait LivePool {
    /// Returns the number and the name of the pool, its kind of memory, and its policy.
    fn label(&self) -> PoolLabel;

    /// Returns the device of the memory.
    fn device(&self) -> Device;

    /// Returns the statistics.
    fn stats(&self) -> PoolStats;

    /// Returns the current figures, or `None` if the pool is busy and the caller would have to wait.
    fn look(&self) -> Option<Look>;

    /// Returns the most bytes that the pool may take from its source, or `None` if there is no such limit.
    fn limit(&self) -> Option<u64>;

    /// Returns the budgets to which its blocks and its reserved bytes are charged.
    fn budgets(&self) -> Vec<Budget>;

    /// Returns whether the pool only waits for its last blocks.
    fn is_closed(&self) -> bool;

    /// Returns the observers. The caller holds no lock when it drops them, because the code of an observer may run then.
    fn watchers(&self) -> Arc<Watchers>;

    /// Replaces the observers by those that `change` returns.
    fn change_watchers(&self, change: &dyn Fn(&Watchers) -> Watchers);

    /// Creates an account of all blocks that ends with the last user of it.
    fn passing_account(&self) -> Arc<Ledger>;

    /// Calls `each` with the first address and the bytes of each range that the pool has from its source.
    fn each_range(&self, each: &mut dyn FnMut(u64, u64));

    /// Calls `each` with the address, the bytes and the stream of each block whose place is known. Returns whether the pool knows any
    /// places.
    fn each_placed(&self, each: &mut dyn FnMut(u64, u64, u32)) -> bool;

    /// Returns the account of live blocks.
    fn account(&self) -> Option<Arc<Ledger>>;

    /// Begins an account of live blocks, or ends it.
    fn track(&self, account: Option<LedgerBuilder>);

    /// Returns whether the blocks that are live when this process ends are reported.
    fn reports_leaks(&self) -> bool;

    /// Returns all memory that no block uses to the source.
    fn trim(&self);

    /// Returns memory to the source like [`trim`](Self::trim), and returns a report.
    fn compact(&self) -> Compaction;

    /// Returns all memory that no block uses to the source, and resets the counts and peaks.
    fn clear(&self);

    /// Finishes pending work: completed events, and memory that has been unused for long.
    fn collect_garbage(&self);

    /// Resets the peaks to the current values.
    fn reset_peak(&self);

    /// Changes settings, as `key:value,key:value`. Keys that only pools of another kind of memory have are ignored.
    ///
    /// # Errors
    /// Returns an error if a setting is invalid, if it cannot be changed in a live pool, or if the policy does not have it. In that case
    /// nothing is changed.
    fn configure(&self, settings: &str) -> Result<(), ConfError>;

    /// Checks a [change of settings](Self::configure) without making it.
    ///
    /// # Errors
    /// Returns the errors of [`configure`](Self::configure).
    fn check_change(&self, settings: &str) -> Result<(), ConfError>;
}

/// The figures of a pool that the monitor reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// The statistics.
    pub stats: PoolStats,
    /// The number of calls in which pages were moved or returned, or a device was waited for.
    pub stalls: u64,
    /// The name of the placement policy.
    pub policy: &'static str,
}

/// A function that returns the live pools of one kind.
pub(crate) type Provider = fn() -> Vec<Box<dyn LivePool>>;

/// The kinds of pools, in the order in which they are listed.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Pools of host memory.
    Host,
    /// Pools of device memory.
    Device,
}

static PROVIDERS: [OnceLock<Provider>; 2] = [const { OnceLock::new() }; 2];

/// Makes [`live_pools`] call `provider` for the pools of this kind from now on.
pub fn provide(kind: Kind, provider: Provider) {
    let place = &PROVIDERS[kind as usize];
    if place.get().is_none() {
        // If the process forked while another thread was setting the value, the child would wait for that thread forever.
        let _no_forks = millpond_os::fork::prevent();
        let _ = place.set(provider);
    }
}

/// Returns all live pools of the process. A pool may end when its value is dropped, so the values are not dropped under a lock.
pub fn live_pools() -> Vec<Box<dyn LivePool>> {
    let providers = PROVIDERS.iter().filter_map(OnceLock::get);
    providers.flat_map(|provider| provider()).collect()
}
