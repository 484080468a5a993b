//! The slow way: where a thread's cache has no block or no room, where another thread has it, or where something is to be
//! done at every call.

use super::account::{Tally, bump};
use super::cache::{Cache, Free, Stacks, most_kept};
use super::classes::{KEPT, PAGE, SMALL, bin_of, class_bytes, class_of};
use super::core::Core;
use super::detour::Detour;
use super::heap::{Heap, Taken, large, lock, small};
use super::local;
use super::zeroed::clear;
use crate::budget::{Budget, Charge, Refusal};
use crate::error::AllocError;
use crate::global::{has_reserve, inside};
use crate::post_mortem::{PostMortem, Survey};
use millpond_engine as engine;
use std::time::{Duration, Instant};

/// Small blocks that move between a thread and a shelf at once, at most.
const BATCH: usize = 32;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) requested: usize,
    pub(crate) align: usize,
    /// Whether the bytes asked for are to read as zero.
    zeroed: bool,
    /// The place in the line of requests that wait.
    ticket: Option<u64>,
    /// Whether it may wait for a budget, and until when.
    until: Option<Instant>,
    /// Whether a tenant's charge has reached the pool's own budget already.
    charged: bool,
}

impl Ask {
    pub(crate) fn new(requested: usize, align: usize) -> Self {
        Self {
            requested,
            align,
            zeroed: false,
            ticket: None,
            until: None,
            charged: false,
        }
    }

    pub(crate) fn zeroed(self) -> Self {
        Self { zeroed: true, ..self }
    }
}

/// The end of a time from now; where time ends, waiting does not.
fn deadline(wait: Duration) -> Instant {
    const AGES: Duration = Duration::from_secs(1 << 30);
    Instant::now() + wait.min(AGES)
}

