//! A source with a pool's limit, charged to a budget.

use super::watch::Flow;
use millpond_account::budget::{Budget, Charge, Refusal};
use millpond_engine::{Limit, Limited, Range, Segment, Source, SourceError, forward_facts, forward_streams};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A source with a limit, charged to a budget of reserved bytes if there is one. The traffic is counted.
///
/// A call charges first, then calls the source, and refunds on failure. So neither limit is exceeded, not even during a
/// call.
pub struct Charged<S> {
    inner: Limited<S>,
    budget: Option<Budget>,
    /// The budget's charge for the pool's memory from the source.
    charge: Option<Charge>,
    /// The budget's last refusal, until it is taken.
    refusal: Option<Refusal>,
    /// Committed bytes of each range.
    committed: HashMap<u64, u64>,
    flow: Arc<Flow>,
}

impl<S: Source> Charged<S> {
    /// Wraps a source. Its memory is charged to `limit` and `budget`, and counted in `flow`.
    pub fn new(source: S, limit: Limit, budget: Option<Budget>, flow: Arc<Flow>) -> Self {
        Self {
            inner: Limited::new(source, limit),
            budget,
            charge: None,
            refusal: None,
            committed: HashMap::new(),
            flow,
        }
    }

    /// Returns the source itself.
    pub fn source(&self) -> &S {
        self.inner.inner()
    }

    /// Returns the source itself, for calls that take and give back no memory.
    pub fn source_mut(&mut self) -> &mut S {
        self.inner.inner_mut()
    }

    /// Returns the refusal of the budget since the last call, if any.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Charges the budget. Dropping the charge refunds it.
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

    /// Records that the source gave this many bytes.
    fn keep(&mut self, charge: Option<Charge>, bytes: u64) {
        self.flow.taken.fetch_add(bytes, Ordering::Relaxed);
        match (&mut self.charge, charge) {
            (Some(all), Some(more)) => {
                // Both charges are of the same budget, so nothing is returned.
                let _ = all.merge(more);
            }
            (none, charge) => *none = charge,
        }
    }

    /// Records that this many bytes were given back to the source.
    fn refund(&mut self, bytes: u64) {
        self.flow.given.fetch_add(bytes, Ordering::Relaxed);
        if let Some(all) = &mut self.charge {
            drop(all.split(bytes));
        }
    }
}

impl<S: Source> Source for Charged<S> {
    forward_facts!();
    forward_streams!();

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
        Ok(segment)
    }

    fn give(&mut self, segment: Segment) {
        let bytes = segment.bytes();
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
        Ok(())
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let handles = self.inner.decommit(range, offset, bytes);
        if handles > 0 {
            if let Some(committed) = self.committed.get_mut(&range.address()) {
                *committed = committed.saturating_sub(bytes);
            }
            self.refund(bytes);
        }
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let handles = self.inner.move_pages(from, to, bytes)?;
        if from.0.address() != to.0.address() {
            let committed = self.committed.entry(from.0.address()).or_default();
            *committed = committed.saturating_sub(bytes);
            *self.committed.entry(to.0.address()).or_default() += bytes;
        }
        Ok(handles)
    }

    fn release(&mut self, range: Range) {
        let address = range.address();
        self.inner.release(range);
        let committed = self.committed.remove(&address).unwrap_or(0);
        self.refund(committed);
    }
}
