//! A source with a pool's limit, charged to a budget.

use super::watch::SourceTraffic;
use millpond_account::budget::{Budget, Charge, Refusal};
use millpond_engine::{CallKind, Limit, LimitedMemory, Source, SourceError, SourceEvent, SourceWrapper};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A source with a limit, charged to a budget of reserved bytes if there is one. The traffic is counted.
///
/// A call charges first, then calls the source, and refunds on failure. So neither limit is exceeded, not even during a
/// call.
pub struct BudgetedSource<S> {
    // Dropped first, so that the memory is returned before the limit and the budget are credited.
    inner: S,
    memory: LimitedMemory,
    budget: Option<Budget>,
    /// The bytes held from the source after the last call.
    held: u64,
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
            held: 0,
            charge: None,
            pending: None,
            refusal: None,
            flow,
        }
    }

    /// Returns the source itself.
    pub fn source(&self) -> &S {
        &self.inner
    }

    /// Returns the source itself, for calls that take and give back no memory.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the refusal of the budget since the last call, if any.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
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
        let Some(budget) = self.budget.as_ref().filter(|_| kind.takes_memory()) else {
            return self.memory.charge(kind, bytes);
        };
        match budget.try_charge(bytes) {
            Ok(charge) => {
                // If the limit refuses, the charge is refunded when it is dropped.
                self.memory.charge(kind, bytes)?;
                self.pending = Some(charge);
                Ok(())
            }
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

    fn after(&mut self, event: &SourceEvent<'_>) {
        self.memory.record(event);
        let held = self.memory.bytes();
        // A charge that is not kept is refunded when it is dropped.
        let pending = self.pending.take();
        match held.cmp(&self.held) {
            Greater => {
                self.flow.taken.fetch_add(held - self.held, Relaxed);
                match (&mut self.charge, pending) {
                    (Some(all), Some(more)) => {
                        // Both charges are of the same budget, so nothing is returned.
                        let _ = all.merge(more);
                    }
                    (none, charge) => *none = charge,
                }
            }
            Less => {
                self.flow.given.fetch_add(self.held - held, Relaxed);
                if let Some(all) = &mut self.charge {
                    drop(all.split(self.held - held));
                }
            }
            Equal => {}
        }
        self.held = held;
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
}
