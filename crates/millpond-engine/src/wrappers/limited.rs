//! A wrapper that limits the bytes held from a source.

use super::held::HeldMemory;
use super::{CallKind, SourceEvent, SourceWrapper};
use crate::error::SourceError;
use crate::source::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum bytes that a group of sources may hold together, and the bytes that they hold.
///
/// Clones share the limit, on any thread. The limit can change at any time. If it is set below the held bytes, requests
/// fail until enough memory has been returned.
#[derive(Clone, Debug)]
pub struct Limit(Arc<Figures>);

#[derive(Debug)]
struct Figures {
    most: AtomicU64,
    /// Every increase was checked against the value of `most` that the call had loaded.
    used: AtomicU64,
}

impl Limit {
    /// Creates a limit in bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Figures {
            most: AtomicU64::new(bytes),
            used: AtomicU64::new(0),
        }))
    }

    /// Returns the maximum bytes that may be held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.most.load(Ordering::Relaxed)
    }

    /// Changes the limit. A call in progress uses the limit that it has already loaded.
    pub fn set(&self, bytes: u64) {
        self.0.most.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes held now, including those of calls in progress.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes that may still be taken, or 0 while more is held than allowed.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.bytes().saturating_sub(self.used())
    }

    // Relaxed ordering is sufficient, because these counters do not synchronise access to any other memory.
    fn charge(&self, bytes: u64) -> Result<(), SourceError> {
        let most = self.bytes();
        let charged = self
            .0
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= most)
            });
        charged.map(|_| ()).map_err(|used| SourceError::OutOfMemory {
            requested: bytes,
            free: most.saturating_sub(used),
            capacity: most,
        })
    }

    fn refund(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A source that never holds more than its [`Limit`], even within a call. It charges the limit before the call to the
/// inner source and cancels the charge if the inner source refuses.
///
/// Its capacity is the smaller of the limit and the inner source's capacity. Its free bytes are limited in the same
/// way. When it is dropped, the memory that it still holds is no longer charged.
#[derive(Debug)]
pub struct Limited<S> {
    // Dropped first, so that the memory is returned before the limit is credited.
    inner: S,
    memory: LimitedMemory,
}

/// The memory that a source holds, charged to a limit. When it is dropped, the memory is no longer charged.
///
/// Invariant: `limit` is charged with the bytes of `held`, except for those that are `discarded`.
#[doc(hidden)]
#[derive(Debug)]
pub struct LimitedMemory {
    limit: Limit,
    held: HeldMemory,
    discarded: u64,
}

impl LimitedMemory {
    /// Creates the record of a source that holds nothing.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            held: HeldMemory::default(),
            discarded: 0,
        }
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the bytes held and charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held.bytes() - self.discarded
    }

    /// Refunds bytes that are still held, because the system has their memory back.
    pub fn discard(&mut self, bytes: u64) {
        self.discarded += bytes;
        self.limit.refund(bytes);
    }

    /// Charges discarded bytes again, because they are about to be used.
    ///
    /// # Errors
    /// Returns an error if the limit does not allow them. Nothing is charged then.
    pub fn restore(&mut self, bytes: u64) -> Result<(), SourceError> {
        self.limit.charge(bytes)?;
        self.discarded -= bytes;
        Ok(())
    }

    /// Charges the bytes of a call that takes memory, before the call.
    ///
    /// # Errors
    /// Returns an error if the limit does not allow them. Nothing is charged then.
    pub fn charge(&self, kind: CallKind, bytes: u64) -> Result<(), SourceError> {
        if kind.takes_memory() {
            self.limit.charge(bytes)?;
        }
        Ok(())
    }

    /// Records a finished call, and refunds the bytes that it returned or could not take. `discarded` of the returned
    /// bytes had been discarded and are not refunded again.
    pub fn record(&mut self, event: &SourceEvent<'_>, discarded: u64) {
        let (_, returned) = self.held.record(event);
        self.discarded -= discarded;
        self.limit.refund(returned - discarded);
        if let SourceEvent::Take {
            bytes,
            outcome: Err(_),
        }
        | SourceEvent::Commit {
            bytes,
            outcome: Err(_),
            ..
        }
        | SourceEvent::Relocate {
            copied: bytes,
            outcome: Err(_),
            ..
        } = *event
        {
            self.limit.refund(bytes);
        }
    }
}

impl Drop for LimitedMemory {
    fn drop(&mut self) {
        self.limit.refund(self.bytes());
    }
}

impl<S> Limited<S> {
    /// Wraps a source with a limit, which other sources may share.
    pub fn new(inner: S, limit: Limit) -> Self {
        Self {
            inner,
            memory: LimitedMemory::new(limit),
        }
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        self.memory.limit()
    }

    /// Returns the inner source.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Returns the inner source for calls that the wrapper does not support. The wrapper does not see these calls.
    #[doc(hidden)]
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S: Source> SourceWrapper for Limited<S> {
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
        Some(free.map_or(remaining, |free| free.min(remaining)))
    }

    fn before(&mut self, kind: CallKind, bytes: u64) -> Result<(), SourceError> {
        self.memory.charge(kind, bytes)
    }

    fn after(&mut self, event: &SourceEvent<'_>) {
        self.memory.record(event, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Simulated};

    #[test]
    fn a_limit_below_the_held_bytes_refuses_further_requests() {
        let limit = Limit::new(100);
        let mut source = Limited::new(Simulated::new(), limit.clone());
        let (first, second) = (source.take(60).expect("fits"), source.take(40).expect("fits"));
        limit.set(50);
        assert_eq!((source.capacity(), source.free_bytes()), (Some(50), Some(0)));
        let told = SourceError::OutOfMemory {
            requested: 1,
            free: 0,
            capacity: 50,
        };
        assert_eq!(source.take(1), Err(told));
        source.give(second);
        assert!(source.take(1).is_err() && limit.used() == 60);
        source.give(first);
        assert!(source.take(50).is_ok());
    }

    #[test]
    fn calls_that_the_source_refuses_are_not_charged() {
        let faults = (0..4).map(|n| Fault::DriverErrorAt(n, 1));
        let limit = Limit::new(64 << 20);
        let mut source = Limited::new(Simulated::new().with_faults(faults), limit.clone());
        assert!(source.take(8 << 20).is_err() && source.reserve(8 << 20).is_err());
        assert!(source.take(8 << 20).is_err() && source.take(8 << 20).is_err());
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn a_dropped_source_refunds_its_bytes_to_a_shared_limit() {
        let limit = Limit::new(100);
        let mut one = Limited::new(Simulated::new(), limit.clone());
        let mut two = Limited::new(Simulated::new(), limit.clone());
        let _kept = one.take(70).expect("fits");
        assert!(two.take(31).is_err());
        let kept = two.take(30).expect("fits");
        drop(one);
        assert_eq!(limit.used(), 30);
        two.give(kept);
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn threads_never_exceed_a_shared_limit() {
        let limit = Limit::new(10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let limit = &limit;
                scope.spawn(move || {
                    let mut source = Limited::new(Simulated::new(), limit.clone());
                    for _ in 0..2000 {
                        if let Ok(segment) = source.take(4) {
                            assert!(limit.used() <= 10);
                            source.give(segment);
                        }
                    }
                });
            }
        });
        assert_eq!(limit.used(), 0);
    }
}
