//! Statistics of a pool, and the settings and methods that control how much memory it keeps.

use super::DevicePool;
use super::maintained::MaintainedPool;
use super::shared::lock;
use super::state::Core;
use crate::error::CudaError;
use millpond_account::error::AllocError;
use millpond_account::stats::PoolStats;
use millpond_engine::{Block, Compaction, ConfError, Source};
use millpond_pool::pool::{Prewarm, SettingsChange, change_maintenance, expect_time, limit_of};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) fn stats_of(core: &Core) -> PoolStats {
    let (account, engine) = (core.account, core.memory.stats());
    let mut stats = PoolStats::default();
    stats.requested = account.requested;
    stats.allocated = account.allocated;
    stats.reserved = core.reserved();
    stats.waiting = engine.active.current.saturating_sub(engine.allocated.current);
    stats.allocations = account.allocations;
    stats.frees = account.frees;
    stats.hits = account.hits;
    stats.refusals = account.refusals;
    stats
}

impl DevicePool {
    /// Returns the statistics after all returned blocks have been processed. In a forked process all values are zero.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        match self.0.with_core(|core| stats_of(core)) {
            Err(CudaError::BrokenPool) => stats_of(&self.0.as_it_is()),
            outcome => outcome.unwrap_or_default(),
        }
    }

    /// Resets the peaks to the current values.
    pub fn reset_peak(&self) {
        let _ = self.0.with_core(|core| {
            core.account.reset_peaks();
            core.memory.reset_peaks();
        });
    }

    /// Waits for the streams that have used the pool's memory, and gives back all memory that no block uses. Live blocks are not moved. A
    /// graph's memory is not given back before the graph ends. Nothing is given back while another library captures one of those streams.
    ///
    /// A handle of several pages stays while a block overlaps it, unless the pool
    /// [may replace it](super::DevicePoolBuilder::allow_relocation).
    pub fn compact(&self) -> Compaction {
        self.0.with_core(|core| core.memory.compact()).unwrap_or_default()
    }

    /// Like [`compact`](Self::compact), but without the report of the result.
    pub fn trim(&self) {
        let _ = self.0.with_core(|core| core.memory.release_cached());
    }

    /// Gives back all memory that no block uses, and resets the counts of calls and the peaks.
    pub fn clear(&self) {
        self.trim();
        let _ = self.0.with_core(|core| {
            let account = &mut core.account;
            (account.allocations, account.frees) = (0, 0);
            (account.hits, account.refusals) = (0, 0);
        });
        self.reset_peak();
    }

    /// Frees the blocks whose streams have since passed their last use, and gives back idle memory by the policy's rules.
    pub fn collect_garbage(&self) {
        let _ = self.0.with_core(|core| {
            core.memory.collect();
            core.pass_tick();
        });
    }

    /// Makes sure that at least `total` bytes are reserved, so that requests up to that sum do not call the driver.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory. The memory that was reserved until then stays reserved.
    pub fn reserve(&self, total: u64) -> Result<(), AllocError> {
        let mut held = Vec::new();
        let outcome = loop {
            let short = total.saturating_sub(self.stats().reserved.current);
            if short == 0 {
                break Ok(());
            }
            // A free block may serve this request. It is held, so the next request reserves more memory.
            match self.0.take_own(short) {
                Ok(block) => held.push(block),
                Err(error) => break Err(error),
            }
        };
        self.give_own(held);
        outcome
    }

    /// Reserves memory for all of these blocks at the same time.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory. The memory that was reserved until then stays reserved.
    pub fn prewarm(&self, prewarm: &Prewarm) -> Result<(), AllocError> {
        let mut held = Vec::new();
        let outcome = prewarm
            .blocks()
            .flat_map(|(bytes, count)| std::iter::repeat_n(bytes, count))
            .filter(|bytes| *bytes > 0)
            .try_for_each(|bytes| {
                held.push(self.0.take_own(bytes as u64)?);
                Ok(())
            });
        self.give_own(held);
        outcome
    }

    fn give_own(&self, held: Vec<Block>) {
        let _ = self.0.with_core(|core| {
            for block in held {
                core.memory.free(block, &[]);
            }
        });
    }

    /// Changes settings of a live pool, as `key:value,key:value`. The keys are `limit`, `memory-fraction`, `trim-every`,
    /// `trim-at-pressure`, `zero-on-reuse`, and those that control how much memory the policy keeps and for how long (`cache-size`,
    /// `decay`, `low-water`, `high-water`, `compact-at`).
    ///
    /// # Errors
    /// Returns an error if a key is unknown, if a value is invalid, if the setting cannot be changed in a live pool, or if only pools of
    /// host memory or other policies have it. In that case nothing is changed.
    pub fn configure(&self, settings: &str) -> Result<(), ConfError> {
        let change = self.change(settings)?;
        change.conf.expect_for_devices()?;
        self.apply(change)
    }

    pub(super) fn change(&self, settings: &str) -> Result<SettingsChange, ConfError> {
        let now = lock(&self.0.retain).clone();
        let policy = self.0.with_core(|core| core.memory.policy().name());
        SettingsChange::parse(settings, policy.unwrap_or("millpond"), &now)
    }

    pub(super) fn apply(&self, SettingsChange { conf, retain }: SettingsChange) -> Result<(), ConfError> {
        if conf.limit.is_some() || conf.memory_fraction.is_some() {
            let whole = self
                .0
                .with_core(|core| core.memory.source().inner().source().capacity());
            self.set_limit(limit_of(&conf, whole.ok().flatten())?);
        }
        if let Some(on) = conf.zero_on_reuse {
            self.set_zero_on_reuse(on);
        }
        change_maintenance(
            MaintainedPool::of(&self.0),
            conf.trim_every,
            conf.trim_at_pressure,
        );
        if let Some(retain) = retain {
            let _ = self.0.with_core(|core| {
                core.memory.set_retain(&retain);
                *lock(&self.0.retain) = retain;
            });
        }
        Ok(())
    }

    /// Changes how often memory [is given back in the background](super::DevicePoolBuilder::trim_every). `None` means never.
    ///
    /// # Errors
    /// Returns an error if the time is zero. In that case nothing is changed.
    pub fn set_trim_every(&self, time: Option<Duration>) -> Result<(), ConfError> {
        expect_time(time)?;
        change_maintenance(MaintainedPool::of(&self.0), Some(time), None);
        Ok(())
    }

    /// Sets whether each block is cleared before it is handed out.
    pub fn set_zero_on_reuse(&self, on: bool) {
        self.0.zero_on_reuse.store(on, Ordering::Relaxed);
    }

    /// Returns the bytes of the device that are in use outside of this process's pools: by other processes, by other libraries and by the
    /// driver itself.
    #[must_use]
    pub fn used_elsewhere(&self) -> u64 {
        self.0.elsewhere()
    }
}
