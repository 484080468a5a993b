//! Subscribers and accounts of a pool, with the interface of the host's [`Pool`](millpond_pool::Pool).

use super::DevicePool;
use millpond_account::ledger::{Leak, LeakReport, Ledger, LedgerBuilder};
use millpond_account::watchers::{Context, Subscriber, SubscriptionId};
use std::sync::Arc;

/// Subscribers and accounts. They cost nothing while there are none.
impl DevicePool {
    /// Notifies `subscriber` of every allocation, free, refill, trim and refusal, on the thread where it happens, while no lock is held. A
    /// subscriber may use the pool itself; the events that it causes there are not reported. Addresses are the device's.
    pub fn subscribe(&self, subscriber: impl Subscriber + 'static) -> SubscriptionId {
        self.0
            .change_watchers(|watchers| watchers.with_subscriber(Arc::new(subscriber)))
    }

    /// Adds a subscriber that several pools know by one number. It replaces a subscriber with that number.
    #[doc(hidden)]
    pub fn subscribe_as(&self, id: SubscriptionId, subscriber: &Arc<dyn Subscriber>) {
        self.0
            .change_watchers(|watchers| (watchers.with_subscriber_as(id, Arc::clone(subscriber)), ()));
    }

    /// Removes a subscriber. It is not notified of events that begin after this call.
    pub fn unsubscribe(&self, id: SubscriptionId) {
        self.0.change_watchers(|watchers| (watchers.without(id), ()));
    }

    /// Sets a value that each event carries, on any thread, to show what the event belongs to.
    pub fn set_context(&self, context: Option<Context>) {
        self.0
            .change_watchers(|watchers| (watchers.with_context(context), ()));
    }

    /// Begins or ends an account of live blocks, which contains the place and time of each allocation. Debug builds keep one from the
    /// start, unless the pool was built without.
    pub fn track(&self, account: Option<LedgerBuilder>) {
        let ledger = account.map(|builder| Arc::new(builder.build()));
        self.0
            .change_watchers(|watchers| (watchers.with_ledger(ledger), ()));
    }

    /// Returns the account of live blocks, if there is one: leaks, the largest blocks, bytes by tag.
    #[must_use]
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.0.ledger()
    }

    /// Returns at most `n` of the largest live blocks with their places, largest first. Returns `None` if the pool keeps no
    /// [account](Self::ledger).
    #[must_use]
    pub fn largest(&self, n: usize) -> Option<Vec<Leak>> {
        self.ledger().map(|ledger| ledger.largest(n))
    }

    /// Returns the live blocks of more than `bytes` bytes, largest first. Returns `None` if the pool keeps no [account](Self::ledger).
    #[must_use]
    pub fn larger_than(&self, bytes: u64) -> Option<Vec<Leak>> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.ledger().map(|ledger| ledger.larger_than(bytes))
    }

    /// Returns a readable report of the live blocks by tag and place, largest first. Returns `None` if there is no account.
    #[must_use]
    pub fn leak_report(&self) -> Option<LeakReport> {
        self.ledger().map(|ledger| ledger.leak_report())
    }
}
