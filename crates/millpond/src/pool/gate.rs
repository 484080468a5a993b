//! The one door between a pool and its source: what goes through is charged, limited, and known to be zero or not.

use super::fresh::Fresh;
use super::watch::Flow;
use crate::budget::{Budget, Charge, Refusal};
use crate::memory::{MemoryKind, MemorySource};
use millpond_engine::{Event, Limit, Limited, Range, Segment, Source, SourceError};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Inner = Limited<Box<dyn MemorySource + Send>>;

/// A pool's source: within the pool's limit, charged to a budget of reserved bytes if there is one.
///
/// Charge first, then ask, refund on failure: neither limit is passed, not even for the time of a call.
pub(crate) struct Gate {
    inner: Inner,
    budget: Option<Budget>,
    /// What the pool has from the source, as the budget has it.
    charge: Option<Charge>,
    /// The budget's last refusal, until somebody asks.
    refusal: Option<Refusal>,
    /// Committed bytes of each range.
    committed: HashMap<u64, u64>,
    fresh: Fresh,
    flow: Arc<Flow>,
}

impl Gate {
    pub(crate) fn new(
        source: Box<dyn MemorySource + Send>,
        limit: Limit,
        budget: Option<Budget>,
        flow: Arc<Flow>,
    ) -> Self {
        Self {
            inner: Limited::new(source, limit),
            budget,
            charge: None,
            refusal: None,
            committed: HashMap::new(),
            fresh: Fresh::default(),
            flow,
        }
    }

    /// Who refused, if the budget did since this was last asked.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// The most that the source itself could give, whatever the pool's limit.
    pub(crate) fn whole(&self) -> Option<u64> {
        self.inner.inner().capacity()
    }

    /// These bytes are handed out; tells the parts that may hold something else than zero.
    pub(crate) fn hand_out(&mut self, address: u64, bytes: u64, written: impl FnMut(u64, u64)) {
        self.fresh.use_up(address, address + bytes, written);
    }

    /// Lets the system have the memory behind whole pages of it that nobody uses, until they are used again; answers
    /// the bytes. Where they are free in the engine, so that whoever gets them is told of here, they are known to be zero.
    pub(crate) fn forget(&mut self, address: u64, bytes: u64, free: bool) -> u64 {
        if bytes == 0 || !self.inner.discard(address, bytes) {
            return 0;
        }
        if free {
            self.fresh.add(address, address + bytes);
        }
        bytes
    }

    /// Charges the budget; nothing is lost if the charge is dropped.
    fn charge(&mut self, bytes: u64) -> Result<Option<Charge>, SourceError> {
        let Some(budget) = &self.budget else {
            return Ok(None);
        };
        match budget.try_charge(bytes) {
            Ok(charge) => Ok(Some(charge)),
            Err(refusal) => {
                let (free, capacity) = (refusal.limit.saturating_sub(refusal.used), refusal.limit);
                self.refusal = Some(refusal);
                Err(SourceError::OutOfMemory {
                    requested: bytes,
                    free,
                    capacity,
                })
            }
        }
    }

    /// The source gave so many bytes.
    fn keep(&mut self, charge: Option<Charge>, bytes: u64) {
        self.flow.taken.fetch_add(bytes, Ordering::Relaxed);
        match (&mut self.charge, charge) {
            (Some(all), Some(more)) => {
                // Of the same budget: nothing comes back.
                let _ = all.merge(more);
            }
            (none, charge) => *none = charge,
        }
    }

    /// The source got so many bytes back.
    fn refund(&mut self, bytes: u64) {
        self.flow.given.fetch_add(bytes, Ordering::Relaxed);
        if let Some(all) = &mut self.charge {
            drop(all.split(bytes));
        }
    }

    fn add_fresh(&mut self, address: u64, bytes: u64) {
        if self.inner.fresh_is_zero() {
            self.fresh.add(address, address + bytes);
        }
    }
}

impl Source for Gate {
    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    fn is_paged(&self) -> bool {
        self.inner.is_paged()
    }

    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }

    fn free_bytes(&self) -> Option<u64> {
        let free = self.inner.free_bytes();
        match &self.budget {
            Some(budget) => Some(free.unwrap_or(u64::MAX).min(budget.remaining())),
            None => free,
        }
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let charge = self.charge(bytes)?;
        let segment = self.inner.take(bytes)?;
        self.keep(charge, bytes);
        self.add_fresh(segment.address(), segment.bytes());
        Ok(segment)
    }

    fn give(&mut self, segment: Segment) {
        let (address, bytes) = (segment.address(), segment.bytes());
        self.fresh.remove(address, address + bytes);
        self.inner.give(segment);
        self.refund(bytes);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.inner.reserve(bytes)
    }

    fn commit(&mut self, range: &Range, offset: u64, bytes: u64, handle: u64) -> Result<(), SourceError> {
        let charge = self.charge(bytes)?;
        self.inner.commit(range, offset, bytes, handle)?;
        self.keep(charge, bytes);
        *self.committed.entry(range.address()).or_default() += bytes;
        self.add_fresh(range.address() + offset, bytes);
        Ok(())
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let handles = self.inner.decommit(range, offset, bytes);
        if handles > 0 {
            let start = range.address() + offset;
            self.fresh.remove(start, start + bytes);
            if let Some(committed) = self.committed.get_mut(&range.address()) {
                *committed = committed.saturating_sub(bytes);
            }
            self.refund(bytes);
        }
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let handles = self.inner.move_pages(from, to, bytes)?;
        let [origin, target] = [from, to].map(|(range, offset)| range.address() + offset);
        self.fresh.remove(origin, origin + bytes);
        self.fresh.remove(target, target + bytes);
        if from.0.address() != to.0.address() {
            let committed = self.committed.entry(from.0.address()).or_default();
            *committed = committed.saturating_sub(bytes);
            *self.committed.entry(to.0.address()).or_default() += bytes;
        }
        Ok(handles)
    }

    fn release(&mut self, range: Range) {
        let (address, bytes) = (range.address(), range.bytes());
        self.fresh.remove(address, address + bytes);
        self.inner.release(range);
        let committed = self.committed.remove(&address).unwrap_or(0);
        self.refund(committed);
    }

    fn record_event(&mut self, stream: u32) -> Event {
        self.inner.record_event(stream)
    }

    fn is_complete(&self, event: Event) -> bool {
        self.inner.is_complete(event)
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        self.inner.wait_event(stream, event);
    }

    fn synchronize(&mut self) {
        self.inner.synchronize();
    }
}

// SAFETY: each call reaches the source below with the very tokens it was made with, or fails without reaching it.
unsafe impl MemorySource for Gate {
    fn kind(&self) -> MemoryKind {
        self.inner.kind()
    }

    fn fresh_is_zero(&self) -> bool {
        self.inner.fresh_is_zero()
    }

    fn discard(&mut self, address: u64, bytes: u64) -> bool {
        self.inner.discard(address, bytes)
    }

    fn transfer(&mut self, from: u64, to: u64, bytes: u64) -> bool {
        let done = self.inner.transfer(from, to, bytes);
        if done {
            self.fresh.remove(to, to + bytes);
        }
        done
    }

    fn populate(&self, address: u64, bytes: u64) -> bool {
        self.inner.populate(address, bytes)
    }

    fn can_protect(&self) -> bool {
        self.inner.can_protect()
    }

    fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        self.inner.protect(address, bytes, closed)
    }
}
