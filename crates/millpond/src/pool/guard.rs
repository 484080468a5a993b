//! Guarded blocks: each has pages of its own, so that whoever writes past its end or after its free is stopped at once.
//!
//! ```text
//!   book.rs     where blocks are, live and in quarantine
//!   bytes.rs    what is filled in around them, and whether it is still there
//!   fault.rs    which block an address belongs to
//! ```
//!
//! Pages come from the pool's engine like any others, so limits, budgets and what is reserved hold without a word about
//! them here; only the way in is another, as for all that makes calls slow ([`Detour`](super::detour::Detour)). What
//! the account calls *allocated* is what the same blocks would take without guards, so that a program's figures and its
//! budgets do not change with them; what is *reserved* does.
//!
//! A page that cannot be closed, because the system makes no more maps, is filled and looked at instead.
//!
//! Nobody is called under the book's lock or the engine's; what is found to be wrong is told after.

#[forbid(unsafe_code)]
mod book;
mod bytes;
mod fault;
#[cfg(test)]
mod tests;

pub(crate) use bytes::{is_filled_around, refill_around};
pub(super) use fault::register;
pub use fault::{FaultPlace, FaultReport, describe_fault};

use super::Pool;
use super::ask::Ask;
use super::classes::PAGE;
use super::detour::Detour;
use super::heap::{Heap, Taken, lock};
use super::zeroed::clear;
use crate::error::AllocError;
use crate::event::Facts;
use crate::ledger::{Ledger, Tracking, WrongFree};
use crate::os;
use crate::ranked::{Locked, Order, Rank, Ranked};
use crate::reentrancy::inside;
use crate::time::Time;
use book::{Book, Entry, Shape};
use bytes::{AROUND, FREED, fill, first_other};
use std::sync::{Arc, OnceLock};

/// Bytes of pages that stay in quarantine, unless something else is said.
pub(crate) const QUARANTINE: u64 = 64 << 20;

/// What a pool keeps for its guarded blocks.
pub(crate) struct Guard {
    book: Ranked<Book>,
    /// Makes the records and keeps the stacks; has no blocks.
    scribe: Arc<Ledger>,
    quarantine: usize,
    /// What was found under locks, and is not told yet.
    found: Ranked<Vec<WrongFree>>,
    page: usize,
    /// As if the system made no more maps.
    #[cfg(test)]
    no_maps: Ranked<bool>,
    /// The next pool that guards.
    next: OnceLock<&'static Heap>,
}

/// A guard's locks, held around a fork.
pub(crate) struct Rest {
    _book: Locked<'static, Book>,
    _found: Locked<'static, Vec<WrongFree>>,
}

impl Guard {
    pub(crate) fn new(order: Order, quarantine: u64, stacks: bool) -> Self {
        let scribe = Ledger::builder(Tracking::All).times(true).stacks(stacks);
        Self {
            book: order.lock(Rank::Book, Book::default()),
            scribe: Arc::new(scribe.remember_freed(0).build()),
            quarantine: usize::try_from(quarantine).unwrap_or(usize::MAX),
            found: order.lock(Rank::Found, Vec::new()),
            page: (os::page_bytes() as usize).max(PAGE),
            #[cfg(test)]
            no_maps: order.lock(Rank::NoMaps, false),
            next: OnceLock::new(),
        }
    }

    pub(crate) fn rest(&'static self) -> Rest {
        Rest {
            _book: lock(&self.book),
            _found: lock(&self.found),
        }
    }

    /// Locks the record of where the blocks are.
    pub(super) fn book(&self) -> Locked<'_, Book> {
        lock(&self.book)
    }

    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.book.try_lock().is_some() || self.found.try_lock().is_some()
    }

    pub(crate) fn scribe(&self) -> &Arc<Ledger> {
        &self.scribe
    }

    fn already_free(&self, address: usize, entry: &Entry) -> Option<Box<WrongFree>> {
        let freed = entry.freed?;
        Some(Box::new(WrongFree::AlreadyFree {
            address,
            block: entry.record,
            allocated: self.scribe.stack_of(&entry.record),
            freed,
            freed_at: self.scribe.freed_at(&freed),
        }))
    }

    fn overrun(&self, entry: &Entry, at: usize) -> Box<WrongFree> {
        let address = entry.place.address;
        Box::new(WrongFree::Overrun {
            address,
            offset: at.wrapping_sub(address).cast_signed(),
            block: entry.record,
            at: self.scribe.stack_of(&entry.record),
        })
    }

    /// Something was written to a block in quarantine.
    fn written(&self, entry: &Entry, at: usize) -> Option<Box<WrongFree>> {
        let address = entry.place.address;
        let freed = entry.freed?;
        Some(Box::new(WrongFree::UsedAfterFree {
            address,
            offset: at.wrapping_sub(address).cast_signed(),
            block: entry.record,
            allocated: self.scribe.stack_of(&entry.record),
            freed,
            freed_at: self.scribe.freed_at(&freed),
        }))
    }
}

