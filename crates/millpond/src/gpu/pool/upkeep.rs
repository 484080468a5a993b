//! What a pool keeps, and what it gives back.

use super::DevicePool;
use super::shared::lock;
use super::state::Core;
use super::ward::DeviceWard;
use crate::error::AllocError;
use crate::gpu::error::CudaError;
use crate::pool::{Change, Prewarm, change_keeping, expect_time, limit_of};
use crate::stats::PoolStats;
use millpond_engine::{Block, Compaction, ConfError, Source};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) fn stats_of(core: &Core) -> PoolStats {
    let (account, engine) = (core.account, core.memory.stats());
    PoolStats {
        requested: account.requested,
        allocated: account.allocated,
        reserved: core.reserved(),
        waiting: engine.active.current.saturating_sub(engine.allocated.current),
        allocations: account.allocations,
        frees: account.frees,
        hits: account.hits,
        refusals: account.refusals,
        ..PoolStats::default()
    }
}

impl DevicePool {
    /// The account, with all that has come back; all zero in a process that was forked.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        match self.0.with_core(|core| stats_of(core)) {
            Err(CudaError::BrokenPool) => stats_of(&self.0.as_it_is()),
            outcome => outcome.unwrap_or_default(),
        }
    }

    /// Begins the peaks anew.
    pub fn reset_peak(&self) {
        let _ = self.0.with_core(|core| {
            core.account.reset_peaks();
            core.memory.reset_peaks();
        });
    }

    /// Waits for the streams that have used its memory, and gives back whatever no block uses; live blocks stay where they are. Of a
    /// graph's own memory nothing goes back before the graph's end, and nothing at all while others capture one of those streams.
    pub fn compact(&self) -> Compaction {
        self.0.with_core(|core| core.memory.compact()).unwrap_or_default()
    }

    /// What [`compact`](Self::compact) does, without the account of it.
    pub fn trim(&self) {
        let _ = self.0.with_core(|core| core.memory.release_cached());
    }

    /// Gives everything back that no block uses, and begins the account of calls and peaks anew.
    pub fn clear(&self) {
        self.trim();
        let _ = self.0.with_core(|core| {
            let account = &mut core.account;
            (account.allocations, account.frees) = (0, 0);
            (account.hits, account.refusals) = (0, 0);
        });
        self.reset_peak();
    }

    /// Makes free what waited for streams that have passed since, and lets what has been idle for a while go back by the
    /// policy's rules.
    pub fn collect_garbage(&self) {
        let _ = self.0.with_core(|core| {
            core.memory.collect();
            core.pass_tick();
        });
    }

    /// Has at least so many bytes reserved, so that requests up to there ask the driver for nothing.
    ///
    /// # Errors
    /// When there are not as many; what was got stays.
    pub fn reserve(&self, total: u64) -> Result<(), AllocError> {
        let mut held = Vec::new();
        let outcome = loop {
            let short = total.saturating_sub(self.stats().reserved.current);
            if short == 0 {
                break Ok(());
            }
            // It may be served from what is free; then the next is not.
            match self.0.take_own(short) {
                Ok(block) => held.push(block),
                Err(error) => break Err(error),
            }
        };
        self.give_own(held);
        outcome
    }

    /// Has these blocks ready, side by side.
    ///
    /// # Errors
    /// When there is no memory for them; what was got stays.
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

    /// Changes settings of a live pool, as `key:value,key:value`: `limit`, `memory-fraction`, `trim-every`, `trim-at-pressure`,
    /// `zero-on-reuse`, and how much the policy keeps, for how long (`cache-size`, `decay`, `low-water`, `high-water`, `compact-at`).
    ///
    /// # Errors
    /// On a key that is not known, a value that cannot be, what a pool keeps for life, and what only pools of host memory or other
    /// policies have; then nothing is changed.
    pub fn configure(&self, settings: &str) -> Result<(), ConfError> {
        let change = self.change(settings)?;
        change.conf.expect_for_devices()?;
        self.apply(change)
    }

    /// The same of settings for a set of pools, of which those that only pools of host memory have are passed over.
    ///
    /// # Errors
    /// As there, but for those.
    pub(crate) fn configure_with_others(&self, settings: &str) -> Result<(), ConfError> {
        self.apply(self.change(settings)?)
    }

    /// Reads what is to be changed.
    ///
    /// # Errors
    /// As [`configure_with_others`](Self::configure_with_others).
    pub(crate) fn check_change(&self, settings: &str) -> Result<(), ConfError> {
        self.change(settings).map(|_| ())
    }

    fn change(&self, settings: &str) -> Result<Change, ConfError> {
        let now = lock(&self.0.retain).clone();
        let policy = self.0.with_core(|core| core.memory.policy().name());
        Change::parse(settings, policy.unwrap_or("millpond"), &now)
    }

    fn apply(&self, Change { conf, retain }: Change) -> Result<(), ConfError> {
        if conf.limit.is_some() || conf.memory_fraction.is_some() {
            let whole = self
                .0
                .with_core(|core| core.memory.source().inner().source().capacity());
            self.set_limit(limit_of(&conf, whole.ok().flatten())?);
        }
        if let Some(on) = conf.zero_on_reuse {
            self.set_zero_on_reuse(on);
        }
        change_keeping(DeviceWard::of(&self.0), conf.trim_every, conf.trim_at_pressure);
        if let Some(retain) = retain {
            let _ = self.0.with_core(|core| {
                core.memory.set_retain(&retain);
                *lock(&self.0.retain) = retain;
            });
        }
        Ok(())
    }

    /// Changes how often memory [goes back in the background](super::DevicePoolBuilder::trim_every); never with `None`.
    ///
    /// # Errors
    /// On no time at all; then nothing is changed.
    pub fn set_trim_every(&self, time: Option<Duration>) -> Result<(), ConfError> {
        expect_time(time)?;
        change_keeping(DeviceWard::of(&self.0), Some(time), None);
        Ok(())
    }

    /// Has each block cleared before it is handed out, or no more.
    pub fn set_zero_on_reuse(&self, on: bool) {
        self.0.zero_on_reuse.store(on, Ordering::Relaxed);
    }

    /// Bytes of the device that are in use and that no pool of this process has: other processes', other libraries', and what
    /// the driver itself takes.
    #[must_use]
    pub fn used_elsewhere(&self) -> u64 {
        self.0.elsewhere()
    }
}
