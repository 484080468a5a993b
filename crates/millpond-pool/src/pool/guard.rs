//! Guarded blocks. Each block has pages of its own, so that a write past its end or a use after its free is caught at once.
//!
//! ```text
//!   blocks.rs   the places of blocks, live and in quarantine
//!   bytes.rs    the fill around blocks and in freed blocks, and the check of it
//!   fault.rs    the block that an address belongs to
//! ```
//!
//! Pages come from the pool's engine like any others, so limits, budgets and reserved bytes need no special handling here.
//! The only difference is that every call takes the slow path ([`SlowPathReason`](super::slow_path_reason::SlowPathReason)). The
//! *allocated* bytes in the counters are those that the same blocks would take without guards, so a program's counts and
//! budgets do not change. The *reserved* bytes do change.
//!
//! A page that cannot be protected, because the system makes no more mappings, is filled and checked instead.
//!
//! No callback runs under the lock of the list of blocks or of the engine. Errors that are found under these locks are reported
//! afterwards.

#[forbid(unsafe_code)]
mod blocks;
mod bytes;
mod fault;
#[cfg(test)]
mod tests;

pub(crate) use bytes::{is_filled_around, refill_around};
pub(super) use fault::register;
pub use fault::{FaultPlace, FaultReport, describe_fault};

use super::Pool;
use super::classes::PAGE;
use super::heap::{Heap, RawBlock, lock};
use super::request::AllocRequest;
use super::slow_path_reason::SlowPathReason;
use super::zeroed::clear;
use blocks::{Entry, GuardedBlocks, Shape};
use bytes::{AROUND, FREED, fill, first_other};
use millpond_account::error::AllocError;
use millpond_account::event::BlockInfo;
use millpond_account::ledger::{Ledger, Tracking, WrongFree};
use millpond_os as os;
use millpond_os::ranked::{Locked, Order, Rank, Ranked};
use millpond_os::reentrancy::inside;
use millpond_os::time::Time;
use std::sync::{Arc, OnceLock};

/// The default of the maximum number of bytes of pages in quarantine.
pub(crate) const QUARANTINE: u64 = 64 << 20;

/// The state of a pool's guarded blocks.
pub(crate) struct Guard {
    blocks: Ranked<GuardedBlocks>,
    /// The ledger that creates the records and stores the stacks. It contains no blocks.
    ledger: Arc<Ledger>,
    quarantine: usize,
    /// Errors that were found under locks and are not reported yet.
    found: Ranked<Vec<WrongFree>>,
    page: usize,
    /// Tests set this to simulate that the system makes no more mappings.
    #[cfg(test)]
    no_maps: Ranked<bool>,
    /// The next pool that guards blocks.
    next: OnceLock<&'static Heap>,
}

/// A guard's locks, which are held during a fork.
pub(crate) struct GuardLocks {
    _blocks: Locked<'static, GuardedBlocks>,
    _found: Locked<'static, Vec<WrongFree>>,
}

impl Guard {
    pub(crate) fn new(order: Order, quarantine: u64, stacks: bool) -> Self {
        let ledger = Ledger::builder(Tracking::All).times(true).stacks(stacks);
        Self {
            blocks: order.lock(Rank::GuardedBlocks, GuardedBlocks::default()),
            ledger: Arc::new(ledger.remember_freed(0).build()),
            quarantine: usize::try_from(quarantine).unwrap_or(usize::MAX),
            found: order.lock(Rank::Found, Vec::new()),
            page: (os::page_bytes() as usize).max(PAGE),
            #[cfg(test)]
            no_maps: order.lock(Rank::NoMaps, false),
            next: OnceLock::new(),
        }
    }

    pub(crate) fn rest(&'static self) -> GuardLocks {
        GuardLocks {
            _blocks: lock(&self.blocks),
            _found: lock(&self.found),
        }
    }

