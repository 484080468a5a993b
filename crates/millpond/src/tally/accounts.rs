//! The accounts that tallies read: each pool of the process has one while somebody counts.

use crate::device::Device;
use crate::fork::Participant;
use crate::ledger::Ledger;
use crate::memory::MemoryKind;
use crate::pool::{PoolStats, all_heaps};
use crate::ranked::{Locked, Rank, Ranked};
use crate::reentrancy::inside;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many count. Held while accounts begin or end for that.
static COUNTING: Ranked<u32> = Ranked::new(Rank::Counting, 0);
/// Whether anybody does.
static WANTED: AtomicBool = AtomicBool::new(false);

static FORKS: Participant = Participant::new(Rank::Counting, || Box::new(COUNTING.lock()));

fn counting() -> Locked<'static, u32> {
    FORKS.register();
    COUNTING.lock()
}

/// As long as it lives, every pool keeps an account of live blocks, those made later too. Those that were begun for this
/// end with the last one.
#[derive(Debug)]
pub(crate) struct Watching(());

impl Watching {
    pub(crate) fn begin() -> Self {
        #[cfg(feature = "cuda")]
        let _devices;
        // Nothing that this allocates is asked of the program's pool under the lock.
        let _inside = inside();
        let mut counting = counting();
        *counting += 1;
        // Before the pools are looked at: one that is made meanwhile finds this, or is found.
        WANTED.store(true, Ordering::SeqCst);
        all_heaps().iter().for_each(|heap| heap.begin_account());
        #[cfg(feature = "cuda")]
        {
            _devices = crate::cuda::begin_accounts();
        }
        Self(())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        let _devices;
        let _inside = inside();
        let mut counting = counting();
        *counting -= 1;
        if *counting > 0 {
            return;
        }
        WANTED.store(false, Ordering::SeqCst);
        all_heaps().iter().for_each(|heap| heap.end_passing_account());
        #[cfg(feature = "cuda")]
        {
            _devices = crate::cuda::end_passing_accounts();
        }
    }
}

/// Whether somebody counts, so that a pool that is made needs an account.
pub(crate) fn are_wanted() -> bool {
    WANTED.load(Ordering::SeqCst)
}

/// A pool of the process, while it is shown.
pub(crate) struct AnyPool<'a> {
    pub(crate) number: u64,
    pub(crate) name: &'a str,
    pub(crate) device: Device,
    pub(crate) kind: MemoryKind,
    pub(crate) account: Option<&'a Arc<Ledger>>,
    pub(crate) stats: &'a dyn Fn() -> PoolStats,
}

/// Shows every pool of the process.
pub(crate) fn each_pool(mut show: impl FnMut(&AnyPool<'_>)) {
    for heap in all_heaps() {
        show(&AnyPool {
            number: heap.number(),
            name: heap.name(),
            device: Device::Host,
            kind: heap.kind(),
            account: heap.ledger().as_ref(),
            stats: &|| heap.stats(),
        });
    }
    #[cfg(feature = "cuda")]
    crate::cuda::each_pool(&mut show);
}

/// The names of those of these pools, or of all, that keep an account of some blocks only.
pub(crate) fn sampled(pools: &[u64]) -> Vec<String> {
    let mut names = Vec::new();
    each_pool(|pool| {
        let counts = pools.is_empty() || pools.contains(&pool.number);
        if counts && pool.account.is_some_and(|account| account.weight() > 1) {
            names.push(pool.name.to_owned());
        }
    });
    names
}
