//! Giving memory back: trim, compaction, the pool's end.

use super::claim;
use super::core::Core;
use super::detour::Detour;
use super::fork;
use super::heap::{Heap, lock};
use super::shelf::Shelf;
use millpond_engine::Compaction;
use std::sync::atomic::Ordering;

impl Heap {
    /// Takes back what all threads keep; answers the bytes.
    pub(super) fn drain_caches(&self) -> usize {
        let roll = lock(&self.roll);
        let mut bytes = 0;
        self.claim(&roll, |_, stacks| {
            bytes += stacks.bytes();
            self.take_all(stacks);
        });
        bytes
    }

    /// Gives the engine every span of which no block is in use.
    pub(super) fn release_spans(&self) {
        for (class, shelf) in self.shelves.iter().enumerate() {
            let mut shelf = lock(shelf);
            if let Some(core) = lock(&self.core).as_mut() {
                let spans = core.spans_of(class);
                for span in shelf.take_whole_spans(class, &spans) {
                    core.free_span(span);
                }
            }
        }
    }

    /// Gives everything that no block uses back to the source.
    pub(crate) fn trim(&self) {
        self.drain_caches();
        self.release_spans();
        if let Some(core) = lock(&self.core).as_mut() {
            core.memory.release_cached();
        }
        self.forget_rest();
    }

    /// Lets the system have what cannot go back whole: pages between live blocks. Answers the bytes.
    fn forget_rest(&self) -> u64 {
        let mut bytes = 0;
        for (class, shelf) in self.shelves.iter().enumerate() {
            let mut shelf = lock(shelf);
            if let Some(core) = lock(&self.core).as_mut() {
                shelf.free_parts(class, |start, end| bytes += core.forget(start, end));
            }
        }
        bytes + lock(&self.core).as_mut().map_or(0, Core::forget_free)
    }

    /// The same, with the account of it.
    pub(crate) fn compact(&self) -> Compaction {
        self.drain_caches();
        self.release_spans();
        let compaction = lock(&self.core).as_mut().map(|core| core.memory.compact());
        self.forget_rest();
        compaction.unwrap_or_default()
    }

    /// Has other pools that are charged to the same budgets give back what nobody uses.
    pub(super) fn trim_siblings(&self) {
        let Some(reserved) = &self.reserved else { return };
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

    /// Changes the most that may be reserved, and gives back what is above it as far as nobody uses it; what is used
    /// goes back when it is freed.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.set(bytes);
        if self.limit.used() > bytes {
            self.trim();
            self.set_detour(Detour::Over, self.limit.used() > bytes);
        }
    }

    /// Gives back to the source while more is reserved than may be.
    pub(super) fn shrink(&self) {
        self.release_spans();
        if let Some(core) = lock(&self.core).as_mut() {
            core.memory.release_cached();
        }
        if self.limit.used() <= self.limit.bytes() {
            self.set_detour(Detour::Over, false);
        }
    }

    /// The last handle is gone: memory goes back now, or with the last block.
    pub(crate) fn close(&self) {
        {
            let roll = lock(&self.roll);
            self.closed.store(true, Ordering::Release);
            // Wanted for ever: from now on every thread frees past its cache.
            for cache in &roll.caches {
                cache.claim.want();
            }
            claim::barrier();
            for cache in &roll.caches {
                cache.keep_wanted(|stacks| self.take_all(stacks));
            }
        }
        self.end_if_empty();
    }

    pub(super) fn end_if_empty(&self) {
        // Nothing is handed out any more: what is zero stays so. Every address is forgotten before the memory goes.
        if self.live() == (0, 0) {
            for shelf in &self.shelves {
                *lock(shelf) = Shelf::default();
            }
            // Dropped outside the lock.
            let core = lock(&self.core).take();
            drop(core);
            fork::forget(self);
        }
    }
}
