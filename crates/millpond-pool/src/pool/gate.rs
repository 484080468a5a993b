//! The connection between a pool and its source. It enforces the limit, charges the budget, and records which memory is
//! zero.

use super::charged::Charged;
use super::fresh::Fresh;
use super::watch::Flow;
use crate::memory::MemorySource;
use millpond_account::MemoryKind;
use millpond_account::budget::{Budget, Refusal};
use millpond_engine::{
    Limit, Range, Segment, Source, SourceError, forward_bytes, forward_facts, forward_streams,
};
use std::sync::Arc;

/// A pool's source with the pool's limit, [charged](Charged) to a budget, and with a record of the bytes that are zero.
pub(crate) struct Gate {
    inner: Charged<Box<dyn MemorySource + Send>>,
    fresh: Fresh,
}

impl Gate {
    pub(crate) fn new(
        source: Box<dyn MemorySource + Send>,
        limit: Limit,
        budget: Option<Budget>,
        flow: Arc<Flow>,
    ) -> Self {
        Self {
            inner: Charged::new(source, limit, budget, flow),
            fresh: Fresh::default(),
        }
    }

    /// Returns the refusal of the budget since the last call, if any.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.inner.take_refusal()
    }

    /// Returns the source's own capacity, independent of the pool's limit.
    pub(crate) fn whole(&self) -> Option<u64> {
        self.inner.source().capacity()
    }

    /// Records that these bytes are allocated. Calls `written` with the parts that may not be zero.
    pub(crate) fn hand_out(&mut self, address: u64, bytes: u64, written: impl FnMut(u64, u64)) {
        self.fresh.use_up(address, address + bytes, written);
    }

    /// Returns the memory of unused whole pages to the system until they are used again. Returns the bytes. If the pages
    /// are free in the engine, which reports their allocation to this type, they are recorded as zero.
    pub(crate) fn forget(&mut self, address: u64, bytes: u64, free: bool) -> u64 {
        if bytes == 0 || !self.inner.source_mut().discard(address, bytes) {
            return 0;
        }
        if free {
            self.fresh.add(address, address + bytes);
        }
        bytes
    }

    fn add_fresh(&mut self, address: u64, bytes: u64) {
        if self.inner.source().fresh_is_zero() {
            self.fresh.add(address, address + bytes);
        }
    }
}

impl Source for Gate {
    forward_facts!();
    forward_bytes!();
    forward_streams!();

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let segment = self.inner.take(bytes)?;
        self.add_fresh(segment.address(), segment.bytes());
        Ok(segment)
    }

    fn give(&mut self, segment: Segment) {
        let (address, bytes) = (segment.address(), segment.bytes());
        self.fresh.remove(address, address + bytes);
        self.inner.give(segment);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.inner.reserve(bytes)
    }

    fn commit(&mut self, range: &Range, offset: u64, bytes: u64, handle: u64) -> Result<(), SourceError> {
        self.inner.commit(range, offset, bytes, handle)?;
        self.add_fresh(range.address() + offset, bytes);
        Ok(())
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let handles = self.inner.decommit(range, offset, bytes);
        if handles > 0 {
            let start = range.address() + offset;
            self.fresh.remove(start, start + bytes);
        }
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let handles = self.inner.move_pages(from, to, bytes)?;
        let [origin, target] = [from, to].map(|(range, offset)| range.address() + offset);
        self.fresh.remove(origin, origin + bytes);
        self.fresh.remove(target, target + bytes);
        Ok(handles)
    }

    fn release(&mut self, range: Range) {
        let (address, bytes) = (range.address(), range.bytes());
        self.fresh.remove(address, address + bytes);
        self.inner.release(range);
    }
}

// SAFETY: each call reaches the wrapped source with the tokens it was made with, or fails without reaching it.
unsafe impl MemorySource for Gate {
    fn kind(&self) -> MemoryKind {
        self.inner.source().kind()
    }

    fn fresh_is_zero(&self) -> bool {
        self.inner.source().fresh_is_zero()
    }

    fn discard(&mut self, address: u64, bytes: u64) -> bool {
        self.inner.source_mut().discard(address, bytes)
    }

    fn transfer(&mut self, from: u64, to: u64, bytes: u64) -> bool {
        let done = self.inner.source_mut().transfer(from, to, bytes);
        if done {
            self.fresh.remove(to, to + bytes);
        }
        done
    }

    fn populate(&self, address: u64, bytes: u64) -> bool {
        self.inner.source().populate(address, bytes)
    }

    fn can_protect(&self) -> bool {
        self.inner.source().can_protect()
    }

    fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        self.inner.source_mut().protect(address, bytes, closed)
    }
}