impl Entry {
    /// The first byte around a live block that is not as it was filled.
    fn first_overrun(&self) -> Option<usize> {
        let place = self.place;
        let behind = place.address + self.record.requested.max(1);
        // SAFETY: by the invariant of `Place` both parts are of the block's pages and not its caller's; they were filled
        // when it was handed out, and are open as long as it is live.
        let found = unsafe { first_other(behind, self.filled_to(), AROUND) };
        // SAFETY: as above.
        found.or_else(|| unsafe { first_other(place.base, place.address, AROUND) })
    }
}

impl Heap {
    fn protect(&self, from: usize, to: usize, closed: bool) -> bool {
        #[cfg(test)]
        if closed && self.guard.as_ref().is_some_and(|guard| *lock(&guard.no_maps)) {
            return false;
        }
        let done = self.with_engine(|core| {
            let source = core.memory.source_mut();
            crate::memory::MemorySource::protect(source, from as u64, (to - from) as u64, closed)
        });
        done.unwrap_or(false)
    }

    /// Whether blocks are guarded.
    pub(crate) fn is_guarded(&self) -> bool {
        self.detours(Detour::Guarded)
    }

    /// Hands out a block with pages of its own.
    pub(super) fn allocate_guarded(&'static self, guard: &Guard, ask: Ask) -> Result<Taken, AllocError> {
        let Ask { requested, align, .. } = ask;
        let bytes = Taken::of(0, requested, align).bytes;
        let shape =
            Shape::of(requested, align, bytes, guard.page).ok_or_else(|| self.refuse_size(requested))?;
        let mut written = Vec::new();
        let (base, missed) = self.ask(ask, |core| {
            written.clear();
            core.allocate(shape.whole, shape.align, |start, end| written.push((start, end)))
        })?;
        let place = shape.at(base);
        let mut fenced = self.protect(place.fence, place.end, true);
        if !fenced {
            // The system makes no more maps: those of the quarantine are worth less.
            self.empty_quarantine(guard, 0);
            fenced = self.protect(place.fence, place.end, true);
        }
        let facts = Facts {
            address: place.address,
            requested,
            bytes,
            align,
            ..Facts::default()
        };
        let entry = Entry {
            place,
            record: guard.scribe.record(&facts, self.kind, Some(Time::now())),
            freed: None,
            fenced,
            shut: false,
        };
        let behind = place.address + requested.max(1);
        // SAFETY: by the invariant of `Place` of these pages, which the engine has handed out just now, and nobody else's.
        unsafe { fill(place.base, place.address, AROUND) };
        // SAFETY: as above; what is closed is left out.
        unsafe { fill(behind, entry.filled_to(), AROUND) };
        let taken = Taken {
            address: place.address,
            bytes: requested,
        };
        let zeros = place.address + self.zeros(taken, ask.requested, ask.zeroed);
        for (start, end) in written {
            let (start, end) = (start.max(place.address), end.min(zeros));
            // SAFETY: of the block, which is on its way to the caller.
            unsafe { clear(start, end.saturating_sub(start)) };
        }
        lock(&guard.book).enter(entry);
        self.count_allocation(requested, bytes, missed);
        Ok(Taken { bytes, ..taken })
    }

