//! Broken pools: a panic in the middle of the engine's work breaks its pool.
//!
//! The engine calls the pool's source, which may run code of the program: the program's own source, or the sink of a
//! [`Logged`](millpond_engine::Logged). A panic in this code unwinds through the engine and leaves its tables inconsistent. The
//! tables could then refer to memory that is in use, or to memory that was returned. Therefore they are not used again: the pool
//! refuses every request and keeps its memory, and blocks in use stay valid.

use super::core::Core;
use super::heap::{CacheRegistry, Heap, lock};
use millpond_account::error::AllocError;
use std::mem;

/// Breaks the pool when dropped, which happens only while a panic unwinds through its engine. The lock of the engine is held.
struct Breaks<'a>(&'a Heap);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        self.0.lifetime.break_down();
        // In the lock order, the lock of the list of caches comes before the lock of the engine, which is held here. So this
        // takes the list's lock only if it is free. Otherwise `MindsPanics` or the next refused request does this work.
        if let Some(registry) = self.0.registry.try_lock() {
            shut(&registry);
        }
    }
}

/// When dropped, stops all threads from using their caches if a panic has broken the pool. It must be created before any lock
/// is taken, so that it is dropped after the locks are free again.
pub(super) struct MindsPanics<'a>(&'a Heap);

impl Drop for MindsPanics<'_> {
    fn drop(&mut self) {
        if self.0.is_broken() {
            shut(&lock(&self.0.registry));
        }
    }
}

/// Stops all threads from taking blocks from their caches.
fn shut(registry: &CacheRegistry) {
    registry.caches.iter().for_each(|cache| cache.claim.want());
}

impl Heap {
    /// Returns a guard for calls that use the engine while they hold the lock of the list of caches.
    pub(super) fn mind_panics(&self) -> MindsPanics<'_> {
        MindsPanics(self)
    }

    /// Runs `work` on the engine under its lock. Returns `None` if the pool has ended or is broken. A panic in `work` breaks
    /// the pool.
    pub(super) fn with_engine<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Option<R> {
        self.change(lock(&self.core).as_mut()?, work)
    }

    /// Like [`with_engine`](Self::with_engine), for a caller that holds the lock. All calls to the engine, its policy or its
    /// source must go through this function. Code that only counts or reads figures need not.
    pub(super) fn change<R>(&self, core: &mut Core, work: impl FnOnce(&mut Core) -> R) -> Option<R> {
        if self.is_broken() {
            return None;
        }
        let breaks = Breaks(self);
        let answer = work(core);
        // `work` has not panicked. `thread::panicking` could not tell this, because it is also true in a destructor that an
        // unrelated panic runs.
        mem::forget(breaks);
        Some(answer)
    }

    /// Returns whether a panic has left the engine inconsistent. The result true is always reliable. The result false is
    /// reliable only under the lock of the engine.
    pub(super) fn is_broken(&self) -> bool {
        self.lifetime.is_broken()
    }

    /// Returns whether threads must bypass their caches from now on, because the pool is closed or broken.
    pub(super) fn is_shut(&self) -> bool {
        self.is_closed() || self.is_broken()
    }

    /// Fails if the pool is broken. The caller must hold no lock.
    pub(super) fn expect_whole(&self) -> Result<(), AllocError> {
        if !self.is_broken() {
            return Ok(());
        }
        shut(&lock(&self.registry));
        self.count_refusal();
        Err(self.broken())
    }

    /// Returns the error for every request to a broken pool.
    pub(super) fn broken(&self) -> AllocError {
        AllocError::Broken {
            pool: self.name.as_str().into(),
        }
    }
}