impl Heap {
    /// Hands a block out.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_slowly(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        match self.allocate_watched(&ask) {
            Some(taken) => Ok(taken),
            None => self.allocate_anyhow(ask),
        }
    }

    #[inline(never)]
    fn allocate_anyhow(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        let outcome = self.allocate_inside(ask);
        if self.detours(Detour::Watched) {
            self.tell_allocated(&ask, &outcome);
        }
        if let Some(guard) = &self.guard {
            self.tell_found(guard);
            // What is behind the bytes asked for is looked at, and so not the caller's.
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
        // From here on the block stands for it.
        charge.map(Charge::forget);
        Ok(taken)
    }

    /// Hands a block out, and waits for one until then where there is none now.
    fn allocate_until(&'static self, ask: Ask, until: Instant) -> Result<Taken, AllocError> {
        match self.allocate_slowly(ask) {
            Err(error) if error.is_out_of_memory() && Instant::now() < until => {}
            outcome => return outcome,
        }
        let place = self.join_line();
        let ask = Ask {
            ticket: Some(place.ticket),
            ..ask
        };
        loop {
            let changes = place.changes();
            match self.allocate_slowly(ask) {
                Err(error) if error.is_out_of_memory() => {
                    // What other pools give back to a budget is not told here.
                    let soon = Instant::now()
                        + Duration::from_millis(if self.reserved.is_some() { 2 } else { 1000 });
                    if !place.wait(changes, until.min(soon)) && Instant::now() >= until {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Hands a block out at the expense of a budget beside the pool's own or below it, and waits for it as long as said.
    /// `charged` says that the pool's own has been charged for it.
    pub(crate) fn allocate_for(
        &'static self,
        (budget, charged): (Option<&Budget>, bool),
        wait: Option<Duration>,
        (requested, align, zeroed): (usize, usize, bool),
    ) -> Result<Taken, AllocError> {
        let _inside = inside();
        let align = align.max(self.align);
        let ask = Ask {
            zeroed,
            until: wait.map(deadline),
            charged: charged || budget.is_some_and(|budget| self.is_covered_by(budget)),
            ..Ask::new(requested, align)
        };
        let charge = budget.map(|budget| self.charge(budget, ask)).transpose()?;
        let taken = match ask.until {
            Some(until) => self.allocate_until(ask, until),
            None => self.allocate_slowly(ask),
        }?;
        if let Some(charge) = charge {
            self.charge_to(taken.address, charge);
        }
        Ok(taken)
    }

    /// Whether what is charged to a budget is charged to the pool's own as well.
    pub(crate) fn is_covered_by(&self, budget: &Budget) -> bool {
        self.budget.as_ref().is_some_and(|own| budget.reaches(own))
    }

    /// What a block is charged to until it is freed.
    pub(crate) fn charge_to(&self, address: usize, charge: Charge) {
        let _inside = inside();
        let before = lock(&self.charges).insert(address, charge);
        drop(before);
    }

    /// From now on blocks may be charged to somebody.
    pub(crate) fn have_tenants(&self) {
        let _inside = inside();
        self.set_detour(Detour::Charged, true);
    }

    /// Charges a budget of allocated bytes.
    fn charge(&self, budget: &Budget, ask: Ask) -> Result<Charge, AllocError> {
        let bytes = Taken::of(0, ask.requested, ask.align).bytes as u64;
        let charged = match ask.until {
            Some(until) => budget.charge_timeout(bytes, until.saturating_duration_since(Instant::now())),
            None => budget.charge(bytes),
        };
        charged.map_err(|error| {
            self.count_refusal();
            AllocError::Budget(Box::new(error))
        })
    }

    fn place(&'static self, ask: Ask) -> Result<Taken, AllocError> {
        let Ask { requested, align, .. } = ask;
        if let Some(guard) = &self.guard {
            return self.allocate_guarded(guard, ask);
        }
        if let Some((class, bytes)) = small(requested, align) {
            let taken = match self.kept_small(class, requested, bytes) {
                Some(taken) => taken,
                None => self.refill(class, ask)?,
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
        self.allocate_large(ask, bytes)
    }

    /// How many bytes of a block are to read as zero.
    pub(super) fn zeros(&self, taken: Taken, ask: Ask) -> usize {
        if self.detours(Detour::Cleared) {
            taken.bytes
        } else if ask.zeroed {
            ask.requested
        } else {
            0
        }
    }

    fn wipe(&self, taken: Taken, ask: Ask) {
        // SAFETY: the block was just taken from the cache or the shelf, and is on its way to the caller.
        unsafe { clear(taken.address, self.zeros(taken, ask)) };
    }

    fn kept_small(&'static self, class: usize, requested: usize, bytes: usize) -> Option<Taken> {
        let found = local::with(self, |cache| {
            let address = cache.with(|stacks| stacks.pop(class))??;
            self.count(cache, |tally| tally.allocate(requested, bytes));
            Some(Taken { address, bytes })
        });
        found.flatten()
    }

    fn kept_large(&'static self, requested: usize, bytes: usize) -> Option<Taken> {
        let found = local::with(self, |cache| {
            let block = cache.with(|stacks| stacks.pop_large(bin_of(bytes), bytes))??;
            self.count(cache, |tally| tally.allocate(requested, bytes));
            let address = block.address;
            Some(Taken { address, bytes })
        });
        found.flatten()
    }

    /// Takes a block back.
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
        if self.detours(Detour::Watched)
            && let Err(wrong) = self.tell_freed(taken, requested, align)
        {
            // Taken back it would be somebody else's as well: so it is left where it is.
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
        // Before the address can be another's. What it was charged to gets it back when all is done.
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
        // Last, so that whoever is woken finds the memory.
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

    /// Gives a block's bytes back to the pool's own budget.
    fn refund(&self, taken: Taken) {
        if let Some(budget) = &self.budget {
            drop(budget.restore(taken.bytes as u64));
        }
    }

    fn keep_somewhere(&'static self, taken: Taken, requested: usize) -> bool {
        let Taken { address, bytes } = taken;
        let kept = local::with(self, |cache| {
            cache.with(|stacks| {
                if bytes <= SMALL {
                    self.keep(stacks, class_of(bytes), address);
                } else {
                    self.keep_large(stacks, Free { address, bytes });
                }
                self.count(cache, |tally| tally.free(requested, bytes));
            })
        });
        kept.flatten().is_some()
    }

    /// Keeps a small block, and makes room for it where there is none.
    fn keep(&self, stacks: &mut Stacks, class: usize, address: usize) {
        if !stacks.push(class, address) {
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

    /// A small block from the shelf, and more of them for the thread.
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
            cache.with(|stacks| rest.iter().take_while(|more| stacks.push(class, **more)).count())
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
        // Memory that comes fresh from the source is zero, and mostly none of it is there yet: touching all of it now
        // would bring it in before it is needed.
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
        let zeros = address + self.zeros(taken, ask);
        for (start, end) in written {
            // SAFETY: a part of the block, which is on its way to the caller.
            unsafe { clear(start, end.min(zeros).saturating_sub(start)) };
        }
        Ok(taken)
    }

    /// A new span, and room on the shelf for all its blocks.
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

    /// Sees to it that the tables have room before the pool grows: what threads keep and shelves hold makes room for
    /// them.
    fn keep_tables(&self, requested: usize) -> Result<(), AllocError> {
        if has_reserve() {
            return Ok(());
        }
        self.trim();
        if has_reserve() {
            return Ok(());
        }
        Err(self.refuse_tables(requested))
    }

    /// There is no memory for the pool's own tables.
    pub(super) fn refuse_tables(&self, requested: usize) -> AllocError {
        self.refuse(requested, self.nothing_left(requested))
    }

    /// Has a block in a caller's hand stand for a request of another size, which has the same block: sizes and alignments
    /// as asked for, before and from now on. False where the block is not what the caller says.
    pub(crate) fn resize(&'static self, taken: Taken, from: (usize, usize), to: (usize, usize)) -> bool {
        if self.is_watched() {
            // Told as a free and an allocation; nobody else can be given the block in between.
            if let Err(wrong) = self.tell_freed(taken, from.0, from.1) {
                self.say_wrong(&wrong);
                return false;
            }
            self.tell_allocated(&Ask::new(to.0, to.1), &Ok(taken));
        }
        self.count_resize(from.0, to.0);
        true
    }

    fn count_resize(&'static self, from: usize, to: usize) {
        let counted = local::with(self, |cache| {
            cache.with(|_| self.count(cache, |tally| tally.resize(from, to)))
        });
        if counted.flatten().is_none() {
            let _inside = inside();
            self.count_outside(|core| {
                core.tally.resize(from, to);
            });
        }
    }

    /// Asks the engine for something of the pool's own.
    pub(super) fn ask_for<R>(
        &'static self,
        bytes: usize,
        work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        self.ask(Ask::new(bytes, 1), work)
    }

    /// Asks the engine and, where memory is short, once more with all that threads and shelves hold, and other pools
    /// of the same budget.
    pub(super) fn ask<R>(
        &'static self,
        ask: Ask,
        mut work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        let requested = ask.requested;
        self.keep_tables(requested)?;
        if !self.is_behind(ask.ticket) {
            match self.with_core(requested, &mut work) {
                Err(error) if error.is_out_of_memory() => {}
                outcome => return outcome.map_err(|error| self.refuse(requested, error)),
            }
            self.drain_caches();
            self.release_spans();
            match self.with_core(requested, &mut work) {
                Err(error) if error.is_out_of_memory() && self.reserved.is_some() => {}
                outcome => return outcome.map_err(|error| self.refuse(requested, error)),
            }
            self.trim_siblings();
        }
        let outcome = if self.is_behind(ask.ticket) {
            Err(self.nothing_left(requested))
        } else {
            self.with_core(requested, work)
        };
        outcome.map_err(|error| self.refuse(requested, error))
    }

    /// What is said to a request that would have to wait for others, and may not.
    fn nothing_left(&self, requested: usize) -> engine::AllocError {
        let core = lock(&self.core);
        let stats = core.as_ref().map(|core| core.memory.stats());
        engine::AllocError::Exhausted {
            requested: requested as u64,
            device_free: 0,
            largest_hole: 0,
            cached: stats.map_or(0, engine::Stats::cached),
        }
    }

    fn with_core<R>(
        &self,
        requested: usize,
        work: impl FnOnce(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, engine::AllocError> {
        let mut core = lock(&self.core);
        let Some(core) = core.as_mut() else {
            return Err(engine::AllocError::TooLarge {
                requested: requested as u64,
                limit: 0,
            });
        };
        work(core)
    }

    pub(super) fn refuse_size(&self, requested: usize) -> AllocError {
        let (requested, limit) = (requested as u64, isize::MAX as u64);
        self.refuse(
            requested as usize,
            engine::AllocError::TooLarge { requested, limit },
        )
    }

    fn count_refusal(&self) -> Option<Refusal> {
        let mut core = lock(&self.core);
        let core = core.as_mut()?;
        core.refusals += 1;
        core.memory.source_mut().take_refusal()
    }

    /// Counts a refusal, and says who holds what.
    #[cold]
    fn refuse(&self, requested: usize, why: engine::AllocError) -> AllocError {
        let refusal = self.count_refusal();
        match refusal {
            Some(refusal) if why.is_out_of_memory() => AllocError::Budget(Box::new(refusal.into_error(None))),
            _ => AllocError::of(why, || self.post_mortem(requested)),
        }
    }

    /// Who holds what, for a request that was refused. Under the pool's lock, and nothing is allocated.
    pub(crate) fn post_mortem(&self, requested: usize) -> PostMortem {
        let _inside = inside();
        let mut survey = Survey::new(requested as u64);
        self.survey(&mut survey);
        survey.finish()
    }

    pub(crate) fn survey(&self, survey: &mut Survey) {
        if let Some(core) = lock(&self.core).as_ref() {
            core.survey(survey);
        }
        if let Some(ledger) = self.ledger() {
            ledger.survey(survey);
        }
    }

    /// Counts by a thread that has a cache.
    fn count(&self, cache: &Cache, work: impl FnOnce(&Tally) -> bool) {
        if work(&cache.tally) {
            self.tell(cache);
        }
    }

    pub(super) fn count_allocation(&'static self, requested: usize, bytes: usize, missed: bool) {
        let add = |tally: &Tally| {
            if missed {
                bump(&tally.misses);
            }
            tally.allocate(requested, bytes)
        };
        if local::with(self, |cache| self.count(cache, add)).is_none() {
            self.count_outside(|core| {
                add(&core.tally);
            });
        }
    }

    pub(super) fn count_free(&'static self, requested: usize, bytes: usize) {
        let counted = local::with(self, |cache| {
            cache.with(|_| self.count(cache, |tally| tally.free(requested, bytes)))
        });
        if counted.flatten().is_none() {
            self.count_outside(|core| {
                core.tally.free(requested, bytes);
            });
            if self.is_closed() {
                self.end_if_empty();
            }
        }
    }

    pub(crate) fn free_large(&self, blocks: &[Free]) {
        if let Some(core) = lock(&self.core).as_mut() {
            for block in blocks {
                core.free(block.address);
            }
        }
    }

    fn count_outside(&self, work: impl FnOnce(&mut Core)) {
        if let Some(core) = lock(&self.core).as_mut() {
            work(core);
            core.tally.tell(&self.totals, self.alone());
        }
    }

    /// Takes a block back where the thread has no cache: at its end, or while another thread looks into it.
    fn free_outside(&self, taken: Taken, requested: usize) {
        if taken.bytes <= SMALL {
            lock(&self.shelves[class_of(taken.bytes)]).put(&[taken.address]);
        }
        self.count_outside(|core| {
            if taken.bytes > SMALL {
                core.free(taken.address);
            }
            core.tally.free(requested, taken.bytes);
        });
        if self.is_closed() {
            self.end_if_empty();
        }
    }
}
