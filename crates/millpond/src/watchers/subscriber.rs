//! Who is told.

use super::Event;
use crate::ledger::WrongFree;

/// Is told of every event of the pools it subscribed to.
///
/// It is called on the thread that caused the event, while no lock of the pool is held, so it may do what it likes:
/// allocate, free, subscribe and unsubscribe. Some things to know:
///
/// - What it allocates or frees itself causes no further events on its thread, neither for it nor for other
///   subscribers: they would never end. They are counted ([`Watchers::undelivered`](super::Watchers::undelivered)).
/// - It may be called by many threads at once, and for a moment after it was unsubscribed, by threads that had begun.
/// - When it panics, the block is neither lost nor kept: the panic is caught, because it may have come from inside the
///   program's allocator, counted ([`Watchers::panics`](super::Watchers::panics)), and it is not called again.
/// - Where the pool is the program's global allocator, a lock that it takes must not be held anywhere while memory is
///   allocated, or the thread that does so would wait for itself.
///
/// A closure is a subscriber.
///
/// ```
/// use millpond::{Event, Facts, MemoryKind, PoolLabel, Watchers};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let bytes = Arc::new(AtomicUsize::new(0));
/// let sum = Arc::clone(&bytes);
/// let watchers = Watchers::new(PoolLabel::new(1, "host", MemoryKind::Host, 0));
/// let (watchers, id) = watchers.with_subscriber(Arc::new(move |event: &Event<'_>| {
///     sum.fetch_add(event.bytes, Ordering::Relaxed);
/// }));
/// watchers.allocated(&Facts { address: 4096, requested: 100, bytes: 128, align: 1, ..Facts::default() });
/// assert_eq!(bytes.load(Ordering::Relaxed), 128);
/// assert!(watchers.without(id).is_empty());
/// ```
pub trait Subscriber: Send + Sync {
    /// Something has happened.
    fn event(&self, event: &Event<'_>);

    /// Someone tried to give back what is not there, which is only told where there is an account of live blocks; or did
    /// not keep to a block's bounds, which is told where blocks are [guarded](crate::PoolBuilder::guard).
    fn wrong_free(&self, error: &WrongFree) {
        let _ = error;
    }

    /// Whether events need a [time](Event::time); asked once, when it subscribes. It costs a look at the clock.
    fn wants_time(&self) -> bool {
        false
    }

    /// Whether events need the current `tracing` [span](Event::span), which takes the feature `tracing`; asked once.
    fn wants_span(&self) -> bool {
        false
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync> Subscriber for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// A subscription, to end it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriptionId(pub(super) u64);
