//! The connection between a pool and its source. It enforces the limit, charges the budget, and records which memory is
//! zero.

use super::budgeted::BudgetedSource;
use super::fresh::Fresh;
use super::watch::SourceTraffic;
use crate::memory::MemorySource;
use millpond_account::budget::{Budget, Refusal};
use millpond_engine::{Limit, SourceEvent, SourceWrapper};
use std::sync::Arc;

/// A source of any kind of host memory.
type AnySource = dyn MemorySource + Send;

/// A pool's source with the pool's limit, [charged](BudgetedSource) to a budget, and with a record of the bytes that are zero.
pub(crate) struct ZeroTrackingSource {
    inner: BudgetedSource<Box<AnySource>>,
    fresh: Fresh,
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
            fresh: Fresh::default(),
        }
    }

    /// Returns the refusal of the budget since the last call, if any.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.inner.take_refusal()
    }

    /// Returns the source itself.
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
            SourceEvent::Give { address, bytes }
            | SourceEvent::Release { address, bytes }
            | SourceEvent::Decommit {
                address,
                bytes,
                handles: 1..,
            }
            | SourceEvent::Relocate {
                address,
                bytes,
                outcome: Ok(()),
                ..
            } => self.fresh.remove(address, address + bytes),
            SourceEvent::Move {
                from,
                to,
                bytes,
                outcome: Ok(_),
            }
            | SourceEvent::Alias {
                from,
                to,
                bytes,
                outcome: Ok(_),
            } => {
                self.fresh.remove(from, from + bytes);
                self.fresh.remove(to, to + bytes);
            }
            _ => {}
        }
    }
}