    /// Locks the record of the blocks' places.
    pub(super) fn blocks(&self) -> Locked<'_, GuardedBlocks> {
        lock(&self.blocks)
    }

    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.blocks.try_lock().is_some() || self.found.try_lock().is_some()
    }

    /// Returns the bytes that the caller of a live block may use, or `None` if no live block is there.
    pub(super) fn bytes_at(&self, address: usize) -> Option<usize> {
        let _inside = inside();
        let found = lock(&self.blocks).at(address).copied()?;
        found.freed.is_none().then_some(found.record.requested.max(1))
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn already_free(&self, address: usize, entry: &Entry) -> Option<Box<WrongFree>> {
        let freed = entry.freed?;
        Some(Box::new(WrongFree::AlreadyFree {
            address,
            block: entry.record,
            allocated: self.ledger.stack_of(&entry.record),
            freed,
            freed_at: self.ledger.freed_at(&freed),
        }))
    }

    fn overrun(&self, entry: &Entry, at: usize) -> Box<WrongFree> {
        let address = entry.place.address;
        Box::new(WrongFree::Overrun {
            address,
            offset: at.wrapping_sub(address).cast_signed(),
            block: entry.record,
            at: self.ledger.stack_of(&entry.record),
        })
    }

    /// Returns the error for a write to a block in quarantine.
    fn written(&self, entry: &Entry, at: usize) -> Option<Box<WrongFree>> {
        let address = entry.place.address;
        let freed = entry.freed?;
        Some(Box::new(WrongFree::UsedAfterFree {
            address,
            offset: at.wrapping_sub(address).cast_signed(),
            block: entry.record,
            allocated: self.ledger.stack_of(&entry.record),
            freed,
            freed_at: self.ledger.freed_at(&freed),
        }))
    }
}

