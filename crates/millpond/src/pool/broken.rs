//! What a panic in the middle of the engine's work leaves behind: a pool that is broken.
//!
//! The engine calls the pool's source, and with it whatever a program has put there: a source of its own, or the sink of a
//! [`Logged`](millpond_engine::Logged). A panic there unwinds through the engine and leaves its tables half changed. Used again, they could
//! name memory that is in use, or that has gone back. So nobody uses them again: the pool refuses every request, keeps what it has, and
//! blocks in use stay as they are.

use super::core::Core;
use super::heap::{Heap, Roll, lock};
use crate::error::AllocError;
use std::mem;

/// Breaks the pool when dropped, which happens only while a panic unwinds through its engine. The lock of the engine is held.
struct Breaks<'a>(&'a Heap);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        self.0.lifetime.break_down();
        // The lock of the list comes before the one that is held, so it may be had only if nobody has it. Otherwise `MindsPanics` does this,
        // or the next request that is refused.
        if let Some(roll) = self.0.roll.try_lock() {
            shut(&roll);
        }
    }
}

/// Has no thread use its cache any more, where a panic has broken the pool since this was made. Made before any lock is taken, so that it
/// ends when they are free again.
pub(super) struct MindsPanics<'a>(&'a Heap);

impl Drop for MindsPanics<'_> {
    fn drop(&mut self) {
        if self.0.is_broken() {
            shut(&lock(&self.0.roll));
        }
    }
}

/// Has no thread take blocks from its cache any more.
fn shut(roll: &Roll) {
    roll.caches.iter().for_each(|cache| cache.claim.want());
}

impl Heap {
    /// For calls in which the engine is used while the lock of the list of caches is held.
    pub(super) fn mind_panics(&self) -> MindsPanics<'_> {
        MindsPanics(self)
    }

    /// Does something with the engine, under its lock; none where the pool has ended or is broken. A panic in it breaks the pool.
    pub(super) fn with_engine<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Option<R> {
        self.change(lock(&self.core).as_mut()?, work)
    }

    /// The same where the lock is held. Whatever calls the engine, its policy or its source goes through here; what only counts or reads
    /// figures need not.
    pub(super) fn change<R>(&self, core: &mut Core, work: impl FnOnce(&mut Core) -> R) -> Option<R> {
        if self.is_broken() {
            return None;
        }
        let breaks = Breaks(self);
        let answer = work(core);
        // No panic came this way. Not a question to `thread::panicking`, which is also true in a destructor that an unrelated panic runs.
        mem::forget(breaks);
        Some(answer)
    }

    /// Whether a panic has left the engine half changed. Certain under the lock of the engine, and where it is answered with yes.
    pub(super) fn is_broken(&self) -> bool {
        self.lifetime.is_broken()
    }

    /// Whether threads have to go past their caches for ever: the pool is closed or broken.
    pub(super) fn is_shut(&self) -> bool {
        self.is_closed() || self.is_broken()
    }

    /// Refuses where the pool is broken. Under no lock.
    pub(super) fn expect_whole(&self) -> Result<(), AllocError> {
        if !self.is_broken() {
            return Ok(());
        }
        shut(&lock(&self.roll));
        self.count_refusal();
        Err(self.broken())
    }

    /// What is said to every request once the pool is broken.
    pub(super) fn broken(&self) -> AllocError {
        AllocError::Broken {
            pool: self.name.as_str().into(),
        }
    }
}
