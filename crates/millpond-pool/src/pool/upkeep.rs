//! Gives memory back: trimming, compaction, and the end of a pool.

use super::background;
use super::biased_lock;
use super::cache::Cache;
use super::conf::{SettingsChange, limit_of};
use super::core::Core;
use super::figures::live;
use super::fork;
use super::guard::Guard;
use super::heap::{Heap, lock};
use super::request::by_a_source;
use super::shelf::Shelf;
use super::slow_path_reason::SlowPathReason;
use millpond_account::watchers::Watchers;
use millpond_engine::{Compaction, ConfError, Mark, RetainConf, Source};
use millpond_os::reentrancy::inside;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Heap {
    /// Takes back the cached blocks of all threads. Returns their bytes.
    pub(super) fn drain_caches(&self) -> usize {
        let _minds = self.mind_panics();
        self.end_quarantine();
        let registry = lock(&self.registry);
        let mut bytes = 0;
        self.claim(&registry, |_, stacks| {
            bytes += stacks.bytes();
            self.take_all(stacks);
        });
        bytes
    }

    /// Returns every span without a live block to the engine.
    pub(super) fn release_spans(&self) {
        for (class, shelf) in self.shelves.iter().enumerate() {
            self.release_spans_of(class, &mut lock(shelf));
        }
    }

    /// Returns free spans to the engine if the pool has grown, so that other sizes can use their memory before it grows again. A pool that
    /// serves a program's `malloc` also returns the pages between its blocks to the system if they are more than 1/32 of its memory: the
    /// block for which it has grown did not fit there.
    #[cold]
    pub(super) fn reuse_spans(&self) {
        let (search, drain) = self.with_engine(Core::has_grown).unwrap_or_default();
        if drain {
            // A thread's cache may hold all blocks that the thread has freed.
            self.drain_caches();
        }
        if !search && !drain {
            return;
        }
        self.release_spans();
        if self.is_mapped {
            self.with_engine(|core| core.discard_written(core.reserved().current / 32));
        }
    }

    fn release_spans_of(&self, class: usize, shelf: &mut Shelf) {
        self.with_engine(|core| shelf.release_spans(class, |block| core.free_span(block)));
    }

    /// Gives all memory that no block uses back to the source or the system.
    pub(crate) fn trim(&self) {
        let _inside = inside();
        self.drain_caches();
        self.release_spans();
        self.with_engine(|core| core.memory.release_cached());
        self.discard_rest();
    }

    /// Returns pages between live blocks to the system. The source cannot take them back, because they share a page of the
    /// source with live blocks. Nothing is returned if the source must not be waited for now. Returns the bytes.
    fn discard_rest(&self) -> u64 {
        let discard = |core: &mut Core| {
            let can_wait = core.memory.source().can_wait(None);
            can_wait.then(|| core.discard_free())
        };
        let Some(mut discarded) = self.with_engine(discard).flatten() else {
            return 0;
        };
        for (class, shelf) in self.shelves.iter().enumerate() {
            let mut shelf = lock(shelf);
            self.with_engine(|core| {
                let mut bytes = 0;
                shelf.free_parts(class, |start, end| bytes += core.discard(start, end, false));
                shelf.discarded(bytes);
                discarded += bytes;
            });
        }
        discarded
    }

    /// Trims the pool, and returns a report.
    pub(crate) fn compact(&self) -> Compaction {
        let _inside = inside();
        self.drain_caches();
        self.release_spans();
        let compacted = self.with_engine(|core| {
            let before = core.reserved().current;
            let compaction = core.memory.compact();
            (compaction, before.saturating_sub(core.reserved().current))
        });
        let (mut compaction, returned) = compacted.unwrap_or_default();
        let returned = returned + self.discard_rest();
        // The engine's report counts whole spans as allocated, and includes pages that were returned to the system. So its numbers
        // are corrected here. Other threads may allocate meanwhile.
        let reserved = self.with_engine(|core| core.reserved().current);
        compaction.reserved_after = reserved.unwrap_or_default();
        compaction.reserved_before = compaction.reserved_after + returned;
        compaction.allocated = self.live().1.min(compaction.reserved_after);
        let free = compaction.reserved_after - compaction.allocated;
        compaction.kept = compaction.kept.min(free);
        compaction.shared = free - compaction.kept;
        compaction
    }

    /// Makes other pools that are charged to the same budgets give back unused memory.
    pub(super) fn trim_siblings(&self) {
        let Some(reserved) = &self.reserved else { return };
        if by_a_source() {
            // The caller is the source of a pool that uses this one. That pool may be one of the other pools, and it gives back
            // its unused memory itself.
            return;
        }
        for other in fork::all() {
            let shared = other
                .reserved
                .as_ref()
                .is_some_and(|theirs| theirs.shares_with(reserved));
            if !std::ptr::eq(other, self) && shared {
                other.trim();
            }
        }
    }

    /// Trims every pool that is charged to a budget of reserved bytes or to a budget that shares an ancestor with it.
    pub fn trim_all_of(budget: &millpond_account::budget::Budget) {
        for pool in fork::all() {
            let shared = pool.reserved.as_ref();
            if shared.is_some_and(|theirs| theirs.shares_with(budget)) {
                pool.trim();
            }
        }
    }

    /// Advances time by one tick: memory that has been idle for a while is given back.
    pub(crate) fn pass_time(&'static self) {
        let _inside = inside();
        let _minds = self.mind_panics();
        /// The number of ticks after which the cached blocks of an idle thread are taken back.
        const IDLE: u64 = 8;
        {
            let registry = lock(&self.registry);
            let idle = |cache: &&Arc<Cache>| cache.idle_for() == IDLE;
            let idle: Vec<&Arc<Cache>> = registry.caches.iter().filter(idle).collect();
            self.claim_these(&idle, |_, stacks| self.take_all(stacks));
            let eases = |cache: &&Arc<Cache>| cache.eases(IDLE);
            let grown: Vec<&Arc<Cache>> = registry.caches.iter().filter(eases).collect();
            self.claim_these(&grown, |cache, stacks| {
                let more = stacks.ease(|class, blocks| lock(&self.shelves[class]).put(class, blocks));
                cache.grown.store(more, Ordering::Relaxed);
            });
        }
        for (class, shelf) in self.shelves.iter().enumerate() {
            let mut shelf = lock(shelf);
            if shelf.became_idle() {
                self.release_spans_of(class, &mut shelf);
            }
        }
        self.with_engine(|core| core.memory.mark(Mark::Ticks(1)));
        self.compact_if_fragmented();
    }

    /// Returns free memory to the system if too much of the reserved memory was unused for some time.
    fn compact_if_fragmented(&self) {
        let conf = lock(&self.retain).clone();
        let allocated = self.live().1;
        let tick = |core: &mut Core| {
            let reserved = core.reserved().current;
            core.trigger.tick(&conf, allocated, reserved)
        };
        if self.with_engine(tick) == Some(true) {
            self.release_spans();
            self.discard_rest();
        }
    }

    /// Finishes pending work: completed events, blocks in other threads' caches, and decayed memory.
    pub(crate) fn collect_garbage(&'static self) {
        let _inside = inside();
        self.drain_caches();
        self.release_spans();
        self.with_engine(|core| {
            core.memory.collect();
            core.memory.mark(Mark::Ticks(1));
        });
    }

    /// Returns all memory that no block uses, and resets the counts and peaks.
    pub(crate) fn clear(&self) {
        let _inside = inside();
        self.trim();
        *lock(&self.forgotten) = self.counts();
        if let Some(core) = lock(&self.core).as_mut() {
            core.refusals = 0;
        }
        self.reset_peaks();
    }

    /// Sets whether every block is cleared before it is allocated.
    pub(crate) fn clear_on_reuse(&self, on: bool) {
        let _inside = inside();
        self.set_reason(SlowPathReason::Cleared, on);
    }

    /// Changes settings of the live pool.
    pub(crate) fn configure(&'static self, text: &str) -> Result<(), ConfError> {
        let _inside = inside();
        let now = lock(&self.retain).clone();
        let SettingsChange { conf, retain } = SettingsChange::parse(text, self.policy, &now)?;
        if conf.limit.is_some() || conf.memory_fraction.is_some() {
            let capacity = self.with_engine(|core| core.memory.source().whole()).flatten();
            // A fraction alone replaces any previous limit.
            self.set_limit(limit_of(&conf, capacity)?);
        }
        if let Some(retain) = retain {
            self.set_retain(retain);
        }
        if let Some(on) = conf.zero_on_reuse {
            self.clear_on_reuse(on);
        }
        background::change(self, conf.trim_every, conf.trim_at_pressure);
        Ok(())
    }

    /// Checks whether all settings of a text can be changed now.
    pub fn check_change(&self, text: &str) -> Result<(), ConfError> {
        let _inside = inside();
        let now = lock(&self.retain).clone();
        SettingsChange::parse(text, self.policy, &now).map(|_| ())
    }

    /// Changes the settings of retained memory: how much free memory is kept, and for how long.
    pub(crate) fn set_retain(&self, retain: RetainConf) {
        let _inside = inside();
        self.with_engine(|core| core.memory.set_retain(&retain));
        *lock(&self.retain) = retain;
    }

    /// Changes the maximum number of bytes that may be reserved, and gives back unused memory above it. Used memory is given back when
    /// it is freed.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let _inside = inside();
        self.limit.set(bytes);
        // After this lock was taken, calls that began under the old limit have finished.
        drop(lock(&self.core));
        if self.limit.used() > bytes {
            self.trim();
            self.mind_limit();
        }
        // Waiting requests may have room now.
        if self.has_reason(SlowPathReason::Awaited) {
            self.tell_line();
        }
    }

    /// Makes frees return memory to the source if more is reserved than the limit allows, and ends this otherwise.
    fn mind_limit(&self) {
        loop {
            let over = self.limit.used() > self.limit.bytes();
            self.set_reason(SlowPathReason::Over, over);
            // The limit may have changed between the two steps.
            if over == (self.limit.used() > self.limit.bytes()) {
                break;
            }
        }
    }

    /// Gives memory back to the source, because more is reserved than the limit allows. Called after a free.
    pub(super) fn shrink(&self) {
        self.release_spans();
        self.with_engine(|core| core.memory.release_cached());
        if self.limit.used() <= self.limit.bytes() {
            self.mind_limit();
        }
    }

    /// Closes the pool after its last handle was dropped. Memory is given back now, or with the last block.
    pub(crate) fn close(&self) {
        if self.close_inside() {
            // Observers get no more events. Their data is dropped here, where no lock is held.
            self.change_watchers(|watchers| (Watchers::new(watchers.pool().clone()), ()));
        }
    }

    fn close_inside(&self) -> bool {
        let _inside = inside();
        {
            let registry = lock(&self.registry);
            self.lifetime.close();
            // The caches stay claimed forever: from now on every thread bypasses its cache.
            for cache in &registry.caches {
                cache.claim.want();
            }
            biased_lock::barrier();
            for cache in &registry.caches {
                cache.keep_wanted(|stacks| self.take_all(stacks));
            }
        }
        self.end_if_empty()
    }

    /// Ends a closed pool if no block of it is in use or being allocated. Returns whether the pool has ended.
    pub(super) fn end_if_empty(&self) -> bool {
        let gone = {
            // This takes all locks under which a block can be allocated: see `Lifetime`. Every address is removed from the tables
            // before the memory is returned.
            let mut registry = lock(&self.registry);
            // An owner that may still be inside its cache may not have counted all its work.
            if !registry.caches.iter().all(|cache| cache.claim.wait()) {
                return false;
            }
            let shelves = self.shelves.each_ref().map(lock);
            let blocks = self.guard.as_ref().map(Guard::blocks);
            let mut core = lock(&self.core);
            if core.is_none() {
                // Another thread has already ended the pool.
                return true;
            }
            // The memory of a broken pool stays for as long as the process runs, because it is no longer known which of it is
            // free.
            if self.is_broken() || !self.lifetime.is_idle() || live(&registry, core.as_ref()) != (0, 0) {
                return false;
            }
            let shelves = shelves.map(|mut shelf| mem::take(&mut *shelf));
            let guarded = blocks.map(|mut blocks| mem::take(&mut *blocks));
            let core = core.take();
            let caches = mem::take(&mut registry.caches);
            // The counters of the caches and of frees that bypassed the caches are kept.
            let tallies = caches.iter().map(|cache| &cache.tally);
            for tally in tallies.chain(core.as_ref().map(|core| &core.tally)) {
                registry.ended.absorb(tally);
            }
            (core, caches, shelves, guarded)
        };
        // Dropped outside of the locks.
        drop(gone);
        fork::forget(self);
        self.forget_accounts();
        true
    }
}