impl Entry {
    /// Returns the first changed byte of the fill around a live block.
    fn first_overrun(&self) -> Option<usize> {
        let place = self.place;
        let behind = place.address + self.record.requested.max(1);
        // SAFETY: by the invariant of `Place` both parts are in the block's pages and do not belong to its caller. They
        // were filled when the block was allocated, and are accessible as long as it is live.
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
            source.protect(from as u64, (to - from) as u64, closed)
        });
        done.unwrap_or(false)
    }

    /// Returns whether blocks are guarded.
    pub(crate) fn is_guarded(&self) -> bool {
        self.has_reason(SlowPathReason::Guarded)
    }

    /// Allocates a block in pages of its own.
    pub(super) fn allocate_guarded(
        &'static self,
        guard: &Guard,
        ask: AllocRequest,
    ) -> Result<RawBlock, AllocError> {
        let AllocRequest { requested, align, .. } = ask;
        let bytes = RawBlock::of(0, requested, align).bytes;
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
            // The system makes no more mappings. A fence is more useful than the quarantine, so the quarantine is released.
            self.empty_quarantine(guard, 0);
            fenced = self.protect(place.fence, place.end, true);
        }
        let info = BlockInfo {
            address: place.address,
            requested,
            bytes,
            align,
            ..BlockInfo::default()
        };
        let entry = Entry {
            place,
            record: guard.ledger.record(&info, self.kind, Some(Time::now())),
            freed: None,
            fenced,
            shut: false,
        };
        let behind = place.address + requested.max(1);
        // SAFETY: by the invariant of `Place` these are pages that the engine allocated just now, and no other code uses them.
        unsafe { fill(place.base, place.address, AROUND) };
        // SAFETY: as above. The protected part is not included.
        unsafe { fill(behind, entry.filled_to(), AROUND) };
        let taken = RawBlock {
            address: place.address,
            bytes: requested,
        };
        let zeros = place.address + self.zeros(taken, ask.requested, ask.zeroed);
        for (start, end) in written {
            let (start, end) = (start.max(place.address), end.min(zeros));
            // SAFETY: the bytes are inside the block, which the caller has not received yet.
            unsafe { clear(start, end.saturating_sub(start)) };
        }
        lock(&guard.blocks).enter(entry);
        self.count_allocation(requested, bytes, missed);
        Ok(RawBlock { bytes, ..taken })
    }

    /// Returns the record of a block that a caller frees, and the writes that were found around it.
    ///
    /// # Errors
    /// Returns an error if there is no such block, or if it was freed before.
    pub(super) fn look_at_guarded(
        &self,
        guard: &Guard,
        address: usize,
    ) -> Result<(RawBlock, Option<Box<WrongFree>>), Box<WrongFree>> {
        let _inside = inside();
        let found = lock(&guard.blocks).at(address).copied();
        let entry = found.ok_or(WrongFree::Foreign { address })?;
        if let Some(wrong) = guard.already_free(address, &entry) {
            return Err(wrong);
        }
        let overrun = entry.first_overrun().map(|at| guard.overrun(&entry, at));
        let bytes = entry.record.bytes;
        Ok((RawBlock { address, bytes }, overrun))
    }

    /// Frees a block and puts it into quarantine. Returns false if another thread has freed it first.
    pub(super) fn free_guarded(&'static self, guard: &Guard, taken: RawBlock) -> bool {
        let by = guard.ledger.freed_here(Some(Time::now()));
        let record = {
            let mut blocks = lock(&guard.blocks);
            let Some(entry) = blocks.at(taken.address).copied() else {
                return false;
            };
            if let Some(wrong) = guard.already_free(taken.address, &entry) {
                lock(&guard.found).push(*wrong);
                return false;
            }
            let place = entry.place;
            // SAFETY: these are the block's accessible pages. Its caller has freed it, and no other code uses it.
            unsafe { fill(place.base, entry.filled_to(), FREED) };
            let shut = self.protect(place.base, place.fence, true);
            blocks.retire(place.base, by, shut);
            self.release_above(guard, &mut blocks, guard.quarantine);
            entry.record
        };
        self.count_free(record.requested, record.bytes);
        true
    }

    /// Returns the oldest freed blocks to the engine, until at most `bytes` bytes are in quarantine.
    fn release_above(&self, guard: &Guard, blocks: &mut GuardedBlocks, bytes: usize) {
        while let Some(entry) = blocks.oldest_above(bytes).copied() {
            let place = entry.place;
            let written = if entry.shut {
                None
            } else {
                // SAFETY: these are accessible pages of a block that was freed and filled.
                unsafe { first_other(place.base, entry.filled_to(), FREED) }
            };
            if let Some(wrong) = written.and_then(|at| guard.written(&entry, at)) {
                lock(&guard.found).push(*wrong);
            }
            let first = if entry.shut { place.base } else { place.fence };
            let closed = entry.shut || entry.fenced;
            if closed && !self.protect(first, place.end, false) {
                // Opening the pages would split a mapping, which the system refuses now. They are released later.
                return;
            }
            self.with_engine(|core| core.free(place.base));
            blocks.forget_oldest();
        }
    }

    /// Returns blocks in quarantine to the engine until at most `bytes` bytes are left.
    fn empty_quarantine(&self, guard: &Guard, bytes: usize) {
        self.release_above(guard, &mut lock(&guard.blocks), bytes);
    }

    /// Returns all blocks in quarantine to the engine, if the pool guards blocks.
    pub(super) fn end_quarantine(&self) {
        if let Some(guard) = &self.guard {
            self.empty_quarantine(guard, 0);
        }
    }

    /// Reports an error to subscribers and on standard error. Called outside of every lock.
    #[cold]
    pub(super) fn tell_wrong(&self, wrong: &WrongFree) {
        self.tell_wrong_to_watchers(wrong);
        self.say_wrong(wrong);
    }

    /// Reports the errors that were found under locks.
    pub(super) fn tell_found(&self, guard: &Guard) {
        let found = std::mem::take(&mut *lock(&guard.found));
        found.iter().for_each(|wrong| self.tell_wrong(wrong));
        let _inside = inside();
        drop(found);
    }
}

/// The guarded blocks of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardStats {
    /// The number of live blocks.
    pub blocks: u64,
    /// The number of blocks in quarantine.
    pub quarantined: u64,
    /// The bytes of the pages in quarantine.
    pub quarantined_bytes: u64,
    /// The maximum number of bytes of pages in quarantine.
    pub quarantine: u64,
    /// The total number of allocated blocks after which no page could be protected.
    pub unfenced: u64,
}

impl Pool {
    /// Returns the statistics of guarded blocks, or `None` if the pool does not [guard](super::PoolBuilder::guard) blocks.
    #[must_use]
    pub fn guard_stats(&self) -> Option<GuardStats> {
        let guard = self.heap().guard.as_ref()?;
        let held = lock(&guard.blocks);
        let (blocks, quarantined, bytes) = held.counts();
        Some(GuardStats {
            blocks: blocks as u64,
            quarantined: quarantined as u64,
            quarantined_bytes: bytes as u64,
            quarantine: guard.quarantine as u64,
            unfenced: held.unfenced,
        })
    }
}
