//! Accounts of live blocks that pools keep only while there is a [`Watching`].

use super::{LivePool, live_pools};
use crate::ledger::Ledger;
use millpond_os::fork::Participant;
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::inside;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of [`Watching`]s. Locked while accounts begin or end for them.
static COUNTING: Ranked<u32> = Ranked::new(Rank::Counting, 0);
/// True if there is any [`Watching`].
static WANTED: AtomicBool = AtomicBool::new(false);

static FORKS: Participant = Participant::new(Rank::Counting, || Box::new(COUNTING.lock()));

fn counting() -> Locked<'static, u32> {
    FORKS.register();
    COUNTING.lock()
}

/// Keeps an account of live blocks in every pool, including pools that are created later. The accounts that were begun
/// for this end with the last value.
#[derive(Debug)]
pub struct Watching(());

impl Watching {
    /// Begins an account in every pool without one, and in every pool that is created later.
    pub fn begin() -> Self {
        // The pools are dropped after the lock is released.
        let pools;
        // Allocations under the lock must not use the program's pool.
        let _inside = inside();
        let mut counting = counting();
        *counting += 1;
        // This comes before the pools are listed, so that a pool that is created concurrently either reads this or is
        // in the list.
        WANTED.store(true, Ordering::SeqCst);
        pools = live_pools();
        pools.iter().for_each(|pool| begin_account(&**pool));
        Self(())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // The pools are dropped after the lock is released.
        let pools;
        let _inside = inside();
        let mut counting = counting();
        *counting -= 1;
        if *counting > 0 {
            return;
        }
        WANTED.store(false, Ordering::SeqCst);
        pools = live_pools();
        pools.iter().for_each(|pool| end_passing_account(&**pool));
    }
}

/// Returns whether a pool that is created now needs an account.
pub fn are_wanted() -> bool {
    WANTED.load(Ordering::SeqCst)
}

/// Begins an account of all blocks that ends with the last [`Watching`], unless the pool has an account.
pub fn begin_account(pool: &dyn LivePool) {
    if pool.account().is_some() {
        return;
    }
    let made = pool.passing_account();
    pool.change_watchers(&|watchers| match watchers.ledger() {
        // Another thread was first.
        Some(_) => watchers.clone(),
        None => watchers.with_ledger(Some(made.clone())),
    });
}

/// Ends an account that [`begin_account`] began, unless another user relies on it.
fn end_passing_account(pool: &dyn LivePool) {
    let is_passing = |ledger: Option<&Arc<Ledger>>| ledger.is_some_and(|ledger| ledger.is_passing());
    if is_passing(pool.account().as_ref()) {
        pool.change_watchers(&|watchers| {
            if is_passing(watchers.ledger()) {
                watchers.with_ledger(None)
            } else {
                watchers.clone()
            }
        });
    }
}

/// Returns the names of the pools that keep an account of only some blocks. Considers the given pools, or all pools if
/// the list is empty.
pub fn sampled(pools: &[u64]) -> Vec<String> {
    let mut names = Vec::new();
    for pool in live_pools() {
        let label = pool.label();
        let counts = pools.is_empty() || pools.contains(&label.id);
        if counts && pool.account().is_some_and(|account| account.weight() > 1) {
            names.push(label.name.to_string());
        }
    }
    names
}
