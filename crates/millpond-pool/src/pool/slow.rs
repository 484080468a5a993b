//! The slow path. A call takes it if the thread's cache has no block or no room, if another thread holds the cache, or if
//! there is work to do at every call.

use super::ask::Ask;
use super::cache::{Cache, Free, Stacks, most_kept};
use super::classes::{KEPT, PAGE, SMALL, bin_of, class_bytes, class_of};
use super::detour::Detour;
use super::heap::{Heap, Taken, large, lock, small};
use super::local;
use super::sync::Ordering;
use super::zeroed::clear;
use millpond_account::budget::Charge;
use millpond_account::error::AllocError;
use millpond_os::reentrancy::inside;

/// The most small blocks that move between a thread and a shelf at once.
const BATCH: usize = 32;

impl Heap {
    /// Allocates a block.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_slowly(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        self.allocate_or_wait(ask)
            .map_err(|error| self.refused_finally(ask.requested, error))
    }

    /// Allocates a block, or waits if the request may wait.
    pub(super) fn allocate_or_wait(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        let taken = self.allocate_watched(ask.requested, ask.align, ask.zeroed);
        if taken.address != 0 {
            return Ok(taken);
        }
        self.allocate_anyhow(ask)
    }

    #[inline(never)]
    fn allocate_anyhow(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        let picked = self.picks();
        let outcome = self.allocate_inside(ask);
        if self.detours(Detour::Watched) {
            match outcome {
                Ok(taken) => self.tell_allocated(taken, ask.requested, ask.align),
                Err(_) => self.tell_refused(&ask),
            }
        } else if picked && let Ok(taken) = outcome {
            self.tell_picked(&ask, taken);
        }
        if let Some(guard) = &self.guard {
            self.tell_found(guard);
            // The bytes behind the requested ones are checked, so the caller may not use them.
            let bytes = ask.requested.max(1);
            return outcome.map(|taken| Taken { bytes, ..taken });
        }
        outcome
    }

    fn allocate_inside(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        let _inside = inside();
        let own = self.budget.as_ref().filter(|_| !ask.charged);
        let charge = own.map(|budget| self.charge(budget, ask)).transpose()?;
        let taken = self.place(ask)?;
        // From here on the block itself represents the charge.
        charge.map(Charge::forget);
        Ok(taken)
    }

    fn place(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        let Ask { requested, align, .. } = ask;
        self.expect_whole()?;
        if let Some(guard) = &self.guard {
            return self.under_way(|| self.allocate_guarded(guard, ask));
        }
        if let Some((class, bytes)) = small(requested, align) {
            let taken = match self.kept_small(class, requested, bytes) {
                Some(taken) => taken,
                None => self.under_way(|| self.refill(class, ask))?,
            };
            self.wipe(taken, ask);
            return Ok(taken);
        }
        let bytes = large(requested).ok_or_else(|| self.refuse_size(requested))?;
        if bytes <= KEPT
            && align <= PAGE
            && let Some(taken) = self.kept_large(requested, bytes)
        {
            self.wipe(taken, ask);
            return Ok(taken);
        }
        self.under_way(|| self.allocate_large(ask, bytes))
    }

    /// Runs `work`, which looks for a block outside the thread's cache. The pool does not end before the block is counted.
    fn under_way(
        &'static self,
        work: impl FnOnce() -> Result<Taken, AllocError>,
    ) -> Result<Taken, AllocError> {
        struct UnderWay(&'static Heap);
        impl Drop for UnderWay {
            fn drop(&mut self) {
                if self.0.lifetime.finish() {
                    self.0.end_if_empty();
                }
            }
        }
        self.lifetime.begin();
        let _under_way = UnderWay(self);
        work()
    }

    /// Returns how many bytes of a block must read as zero.
    pub(super) fn zeros(&self, taken: Taken, requested: usize, zeroed: bool) -> usize {
        if self.detours(Detour::Cleared) {
            taken.bytes
        } else if zeroed {
            requested
        } else {
            0
        }
    }

    fn wipe(&self, taken: Taken, ask: Ask) {
        // SAFETY: the block was just taken from the cache or the shelf, and the caller has not received it yet.
        unsafe { clear(taken.address, self.zeros(taken, ask.requested, ask.zeroed)) };
    }

    fn kept_small(&'static self, class: usize, requested: usize, bytes: usize) -> Option<Taken> {
        let found = local::with(self, |cache| {
            // The block is counted inside the claim, so that a thread that closes the pool and goes through its caches sees the
            // block.
            cache.with(|stacks| {
                let address = stacks.pop_or_recall(class)?;
                self.count(cache, |tally| tally.allocate(requested, bytes));
                Some(Taken { address, bytes })
            })
        });
        found.flatten().flatten()
    }

    fn kept_large(&'static self, requested: usize, bytes: usize) -> Option<Taken> {
        let found = local::with(self, |cache| {
            // The block is counted inside the claim, as above.
            cache.with(|stacks| {
                let address = stacks.pop_large(bin_of(bytes), bytes)?.address;
                self.count(cache, |tally| tally.allocate(requested, bytes));
                Some(Taken { address, bytes })
            })
        });
        found.flatten().flatten()
    }

    /// Frees a block.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_slowly(&'static self, taken: Taken, requested: usize, align: usize) {
        if !self.free_watched(taken, requested, align) {
            self.free_anyhow(taken, requested, align);
        }
    }

    #[inline(never)]
    fn free_anyhow(&'static self, taken: Taken, requested: usize, align: usize) {
        let (taken, overrun) = match self
            .guard
            .as_ref()
            .map(|guard| self.look_at_guarded(guard, taken.address))
        {
            None => (taken, None),
            Some(Ok(found)) => found,
            Some(Err(wrong)) => return self.tell_wrong(&wrong),
        };
        if let Some(overrun) = overrun {
            self.tell_wrong(&overrun);
        }
        if self.tells_frees()
            && let Err(wrong) = self.tell_freed(taken, requested, align)
        {
            // If the block were taken back, somebody else would have it too. So it is not freed.
            return self.say_wrong(&wrong);
        }
        self.free_inside(taken, requested);
        if self.detours(Detour::Watched) {
            self.tell_flow();
        }
        if let Some(guard) = &self.guard {
            self.tell_found(guard);
        }
    }

    #[inline(never)]
    pub(super) fn free_inside(&'static self, taken: Taken, requested: usize) {
        let _inside = inside();
        // This happens before the address can be allocated again. The budget is credited at the end.
        let charged = self.detours(Detour::Charged);
        let tenant = if charged {
            lock(&self.charges).remove(&taken.address)
        } else {
            None
        };
        let past = self.detours(Detour::Awaited) || self.detours(Detour::Over);
        if let Some(guard) = &self.guard {
            if !self.free_guarded(guard, taken) {
                return;
            }
            if past {
                self.end_quarantine();
            }
        } else if past || !self.keep_somewhere(taken, requested) {
            self.free_outside(taken, requested);
        }
        // This is the last step, so that a woken request finds the memory.
        if charged {
            let covered = tenant
                .as_ref()
                .is_some_and(|charge| self.is_covered_by(&charge.budget()));
            drop(tenant);
            if !covered {
                self.refund(taken);
            }
        }
        if self.detours(Detour::Over) {
            self.shrink();
        }
        if self.detours(Detour::Awaited) {
            self.tell_line();
        }
    }

    fn keep_somewhere(&'static self, taken: Taken, requested: usize) -> bool {
        let Taken { address, bytes } = taken;
        let kept = local::with(self, |cache| {
            cache.with(|stacks| {
                if bytes <= SMALL {
                    self.keep(cache, stacks, class_of(bytes), address);
                } else {
                    self.keep_large(stacks, Free { address, bytes });
                }
                self.count(cache, |tally| tally.free(requested, bytes));
            })
        });
        kept.flatten().is_some()
    }

    /// Caches a small block, and makes room for it if necessary.
    fn keep(&self, cache: &Cache, stacks: &mut Stacks, class: usize, address: usize) {
        if !stacks.push(class, address) {
            if stacks.grow(class) && stacks.push(class, address) {
                cache.grown.store(true, Ordering::Relaxed);
                return;
            }
            stacks.older_half(class, |blocks| lock(&self.shelves[class]).put(blocks));
            stacks.push(class, address);
        }
    }

    fn keep_large(&self, stacks: &mut Stacks, block: Free) {
        if block.bytes > KEPT {
            return self.free_large(&[block]);
        }
        let bin = bin_of(block.bytes);
        stacks.suit(self.totals.allocated.peak());
        if !stacks.push_large(bin, block) {
            stacks.spill_large(bin, block.bytes, |blocks| self.free_large(blocks));
            if !stacks.push_large(bin, block) {
                self.free_large(&[block]);
            }
        }
    }

    /// Allocates a small block from the shelf, and refills the thread's cache.
    fn refill(&'static self, class: usize, ask: Ask) -> Result<Taken, AllocError> {
        let requested = ask.requested;
        let bytes = class_bytes(class);
        let mut batch = [0; BATCH];
        let want = (most_kept(class) / 2).clamp(1, BATCH);
        let mut missed = false;
        let mut count = lock(&self.shelves[class]).take(class, &mut batch[..want]);
        if count == 0 {
            let (address, length, called) = self.ask_for_span(class, ask)?;
            missed = called;
            let mut shelf = lock(&self.shelves[class]);
            shelf.add_span(class, address, length);
            count = shelf.take(class, &mut batch[..want]);
        }
        let [first, rest @ ..] = &batch;
        let rest = &rest[..count.saturating_sub(1)];
        let kept = local::with(self, |cache| {
            cache.with(|stacks| {
                let kept = rest.iter().take_while(|more| stacks.push(class, **more)).count();
                stacks.draw(class, kept + 1);
                kept
            })
        });
        let kept = kept.flatten().unwrap_or(0);
        if kept < rest.len() {
            lock(&self.shelves[class]).put(&rest[kept..]);
        }
        self.count_allocation(requested, bytes, missed);
        Ok(Taken {
            address: *first,
            bytes,
        })
    }

    fn allocate_large(&'static self, ask: Ask, bytes: usize) -> Result<Taken, AllocError> {
        // Fresh memory from the source is zero and usually not resident. Writing to all of it now would make it resident
        // before it is needed.
        let mut written = Vec::new();
        let zeroed = ask.zeroed || self.detours(Detour::Cleared);
        let (address, missed) = self.ask(ask, |core| {
            written.clear();
            core.allocate(bytes, ask.align, |start, end| {
                if zeroed {
                    written.push((start, end));
                }
            })
        })?;
        self.count_allocation(ask.requested, bytes, missed);
        let taken = Taken { address, bytes };
        let zeros = address + self.zeros(taken, ask.requested, ask.zeroed);
        for (start, end) in written {
            // SAFETY: this is a part of the block, which the caller has not received yet.
            unsafe { clear(start, end.min(zeros).saturating_sub(start)) };
        }
        Ok(taken)
    }

    /// Allocates a new span, and room on the shelf for all its blocks.
    pub(super) fn ask_for_span(
        &'static self,
        class: usize,
        ask: Ask,
    ) -> Result<(usize, usize, bool), AllocError> {
        if !lock(&self.shelves[class]).expect_span(class) {
            return Err(self.refuse_tables(ask.requested));
        }
        self.ask(ask, |core| core.add_span(class))
            .inspect_err(|_| lock(&self.shelves[class]).forget_span(class))
    }

    pub(crate) fn free_large(&self, blocks: &[Free]) {
        self.with_engine(|core| blocks.iter().for_each(|block| core.free(block.address)));
    }

    /// Frees a block when the thread has no cache: at the thread's end, or while another thread holds the cache.
    fn free_outside(&self, taken: Taken, requested: usize) {
        if taken.bytes <= SMALL {
            lock(&self.shelves[class_of(taken.bytes)]).put(&[taken.address]);
        }
        self.count_outside(|core| {
            if taken.bytes > SMALL {
                self.change(core, |core| core.free(taken.address));
            }
            core.tally.free(requested, taken.bytes);
        });
        if self.is_closed() {
            self.end_if_empty();
        }
    }
}
