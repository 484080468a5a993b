//! The connection between a pool and its source. It enforces the limit, charges the budget, and records which memory is
//! zero.

use super::budgeted::BudgetedSource;
use super::range_set::RangeSet;
use super::watch::SourceTraffic;
use crate::memory::MemorySource;
use millpond_account::budget::{Budget, Refusal};
use millpond_engine::{Limit, SourceError, SourceEvent, SourceWrapper};
use std::sync::Arc;

/// A source of any kind of host memory.
type AnySource = dyn MemorySource + Send;

/// A pool's source with the pool's limit, [charged](BudgetedSource) to a budget, and with a record of the bytes that are zero.
pub(crate) struct ZeroTrackingSource {
    inner: BudgetedSource<Box<AnySource>>,
    /// The parts that were not written since the source gave them.
    fresh: RangeSet,
}

impl ZeroTrackingSource {
    pub(crate) fn new(
        source: Box<AnySource>,
        limit: Limit,
        budget: Option<Budget>,
        flow: Arc<SourceTraffic>,
    ) -> Self {
        Self {
            inner: BudgetedSource::new(source, limit, budget, flow),
            fresh: RangeSet::default(),
        }
    }

    /// Returns the refusal of the budget since the last call, if any.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.inner.take_refusal()
    }

    /// Returns the wrapped source.
    pub(crate) fn source(&self) -> &AnySource {
        &**self.inner.source()
    }

    /// Returns the source's own capacity, independent of the pool's limit.
    pub(crate) fn whole(&self) -> Option<u64> {
        self.source().capacity()
    }

    /// Makes every access to some pages fault if `closed`, or restores the access. Returns whether it was done.
    pub(crate) fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        self.inner.source_mut().protect(address, bytes, closed)
    }

    /// Records that these bytes are allocated. Calls `written` with the parts that may not be zero.
    pub(crate) fn hand_out(&mut self, address: u64, bytes: u64, written: impl FnMut(u64, u64)) {
        self.expect_use(address, bytes);
        self.fresh.remove_telling(address, address + bytes, written);
    }

    /// Notifies the source that the program is about to write to all of these bytes. Parts that may have been written before are
    /// left out.
    pub(crate) fn expect_use(&mut self, address: u64, bytes: u64) {
        let source = self.inner.source_mut();
        self.fresh.within(address, address + bytes, |start, end| {
            source.expect_use(start, end - start);
        });
    }

    /// Returns the memory of unused whole pages to the system until they are [restored](Self::restore). Returns the bytes
    /// of the pages that were not discarded before. If `free` is true, the pages are free in the engine and are recorded as
    /// zero: their next allocation is reported by [`hand_out`](Self::hand_out).
    pub(crate) fn discard(&mut self, address: u64, bytes: u64, free: bool) -> u64 {
        let mut discarded = 0;
        for (start, end) in self.inner.kept_parts(address, address + bytes) {
            if self.inner.source_mut().discard(start, end - start) {
                self.inner.discard(start, end);
                discarded += end - start;
                if free {
                    self.fresh.add(start, end);
                }
            }
        }
        discarded
    }

    /// Returns the parts of some memory that may have been written since the system gave them.
    pub(crate) fn written_parts(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        self.fresh.missing(start, end)
    }

    /// Charges the discarded pages of some memory again, because it is about to be used. Returns their bytes.
    ///
    /// # Errors
    /// Returns an error if the limit or the budget does not allow them. Nothing has changed then.
    pub(crate) fn restore(&mut self, address: u64, bytes: u64) -> Result<u64, SourceError> {
        self.inner.restore(address, address + bytes)
    }

    /// Returns the number of discarded bytes in some memory.
    pub(crate) fn discarded_in(&self, address: u64, bytes: u64) -> u64 {
        self.inner.discarded_in(address, address + bytes)
    }

    /// Resets the peak of the bytes that are held from the source to the current value.
    pub(crate) fn reset_peak(&mut self) {
        self.inner.reset_peak();
    }
}

impl SourceWrapper for ZeroTrackingSource {
    type Inner = BudgetedSource<Box<AnySource>>;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut self.inner
    }

    fn after(&mut self, event: &SourceEvent<'_>) {
        if let Some((from, to, bytes)) = event.moved() {
            self.fresh.remove(from, from + bytes);
            self.fresh.remove(to, to + bytes);
        }
        if let Some((address, bytes)) = event.returned() {
            self.fresh.remove(address, address + bytes);
        }
        match *event {
            SourceEvent::Take {
                bytes,
                outcome: Ok(address),
            }
            | SourceEvent::Commit {
                address,
                bytes,
                outcome: Ok(()),
                ..
            } if self.source().fresh_is_zero() => self.fresh.add(address, address + bytes),
            _ => {}
        }
    }
}
