//! Counts calls in the thread's cache, or under the pool's lock if the thread has no cache.

use super::account::{Tally, bump};
use super::core::Core;
use super::fast;
use super::heap::{Heap, RawBlock, lock};
use millpond_os::reentrancy::inside;

impl Heap {
    /// Changes the recorded request of a live block to another size with the same block. `from` and `to` are the old and
    /// the new size and alignment. Returns false if the block does not match `from`.
    pub(crate) fn resize(&'static self, taken: RawBlock, from: (usize, usize), to: (usize, usize)) -> bool {
        if self.is_watched() {
            // This is reported as a free and an allocation. No other thread can get the block in between.
            if let Err(wrong) = self.tell_freed(taken, from.0, from.1) {
                self.say_wrong(&wrong);
                return false;
            }
            self.tell_allocated(taken, to.0, to.1);
        } else if self.may_be_sampled(taken.address)
            && let Some(ledger) = self.ledger()
            && let Err(wrong) = ledger.resize(taken.address, from, to)
        {
            self.say_wrong(&wrong);
            return false;
        }
        self.count_resize(from.0, to.0);
        true
    }

    /// Counts an operation of a thread that has a cache.
    pub(super) fn count(&self, tally: &Tally, work: impl FnOnce(&Tally) -> bool) {
        if work(tally) {
            tally.tell(&self.totals, self.alone());
        }
    }

    pub(super) fn count_allocation(&'static self, requested: usize, bytes: usize, missed: bool) {
        let add = |tally: &Tally| {
            if missed {
                bump(&tally.misses);
            }
            tally.allocate(requested, bytes)
        };
        if fast::with(self, |cache| self.count(&cache.tally, add)).is_none() {
            self.count_outside(|core| {
                add(&core.tally);
            });
        }
    }

    pub(super) fn count_free(&'static self, requested: usize, bytes: usize) {
        let add = |tally: &Tally| tally.free(requested, bytes);
        if !self.count_inside(add) && self.is_closed() {
            self.end_if_empty();
        }
    }

    fn count_resize(&'static self, from: usize, to: usize) {
        self.count_inside(|tally| tally.resize(from, to));
    }

    /// Counts an operation while the thread is inside its cache. Returns false if it has no cache or another thread has the
    /// cache. In that case the operation is counted under the pool's lock.
    fn count_inside(&'static self, work: impl Fn(&Tally) -> bool) -> bool {
        let counted = fast::with(self, |cache| cache.with(|_| self.count(&cache.tally, &work)));
        if counted.flatten().is_some() {
            return true;
        }
        let _inside = inside();
        self.count_outside(|core| {
            work(&core.tally);
        });
        false
    }

    pub(super) fn count_outside(&self, work: impl FnOnce(&mut Core)) {
        if let Some(core) = lock(&self.core).as_mut() {
            work(core);
            core.tally.tell(&self.totals, self.alone());
        }
    }
}
