//! Giving memory back: trim, compaction, the pool's end.

use super::claim;
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
    }

    /// The same, with the account of it.
    pub(crate) fn compact(&self) -> Compaction {
        self.drain_caches();
        self.release_spans();
        let mut core = lock(&self.core);
        core.as_mut()
            .map(|core| core.memory.compact())
            .unwrap_or_default()
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
