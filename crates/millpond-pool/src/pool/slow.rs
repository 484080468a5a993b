//! The slow path. A call takes it if the thread's cache has no block or no room, if another thread holds the cache, or if
//! there is work to do at every call.

use super::cache::{Cache, Free, Inside, Stacks};
use super::classes::{FINE_UNIT, KEPT, PAGE, SMALL, class_bytes, class_of_block, fine_class_and_bytes};
use super::fast;
use super::heap::{Heap, RawBlock, large, lock, small};
use super::page_map;
use super::request::{AllocRequest, is_optional};
use super::shelf::{Shelf, span_bytes};
use super::slow_path_reason::SlowPathReason;
use super::sync::Ordering;
use super::zeroed::clear;
use millpond_account::budget::Charge;
use millpond_account::error::AllocError;
use millpond_os::reentrancy::inside;

/// An allocation in progress that searches for a block outside the thread's cache. The pool does not end before the block is
/// counted.
struct UnderWay(&'static Heap);

impl UnderWay {
    fn begin(heap: &'static Heap) -> Self {
        heap.lifetime.begin();
        Self(heap)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.lifetime.finish() {
            self.0.end_if_empty();
        }
    }
}

impl Heap {
    /// Allocates a block that the fast path could not allocate.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_slowly(&'static self, ask: AllocRequest) -> Result<RawBlock, AllocError> {
        self.allocate_anyhow(ask)
            .map_err(|error| self.refused_finally(ask.told, error))
    }

    /// Allocates a block and reports the outcome.
    pub(super) fn allocate_anyhow(&'static self, ask: AllocRequest) -> Result<RawBlock, AllocError> {
        let picked = self.picks();
        let outcome = self.allocate_inside(ask);
        if self.has_reason(SlowPathReason::Watched) {
            match outcome {
                Ok(taken) => self.tell_allocated(taken, ask.told, ask.align),
                Err(_) if is_optional() => {}
                Err(_) => self.tell_refused(&ask),
            }
        } else if picked && let Ok(taken) = outcome {
            self.tell_picked(&ask, taken);
        }
        if let Some(guard) = &self.guard {
            self.tell_found(guard);
            // The bytes after the requested ones are checked, so the caller may not use them.
            let bytes = ask.requested.max(1);
            return outcome.map(|taken| RawBlock { bytes, ..taken });
        }
        outcome
    }

    fn allocate_inside(&'static self, ask: AllocRequest) -> Result<RawBlock, AllocError> {
        let _inside = inside();
        let own = self.budget.as_ref().filter(|_| !ask.charged);
        let charge = own.map(|budget| self.charge(budget, ask)).transpose()?;
        let taken = self.place(ask)?;
        // From here on the block itself represents the charge.
        charge.map(Charge::forget);
        Ok(taken)
    }

    fn place(&'static self, ask: AllocRequest) -> Result<RawBlock, AllocError> {
        let AllocRequest { requested, align, .. } = ask;
        self.expect_whole()?;
        if let Some(guard) = &self.guard {
            let _under_way = UnderWay::begin(self);
            return self.allocate_guarded(guard, ask);
        }
        let class = if ask.fine && requested <= SMALL && align <= FINE_UNIT {
            Some(fine_class_and_bytes(requested))
        } else {
            small(requested, align)
        };
        let bytes = match class {
            Some((_, bytes)) => bytes,
            None => large(requested).ok_or_else(|| self.refuse_size(requested))?,
        };
        if ask.looks_in_cache && align <= PAGE && bytes <= KEPT {
            let taken = self.take_cached(class, requested, bytes);
            if taken.is_some() {
                // SAFETY: the block was just taken from the cache or the shelf, and the caller has not received it yet.
                unsafe { clear(taken.address, self.zeros(taken, requested, ask.zeroed)) };
                return Ok(taken);
            }
        }
        let _under_way = UnderWay::begin(self);
        match class {
            Some((class, _)) => self.allocate_small(class, ask),
            None => self.allocate_large(ask, bytes),
        }
    }

    /// Returns how many bytes of a block must read as zero.
    pub(super) fn zeros(&self, taken: RawBlock, requested: usize, zeroed: bool) -> usize {
        if self.has_reason(SlowPathReason::Cleared) {
            taken.bytes
        } else if zeroed {
            requested
        } else {
            0
        }
    }

    /// Allocates a block from the thread's cache on the slow path, or from the shelf if it is small. Returns no block if both
    /// are empty, or if another thread has the cache.
    fn take_cached(&'static self, class: Option<(usize, usize)>, requested: usize, bytes: usize) -> RawBlock {
        let found = fast::with(self, |cache| {
            let mut cache = cache.enter_slowly()?;
            if let Some((class, _)) = class {
                return Some(self.restock(cache, class, requested));
            }
            let address = cache.with(|stacks| stacks.pop_large(bytes))?;
            self.count(cache.tally(), |tally| tally.allocate(requested, bytes));
            Some(RawBlock { address, bytes })
        });
        found.flatten().unwrap_or(RawBlock::EMPTY)
    }

    /// Allocates a small block when the thread's cache has no block of its class on top: a block that was set aside, or one of a batch
    /// from the shelf. The thread stays inside its cache until the block is counted.
    #[cold]
    #[inline(never)]
    pub(super) fn restock(&self, cache: Inside<'_>, class: usize, requested: usize) -> RawBlock {
        let bytes = class_bytes(class);
        let _inside = millpond_os::reentrancy::inside();
        // This variable is declared after `_inside`, so that it is dropped first: when `_inside` ends, deferred frees may enter the
        // cache.
        let mut cache = cache;
        let shelf = |batch: &mut [usize]| self.take_from_shelf(class, batch);
        let aside = cache.with(|stacks| stacks.pop_or_recall(class));
        let address = aside.or_else(|| cache.refill(class, shelf));
        let Some(address) = address else {
            return RawBlock::EMPTY;
        };
        self.count(cache.tally(), |tally| tally.allocate(requested, bytes));
        RawBlock { address, bytes }
    }

    /// Frees a block.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_slowly(&'static self, taken: RawBlock, requested: usize, align: usize) {
        if !self.free_watched(taken, requested, align) {
            self.free_anyhow(taken, requested, align);
        }
    }

    #[inline(never)]
    fn free_anyhow(&'static self, taken: RawBlock, requested: usize, align: usize) {
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
            // The block is not freed. Otherwise two callers could get the same memory.
            return self.say_wrong(&wrong);
        }
        self.free_inside(taken, requested);
        if self.has_reason(SlowPathReason::Watched) {
            self.tell_flow();
        }
        if let Some(guard) = &self.guard {
            self.tell_found(guard);
        }
    }

    #[inline(never)]
    pub(super) fn free_inside(&'static self, taken: RawBlock, requested: usize) {
        let _inside = inside();
        // This happens before the address can be allocated again. The budget is credited at the end.
        let charged = self.has_reason(SlowPathReason::Charged);
        let tenant = if charged {
            lock(&self.charges).remove(&taken.address)
        } else {
            None
        };
        let past = self.has_reason(SlowPathReason::Awaited) || self.has_reason(SlowPathReason::Over);
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
        if self.has_reason(SlowPathReason::Over) {
            self.shrink();
        }
        if self.has_reason(SlowPathReason::Awaited) {
            self.tell_line();
        }
    }

    fn keep_somewhere(&'static self, taken: RawBlock, requested: usize) -> bool {
        let RawBlock { address, bytes } = taken;
        let kept = fast::with(self, |cache| {
            cache.with(|stacks| {
                if bytes <= SMALL {
                    self.keep(cache, stacks, class_of_block(bytes), address);
                } else {
                    self.keep_large(stacks, Free { address, bytes });
                }
                self.count(&cache.tally, |tally| tally.free(requested, bytes));
            })
        });
        kept.flatten().is_some()
    }

    /// Caches a small block, and makes room for it if necessary.
    fn keep(&self, cache: &Cache, stacks: &mut Stacks, class: usize, address: usize) {
        if !stacks.push_first(class, address) {
            if stacks.grow(class) && stacks.push(class, address) {
                cache.grown.store(true, Ordering::Relaxed);
                return;
            }
            stacks.older_half(class, |blocks| lock(&self.shelves[class]).put(class, blocks));
            if !stacks.push(class, address) {
                // There is no memory for the room of this class.
                lock(&self.shelves[class]).put(class, &[address]);
            }
        }
    }

    fn keep_large(&self, stacks: &mut Stacks, block: Free) {
        if block.bytes > KEPT {
            return self.free_large(&[block]);
        }
        stacks.suit(self.totals.allocated.peak());
        if !stacks.push_large(block) {
            stacks.spill_large(block.bytes, |blocks| self.free_large(blocks));
            if !stacks.push_large(block) {
                self.free_large(&[block]);
            }
        }
    }

    /// Allocates a small block from the shelf, or from a new span. The other blocks of the span stay on the shelf.
    fn allocate_small(&'static self, class: usize, ask: AllocRequest) -> Result<RawBlock, AllocError> {
        let (mut block, mut missed) = ([0], false);
        if self.take_from_shelf(class, &mut block) == 0 {
            missed = self.add_span(class, ask, &mut block)?;
            if missed {
                self.reuse_spans();
            }
        }
        let bytes = class_bytes(class);
        self.count_allocation(ask.requested, bytes, missed);
        fast::with(self, |cache| cache.draw_outside(class));
        let taken = RawBlock {
            address: block[0],
            bytes,
        };
        // SAFETY: the block was just taken from the shelf, and the caller has not received it yet.
        unsafe { clear(taken.address, self.zeros(taken, ask.requested, ask.zeroed)) };
        Ok(taken)
    }

    /// Takes small blocks of a class from its shelf, as many as fit into `batch`. Returns their number.
    fn take_from_shelf(&self, class: usize, batch: &mut [usize]) -> usize {
        self.take_blocks(&mut lock(&self.shelves[class]), class, batch)
    }

    fn take_blocks(&self, shelf: &mut Shelf, class: usize, batch: &mut [usize]) -> usize {
        if shelf.has_discarded() {
            let restored = self
                .with_engine(|core| shelf.take(class, batch, |address, bytes| core.restore(address, bytes)));
            if let Some(count) = restored {
                return count;
            }
        }
        shelf.take(class, batch, |_, _| None)
    }

    fn allocate_large(&'static self, ask: AllocRequest, bytes: usize) -> Result<RawBlock, AllocError> {
        // Fresh memory from the source is zero and usually not resident. Writing to all of it now would make it resident
        // before it is needed.
        let mut written = Vec::new();
        let zeroed = ask.zeroed || self.has_reason(SlowPathReason::Cleared);
        let (address, missed) = self.ask(ask, |core| {
            written.clear();
            core.allocate(bytes, ask.align, |start, end| {
                if zeroed {
                    written.push((start, end));
                }
            })
        })?;
        self.count_allocation(ask.requested, bytes, missed);
        if missed {
            self.reuse_spans();
        }
        let taken = RawBlock { address, bytes };
        let zeros = address + self.zeros(taken, ask.requested, ask.zeroed);
        for (start, end) in written {
            // SAFETY: this is a part of the block, which the caller has not received yet.
            unsafe { clear(start, end.min(zeros).saturating_sub(start)) };
        }
        Ok(taken)
    }

    /// Adds a span to the shelf of a class, and takes as many blocks from it as fit into `batch`. Returns whether the source was called.
    pub(super) fn add_span(
        &'static self,
        class: usize,
        ask: AllocRequest,
        batch: &mut [usize],
    ) -> Result<bool, AllocError> {
        let Some(bits) = lock(&self.shelves[class]).expect_span(class) else {
            return Err(self.refuse_tables(ask.told));
        };
        let (span, missed) = self.ask(ask, |core| core.allocate_span(class))?;
        let (address, bytes) = (span.address() as usize, span_bytes(class));
        if self.is_mapped && self.guard.is_none() && !self.maps(|| page_map::set_span(address, bytes, class))
        {
            self.with_engine(|core| core.free_span(span));
            return Err(self.refuse_tables(ask.told));
        }
        let mut shelf = lock(&self.shelves[class]);
        shelf.add_span(class, span, bits);
        self.take_blocks(&mut shelf, class, batch);
        Ok(missed)
    }

    /// Sets words of the map of pages. If the system has no memory for them, tries again when the pool has given its free memory back.
    pub(super) fn maps(&self, set: impl Fn() -> bool) -> bool {
        set() || {
            self.trim();
            set()
        }
    }

    pub(crate) fn free_large(&self, blocks: &[Free]) {
        self.with_engine(|core| blocks.iter().for_each(|block| core.free(block.address)));
    }

    /// Frees a block without the thread's cache: at the thread's end, while another thread holds the cache, or if freed blocks bypass the
    /// caches.
    fn free_outside(&self, taken: RawBlock, requested: usize) {
        if taken.bytes <= SMALL {
            let class = class_of_block(taken.bytes);
            lock(&self.shelves[class]).put(class, &[taken.address]);
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
