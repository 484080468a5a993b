//! The interface of a host pool for recordings, the monitor and the profiler.

use super::fork;
use super::heap::{Heap, lock};
use millpond_account::budget::Budget;
use millpond_account::event::PoolLabel;
use millpond_account::ledger::{Ledger, LedgerBuilder, Tracking};
use millpond_account::registry::{self, Kind, LivePool, Look};
use millpond_account::stats::PoolStats;
use millpond_account::watchers::Watchers;
use millpond_engine::{Compaction, ConfError, PieceState};
use millpond_os::device::Device;
use millpond_os::reentrancy::inside;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Adds the host's pools to the list of live pools.
pub(super) fn provide() {
    registry::provide(Kind::Host, || {
        let _inside = inside();
        let live = |heap| -> Box<dyn LivePool> { Box::new(heap) };
        fork::all().into_iter().map(live).collect()
    });
}

impl LivePool for &'static Heap {
    fn label(&self) -> PoolLabel {
        lock(&self.watchers).pool().clone()
    }

    fn device(&self) -> Device {
        Device::Host
    }

    fn stats(&self) -> PoolStats {
        Heap::stats(self)
    }

    fn look(&self) -> Option<Look> {
        Some(Look {
            stats: Heap::stats(self),
            stalls: self.stalls(),
            policy: self.policy(),
        })
    }

    fn limit(&self) -> Option<u64> {
        Heap::limit(self)
    }

    fn budgets(&self) -> Vec<Budget> {
        Heap::budgets(self).cloned().collect()
    }

    fn is_closed(&self) -> bool {
        Heap::is_closed(self)
    }

    fn watchers(&self) -> Arc<Watchers> {
        Heap::watchers(self)
    }

    fn account(&self) -> Option<Arc<Ledger>> {
        self.ledger()
    }

    fn track(&self, account: Option<LedgerBuilder>) {
        Heap::track(self, account);
    }

    /// Returns false in the child of a fork, because its live blocks are copies of the parent's.
    fn reports_leaks(&self) -> bool {
        self.reports_in.load(Ordering::Relaxed) == process::id()
    }

    fn trim(&self) {
        Heap::trim(self);
    }

    fn compact(&self) -> Compaction {
        Heap::compact(self)
    }

    fn clear(&self) {
        Heap::clear(self);
    }

    fn collect_garbage(&self) {
        Heap::collect_garbage(self);
    }

    fn reset_peak(&self) {
        self.reset_peaks();
    }

    fn configure(&self, settings: &str) -> Result<(), ConfError> {
        Heap::configure(self, settings)
    }

    fn check_change(&self, settings: &str) -> Result<(), ConfError> {
        Heap::check_change(self, settings)
    }

    fn change_watchers(&self, change: &dyn Fn(&Watchers) -> Watchers) {
        Heap::change_watchers(self, |watchers| (change(watchers), ()));
    }

    /// Reuses the previous temporary ledger, unless it is still in use.
    fn passing_account(&self) -> Arc<Ledger> {
        let spare = {
            let _inside = inside();
            let ledgers = lock(&self.ledgers);
            let spare = |ledger: &&Arc<Ledger>| ledger.is_passing() && Arc::strong_count(ledger) == 1;
            ledgers.iter().find(spare).map(Arc::clone)
        };
        if let Some(spare) = spare {
            spare.renew();
            return spare;
        }
        let made = Heap::account(self, Ledger::builder(Tracking::All).times(true).stacks(true));
        made.set_passing(true);
        made
    }

    /// Calls `each` with the mapped ranges in the order of the policy, under the pool's lock.
    fn each_range(&self, each: &mut dyn FnMut(u64, u64)) {
        let _inside = inside();
        self.with_engine(|core| {
            core.memory.policy().layout(&mut |piece| {
                if piece.state != PieceState::Unmapped {
                    each(piece.address, piece.bytes);
                }
            });
        });
    }

    /// Calls `each` with the blocks that are not cut from spans, under the pool's lock. The threads' caches are drained first. Returns
    /// false if the pool guards blocks, because the places of guarded blocks are not listed.
    fn each_placed(&self, each: &mut dyn FnMut(u64, u64, u32)) -> bool {
        if self.guard.is_some() {
            return false;
        }
        let _inside = inside();
        self.drain_caches();
        self.with_engine(|core| core.each_large(|address, bytes| each(address as u64, bytes, 0)));
        true
    }
}
