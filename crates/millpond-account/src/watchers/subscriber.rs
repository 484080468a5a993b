//! Subscribers, which receive the events of pools.

use super::Event;
use crate::ledger::WrongFree;

/// Receives every event of the pools to which it is subscribed.
///
/// A subscriber is called on the thread that caused the event. The thread holds no lock of the pool, so the subscriber
/// may allocate, free, subscribe and unsubscribe. It has to consider the following:
///
/// - Its own allocations and frees cause no events on its thread, neither for itself nor for other subscribers, because
///   they would never end. They are counted ([`Watchers::undelivered`](super::Watchers::undelivered)).
/// - It may be called by many threads at once. Threads that had begun may call it for a moment after it was
///   unsubscribed.
/// - If it panics, the pool's operation still completes. The panic is caught, because the event may come from inside
///   the program's allocator, and counted ([`Watchers::panics`](super::Watchers::panics)). The subscriber is not called
///   again.
/// - If the pool is the program's global allocator, a lock that the subscriber takes must not be held anywhere during
///   an allocation. Otherwise the thread would deadlock with itself.
///
/// A closure is a subscriber.
///
/// ```
/// use millpond::{Device, Event, MemoryKind, event::{BlockInfo, PoolLabel, Watchers}};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let bytes = Arc::new(AtomicUsize::new(0));
/// let sum = Arc::clone(&bytes);
/// let watchers = Watchers::new(PoolLabel::new(1, "host", MemoryKind::Host, Device::Host));
/// let (watchers, id) = watchers.with_subscriber(Arc::new(move |event: &Event<'_>| {
///     sum.fetch_add(event.bytes, Ordering::Relaxed);
/// }));
/// watchers.allocated(&BlockInfo { address: 4096, requested: 100, bytes: 128, align: 1, ..BlockInfo::default() });
/// assert_eq!(bytes.load(Ordering::Relaxed), 128);
/// assert!(watchers.without(id).is_empty());
/// ```
pub trait Subscriber: Send + Sync {
    /// Receives an event.
    fn event(&self, event: &Event<'_>);

    /// Receives a wrong free. This needs an account of live blocks. If blocks are guarded,
    /// it also receives writes outside of a block.
    fn wrong_free(&self, error: &WrongFree) {
        let _ = error;
    }

    /// Returns true if events need a [time](Event::time), which costs a read of the clock. This is called once, at the
    /// subscription.
    fn wants_time(&self) -> bool {
        false
    }

    /// Returns true if events need the current `tracing` [span](Event::span), which requires the feature `tracing`.
    /// This is called once, at the subscription.
    fn wants_span(&self) -> bool {
        false
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync> Subscriber for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// The id of a subscription, with which it can be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriptionId(pub(super) u64);
