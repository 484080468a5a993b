//! A source with a pool's limit, charged to a budget.

use super::range_set::RangeSet;
use super::watch::SourceTraffic;
use millpond_account::budget::{Budget, Charge, Refusal};
use millpond_engine::{
    CallKind, Gauge, Limit, LimitedMemory, Source, SourceError, SourceEvent, SourceWrapper,
};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A source with a limit, charged to a budget of reserved bytes if there is one. The traffic is counted.
///
/// A call charges first, then calls the source, and refunds on failure. So neither limit is exceeded, not even during a
/// call.
///
/// Discarded memory is still held, but its pages were returned to the system. It is not charged until it is used again.
pub struct BudgetedSource<S> {
    // Dropped first, so that the memory is returned before the limit and the budget are credited.
    inner: S,
    memory: LimitedMemory,
    budget: Option<Budget>,
    /// The parts of the held memory that are discarded.
    discarded: RangeSet,
    /// The bytes held from the source after the last call, without the discarded ones.
    held: Gauge,
    /// The budget's charge for these bytes.
    charge: Option<Charge>,
    /// The charge for the call that is being made.
    pending: Option<Charge>,
    /// The budget's last refusal, until it is taken.
    refusal: Option<Refusal>,
    flow: Arc<SourceTraffic>,
}

impl<S: Source> BudgetedSource<S> {
    /// Wraps a source. Its memory is charged to `limit` and `budget`, and counted in `flow`.
    pub fn new(source: S, limit: Limit, budget: Option<Budget>, flow: Arc<SourceTraffic>) -> Self {
        Self {
            inner: source,
            memory: LimitedMemory::new(limit),
            budget,
            discarded: RangeSet::default(),
            held: Gauge::default(),
            charge: None,
            pending: None,
            refusal: None,
            flow,
        }
    }

    /// Returns the wrapped source.
    pub fn source(&self) -> &S {
        &self.inner
    }

    /// Returns the wrapped source, for calls that neither take nor give back memory.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the refusal of the budget since the last call, if any.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Returns the bytes held from the source, without the discarded ones.
    pub fn held(&self) -> Gauge {
        self.held
    }

    /// Resets the peak of the held bytes to the current value.
    pub fn reset_peak(&mut self) {
        self.held.peak = self.held.current;
    }

    /// Returns the parts of some held memory that are not discarded.
    pub(crate) fn kept_parts(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        self.discarded.missing(start, end)
    }

    /// Returns the number of discarded bytes in some held memory.
    pub(crate) fn discarded_in(&self, start: u64, end: u64) -> u64 {
        let mut bytes = 0;
        self.discarded
            .within(start, end, |from, until| bytes += until - from);
        bytes
    }

    /// Records that the memory of these bytes was returned to the system. The bytes must be held and not discarded yet.
    pub(crate) fn discard(&mut self, start: u64, end: u64) {
        self.discarded.add(start, end);
        self.memory.discard(end - start);
        self.settle(None);
    }

    /// Charges the discarded parts of some memory again, because it is about to be used. Returns their bytes.
    ///
    /// # Errors
    /// Returns an error if the limit or the budget does not allow them. Nothing is charged then.
    pub(crate) fn restore(&mut self, start: u64, end: u64) -> Result<u64, SourceError> {
        let bytes = self.discarded_in(start, end);
        if bytes > 0 {
            let charge = self.charge_budget(bytes)?;
            self.memory.restore(bytes)?;
            self.discarded.remove(start, end);
            self.settle(charge);
        }
        Ok(bytes)
    }

    /// Charges the budget, if there is one.
    fn charge_budget(&mut self, bytes: u64) -> Result<Option<Charge>, SourceError> {
        let Some(budget) = &self.budget else {
            return Ok(None);
        };
        budget.try_charge(bytes).map(Some).map_err(|refusal| {
            let (free, capacity) = (refusal.limit.saturating_sub(refusal.used), refusal.limit);
            self.refusal = Some(refusal);
            SourceError::OutOfMemory {
                requested: bytes,
                free,
                capacity,
            }
        })
    }

    /// Keeps the budget's charge and the figures equal to the bytes that are held now. `pending` was charged for more.
    fn settle(&mut self, pending: Option<Charge>) {
        let (before, held) = (self.held.current, self.memory.bytes());
        match held.cmp(&before) {
            Greater => {
                self.flow.taken.fetch_add(held - before, Relaxed);
                match (&mut self.charge, pending) {
                    (Some(all), Some(more)) => {
                        // Both charges are of the same budget, so nothing is returned.
                        let _ = all.merge(more);
                    }
                    (none, charge) => *none = charge,
                }
            }
            Less => {
                self.flow.given.fetch_add(before - held, Relaxed);
                if let Some(all) = &mut self.charge {
                    drop(all.split(before - held));
                }
            }
            Equal => {}
        }
        self.held.set(held);
    }
}

