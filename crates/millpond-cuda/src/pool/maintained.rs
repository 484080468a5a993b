//! The pool as seen by the background thread that gives memory back.
//!
//! Before a pool gives memory back, it waits for the device under its lock. Background work must not delay other threads with this wait. A
//! pool therefore gives memory back only at a tick at which no capture is in progress and no stream that the device's pools know has work.
//! Other ticks do not count. Ticks at which another thread holds the pool's lock do not count either, because that thread may be waiting
//! for the device. The driver is not called while no memory can have been idle for long enough.

use super::shared::{Shared, lock, pools_of};
use super::state::Core;
use crate::{captured, fork};
use millpond_engine::Mark;
use millpond_os::pressure::Pressure;
use millpond_pool::pool::{Maintained, PressureTrigger};
use std::sync::{Arc, Weak};

/// A weak reference, which does not keep the pool alive.
pub(super) struct MaintainedPool(Weak<Shared>);

impl MaintainedPool {
    pub(super) fn of(pool: &Arc<Shared>) -> Self {
        Self(Arc::downgrade(pool))
    }

    /// Returns the pool. Returns `None` if it has ended or belongs to the parent of this forked process.
    fn pool(&self) -> Option<Arc<Shared>> {
        let here = !fork::is_forked();
        here.then(|| self.0.upgrade()).flatten()
    }
}

impl Maintained for MaintainedPool {
    fn key(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn is_closed(&self) -> bool {
        fork::is_forked() || self.0.strong_count() == 0
    }

    fn pass_time(&self) {
        let Some(pool) = self.pool() else { return };
        // The check runs under the lock, because the settings may change at the same time.
        let may_give_back = pool.try_peek(|core| {
            let may = pool.may_give_back(core);
            // If blocks wait for streams, a tick would make the engine query the driver for their progress.
            if !may && core.awaits_nothing() {
                core.pass_tick();
            }
            may
        });
        if may_give_back == Some(true) {
            let _ = pool.try_with_core(|core| core.memory.collect());
            pool.at_rest(Core::pass_tick);
        }
    }

    fn idle_bytes(&self) -> u64 {
        let pool = self.pool();
        let idle = pool.and_then(|pool| pool.try_with_core(|core| core.idle_bytes()));
        idle.unwrap_or(0)
    }

    fn is_scarce(&self, trigger: &PressureTrigger, _: &mut Option<Pressure>) -> bool {
        let memory = self.pool().and_then(|pool| pool.parts.device.memory().ok());
        memory.is_some_and(|memory| trigger.is_passed(memory.total.saturating_sub(memory.free), memory.total))
    }

    fn relieve(&self) -> bool {
        let gave = |pool: Arc<Shared>| pool.at_rest(|core| core.memory.release_cached());
        self.pool().is_some_and(gave)
    }
}

impl Core {
    /// Counts a tick for the policy, which may give back memory that was idle for a long time.
    pub(super) fn pass_tick(&mut self) {
        self.ticks += 1;
        self.memory.mark(Mark::Ticks(1));
    }

    fn awaits_nothing(&self) -> bool {
        let stats = self.memory.stats();
        stats.active.current == stats.allocated.current
    }

    /// Returns the bytes held from the device that neither blocks nor pending work use.
    fn idle_bytes(&self) -> u64 {
        let active = self.memory.stats().active.current;
        self.reserved().current.saturating_sub(active)
    }

    fn is_at_rest(&self) -> bool {
        self.memory.source().inner().source().is_idle()
    }
}

impl Shared {
    /// Returns whether the policy's rules allow anything to be given back at the next tick.
    fn may_give_back(&self, core: &Core) -> bool {
        let retain = lock(&self.retain);
        retain.high_water.is_some() || core.ticks >= retain.decay
    }

    /// Runs `work`, which has to wait for the device, if there is nothing to wait for. Returns whether it ran.
    fn at_rest(&self, work: impl FnOnce(&mut Core)) -> bool {
        let others = pools_of(self.parts.device.number());
        let mut others = others
            .iter()
            .filter(|other| !std::ptr::eq(&raw const ***other, self));
        if captured::any() || !others.all(|other| other.try_peek(|core| core.is_at_rest()) == Some(true)) {
            return false;
        }
        let done = self.try_with_core(|core| {
            let rests = core.is_at_rest();
            if rests {
                work(core);
            }
            rests
        });
        done == Some(true)
    }
}
