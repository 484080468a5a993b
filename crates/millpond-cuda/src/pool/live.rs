//! A device pool as seen by recordings, the monitor and the profiler.

use super::DevicePool;
use super::shared::all_pools;
use super::upkeep::stats_of;
use millpond_account::budget::Budget;
use millpond_account::event::PoolLabel;
use millpond_account::ledger::{Ledger, LedgerBuilder, Tracking};
use millpond_account::registry::{self, Kind, LivePool, Look};
use millpond_account::stats::PoolStats;
use millpond_account::watchers::Watchers;
use millpond_engine::{Compaction, ConfError, PieceState};
use millpond_os::device::Device;
use std::sync::Arc;

/// Registers the device pools among the live pools.
pub(super) fn provide() {
    registry::provide(Kind::Device, || {
        let live = |pool| -> Box<dyn LivePool> { Box::new(DevicePool(pool)) };
        all_pools().into_iter().map(live).collect()
    });
}

impl LivePool for DevicePool {
    fn label(&self) -> PoolLabel {
        self.0.label()
    }

    fn device(&self) -> Device {
        Device::Cuda(self.0.parts.device.number())
    }

    fn stats(&self) -> PoolStats {
        DevicePool::stats(self)
    }

    /// Returns `None` while another thread is in the engine, because that thread may be waiting for the device.
    fn look(&self) -> Option<Look> {
        self.0.try_with_core(|core| Look {
            stats: stats_of(core),
            stalls: core.memory.stats().stalls,
            policy: core.memory.policy().name(),
        })
    }

    fn limit(&self) -> Option<u64> {
        Some(DevicePool::limit(self)).filter(|bytes| *bytes < u64::MAX)
    }

    fn budgets(&self) -> Vec<Budget> {
        let parts = &self.0.parts;
        parts.budget.iter().chain(&parts.reserved).cloned().collect()
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn watchers(&self) -> Arc<Watchers> {
        self.0.watchers()
    }

    fn account(&self) -> Option<Arc<Ledger>> {
        self.0.ledger()
    }

    fn track(&self, account: Option<LedgerBuilder>) {
        self.0.track(account);
    }

    fn reports_leaks(&self) -> bool {
        self.0.parts.leak_report
    }

    fn trim(&self) {
        DevicePool::trim(self);
    }

    fn compact(&self) -> Compaction {
        DevicePool::compact(self)
    }

    fn clear(&self) {
        DevicePool::clear(self);
    }

    fn collect_garbage(&self) {
        DevicePool::collect_garbage(self);
    }

    fn reset_peak(&self) {
        DevicePool::reset_peak(self);
    }

    fn configure(&self, settings: &str) -> Result<(), ConfError> {
        self.apply(self.change(settings)?)
    }

    fn check_change(&self, settings: &str) -> Result<(), ConfError> {
        self.change(settings).map(|_| ())
    }

    fn change_watchers(&self, change: &dyn Fn(&Watchers) -> Watchers) {
        self.0.change_watchers(|watchers| (change(watchers), ()));
    }

    fn passing_account(&self) -> Arc<Ledger> {
        let made = Arc::new(Ledger::builder(Tracking::All).times(true).stacks(true).build());
        made.set_passing(true);
        made
    }

    /// Lists the ranges in the order of the policy, under the pool's lock. In a forked process there are none.
    fn each_range(&self, each: &mut dyn FnMut(u64, u64)) {
        let _ = self.0.with_core(|core| {
            core.memory.policy().layout(&mut |piece| {
                if piece.state != PieceState::Unmapped {
                    each(piece.address, piece.bytes);
                }
            });
        });
    }

    /// Lists the blocks that callers hold, and those that wait for a stream, under the pool's lock. The stream is 0, because the layout
    /// does not contain it.
    fn each_placed(&self, each: &mut dyn FnMut(u64, u64, u32)) -> bool {
        let told = self.0.with_core(|core| {
            let returned = &core.returned;
            core.memory.policy().layout(&mut |piece| {
                let came_back = || returned.iter().any(|of| of.block.address() == piece.address);
                if piece.state == PieceState::Live && !came_back() {
                    each(piece.address, piece.bytes, 0);
                }
            });
        });
        told.is_ok()
    }
}