    /// The block that a caller gives back, as the account has it, and what was written around it.
    ///
    /// # Errors
    /// There is no such block, or it was freed before.
    pub(super) fn look_at_guarded(
        &self,
        guard: &Guard,
        address: usize,
    ) -> Result<(Taken, Option<Box<WrongFree>>), Box<WrongFree>> {
        let _inside = inside();
        let found = lock(&guard.book).at(address).copied();
        let entry = found.ok_or(WrongFree::Foreign { address })?;
        if let Some(wrong) = guard.already_free(address, &entry) {
            return Err(wrong);
        }
        let overrun = entry.first_overrun().map(|at| guard.overrun(&entry, at));
        let bytes = entry.record.bytes;
        Ok((Taken { address, bytes }, overrun))
    }

    /// Takes a block back, into quarantine; false where another thread was first.
    pub(super) fn free_guarded(&'static self, guard: &Guard, taken: Taken) -> bool {
        let by = guard.scribe.freed_here(Some(Time::now()));
        let record = {
            let mut book = lock(&guard.book);
            let Some(entry) = book.at(taken.address).copied() else {
                return false;
            };
            if let Some(wrong) = guard.already_free(taken.address, &entry) {
                lock(&guard.found).push(*wrong);
                return false;
            }
            let place = entry.place;
            // SAFETY: the block's open pages: its caller has given it back, and nobody else has it.
            unsafe { fill(place.base, entry.filled_to(), FREED) };
            let shut = self.protect(place.base, place.fence, true);
            book.retire(place.base, by, shut);
            self.release_above(guard, &mut book, guard.quarantine);
            entry.record
        };
        self.count_free(record.requested, record.bytes);
        true
    }

    /// Gives the engine what was freed first, until no more than so many bytes are in quarantine.
    fn release_above(&self, guard: &Guard, book: &mut Book, bytes: usize) {
        while let Some(entry) = book.oldest_above(bytes).copied() {
            let place = entry.place;
            let written = if entry.shut {
                None
            } else {
                // SAFETY: pages of a block that was freed, filled then, and open.
                unsafe { first_other(place.base, entry.filled_to(), FREED) }
            };
            if let Some(wrong) = written.and_then(|at| guard.written(&entry, at)) {
                lock(&guard.found).push(*wrong);
            }
            let first = if entry.shut { place.base } else { place.fence };
            let closed = entry.shut || entry.fenced;
            if closed && !self.protect(first, place.end, false) {
                // It would cut a map in two, which the system does not do now: later.
                return;
            }
            self.with_engine(|core| core.free(place.base));
            book.forget_oldest();
        }
    }

    /// Gives the engine all but so many bytes of the quarantine.
    fn empty_quarantine(&self, guard: &Guard, bytes: usize) {
        self.release_above(guard, &mut lock(&guard.book), bytes);
    }

    /// What nobody uses goes back, and so does what is in quarantine.
    pub(super) fn end_quarantine(&self) {
        if let Some(guard) = &self.guard {
            self.empty_quarantine(guard, 0);
        }
    }

    /// Tells subscribers and standard error what is wrong. Outside every lock.
    #[cold]
    pub(super) fn tell_wrong(&self, wrong: &WrongFree) {
        self.tell_wrong_to_watchers(wrong);
        self.say_wrong(wrong);
    }

    /// The same for what was found under locks.
    pub(super) fn tell_found(&self, guard: &Guard) {
        let found = std::mem::take(&mut *lock(&guard.found));
        found.iter().for_each(|wrong| self.tell_wrong(wrong));
        let _inside = inside();
        drop(found);
    }
}

/// What a pool that guards its blocks has of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardStats {
    /// Blocks in callers' hands.
    pub blocks: u64,
    /// Blocks in quarantine.
    pub quarantined: u64,
    /// Bytes of their pages.
    pub quarantined_bytes: u64,
    /// The most bytes of pages that stay there.
    pub quarantine: u64,
    /// Blocks ever handed out behind which no page could be closed.
    pub unfenced: u64,
}

impl Pool {
    /// What it has of guarded blocks; none where it does not [guard](super::PoolBuilder::guard) them.
    #[must_use]
    pub fn guard_stats(&self) -> Option<GuardStats> {
        let guard = self.heap().guard.as_ref()?;
        let book = lock(&guard.book);
        let (blocks, quarantined, bytes) = book.counts();
        Some(GuardStats {
            blocks: blocks as u64,
            quarantined: quarantined as u64,
            quarantined_bytes: bytes as u64,
            quarantine: guard.quarantine as u64,
            unfenced: book.unfenced,
        })
    }
}