impl<S: Source> SourceWrapper for BudgetedSource<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn limit_capacity(&self, capacity: Option<u64>) -> Option<u64> {
        let limit = self.memory.limit().bytes();
        Some(capacity.map_or(limit, |capacity| capacity.min(limit)))
    }

    fn limit_free_bytes(&self, free: Option<u64>) -> Option<u64> {
        let remaining = self.memory.limit().remaining();
        let budget = self.budget.as_ref().map(Budget::remaining);
        free.into_iter().chain(budget).chain([remaining]).min()
    }

    fn before(&mut self, kind: CallKind, bytes: u64) -> Result<(), SourceError> {
        if !kind.takes_memory() {
            return Ok(());
        }
        let charge = self.charge_budget(bytes)?;
        // If the limit refuses, the charge is refunded when it is dropped.
        self.memory.charge(kind, bytes)?;
        self.pending = charge;
        Ok(())
    }

    fn after(&mut self, event: &SourceEvent<'_>) {
        if let Some((from, to, bytes)) = event.moved() {
            self.discarded.shift(from, to, bytes);
        }
        let remove = |(address, bytes)| self.discarded.remove(address, address + bytes);
        let discarded = event.returned().map_or(0, remove);
        self.memory.record(event, discarded);
        // A charge that is not kept is refunded when it is dropped.
        let pending = self.pending.take();
        self.settle(pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::Simulated;

    #[test]
    fn a_call_that_either_limit_refuses_is_charged_to_neither() {
        let limit = Limit::new(100);
        let budget = Budget::builder("both")
            .limit(200)
            .build()
            .expect("a name and a limit");
        let flow = Arc::<SourceTraffic>::default();
        let mut source = BudgetedSource::new(
            Simulated::new(),
            limit.clone(),
            Some(budget.clone()),
            Arc::clone(&flow),
        );
        let used = || (limit.used(), budget.used());
        assert_eq!((source.capacity(), source.free_bytes()), (Some(100), Some(100)));
        let kept = source.take(60).expect("fits");
        assert!(source.take(41).is_err(), "beyond the limit");
        assert_eq!((used(), source.take_refusal().is_none()), ((60, 60), true));
        let others = budget.try_charge(130).expect("fits");
        assert_eq!(source.free_bytes(), Some(10));
        assert!(source.take(11).is_err(), "beyond the budget");
        assert_eq!((used(), source.take_refusal().is_some()), ((60, 190), true));
        drop(others);
        source.give(kept);
        assert_eq!(used(), (0, 0));
        let _kept = source.take(100).expect("fits");
        assert_eq!(used(), (100, 100));
        drop(source);
        assert_eq!(used(), (0, 0));
        assert_eq!(flow.drain().map(|(_, bytes)| bytes), [160, 60]);
    }

    #[test]
    fn discarded_memory_is_charged_again_before_its_use() {
        let limit = Limit::new(100);
        let budget = Budget::builder("both")
            .limit(90)
            .build()
            .expect("a name and a limit");
        let mut source = BudgetedSource::new(
            Simulated::new(),
            limit.clone(),
            Some(budget.clone()),
            Arc::default(),
        );
        let used = || (limit.used(), budget.used());
        let first = source.take(60).expect("fits");
        let at = first.address();
        source.discard(at + 10, at + 30);
        source.discard(at + 40, at + 50);
        assert_eq!(used(), (30, 30));
        assert_eq!((source.held().current, source.held().peak), (30, 60));
        assert_eq!(
            source.kept_parts(at, at + 60),
            [(at, at + 10), (at + 30, at + 40), (at + 50, at + 60)]
        );
        let second = source.take(45).expect("fits");
        assert!(source.restore(at, at + 60).is_err() && source.take_refusal().is_some());
        assert_eq!(used(), (75, 75));
        assert_eq!(source.restore(at + 5, at + 25).expect("fits"), 15);
        assert_eq!((used(), source.discarded_in(at, at + 60)), ((90, 90), 15));
        limit.set(80);
        source.give(second);
        assert_eq!(used(), (45, 45));
        source.give(first);
        assert_eq!((used(), source.held().current), ((0, 0), 0));
    }
}
