//! What a pool tells of its blocks, in the words of a [`Pool`](crate::Pool) of the host.

use super::DevicePool;
use crate::ledger::{Leak, LeakReport, Ledger, LedgerBuilder};
use crate::watchers::{Context, Subscriber, SubscriptionId};
use std::sync::Arc;

/// Those who watch. While nobody does they cost nothing.
impl DevicePool {
    /// Has every allocation, free, refill, trim and refusal told, on the thread where it happens, outside every lock. A
    /// subscriber may use the pool itself; what it causes there is told to nobody. Addresses are the device's.
    pub fn subscribe(&self, subscriber: impl Subscriber + 'static) -> SubscriptionId {
        self.0
            .change_watchers(|watchers| watchers.with_subscriber(Arc::new(subscriber)))
    }

    /// The same of a subscriber that several pools know by one number. It takes the place of one with that number.
    pub(crate) fn subscribe_as(&self, id: SubscriptionId, subscriber: &Arc<dyn Subscriber>) {
        self.0
            .change_watchers(|watchers| (watchers.with_subscriber_as(id, Arc::clone(subscriber)), ()));
    }

    /// Tells this subscriber nothing more that begins after this call.
    pub fn unsubscribe(&self, id: SubscriptionId) {
        self.0.change_watchers(|watchers| (watchers.without(id), ()));
    }

    /// Has each event carry a value, on any thread, so that it can be told what it belongs to.
    pub fn set_context(&self, context: Option<Context>) {
        self.0
            .change_watchers(|watchers| (watchers.with_context(context), ()));
    }

    /// Keeps an account of live blocks from now on, or none: who allocated what, when and where. In debug builds there is
    /// one from the start, unless the pool was told otherwise.
    pub fn track(&self, account: Option<LedgerBuilder>) {
        let ledger = account.map(|builder| Arc::new(builder.build()));
        self.0
            .change_watchers(|watchers| (watchers.with_ledger(ledger), ()));
    }

    /// The account of live blocks, if there is one: leaks, the largest blocks, bytes by tag.
    #[must_use]
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.0.watchers().ledger().cloned()
    }

    /// The largest live blocks with the place of each, largest first, at most `n`; none where the pool keeps no
    /// [account](Self::ledger).
    #[must_use]
    pub fn largest(&self, n: usize) -> Option<Vec<Leak>> {
        self.ledger().map(|ledger| ledger.largest(n))
    }

    /// The live blocks of more bytes than that, largest first; none as with [`largest`](Self::largest).
    #[must_use]
    pub fn larger_than(&self, bytes: u64) -> Option<Vec<Leak>> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.ledger().map(|ledger| ledger.larger_than(bytes))
    }

    /// What is held now, for people: blocks by tag and place, largest first. None without an account.
    #[must_use]
    pub fn leak_report(&self) -> Option<LeakReport> {
        self.ledger().map(|ledger| ledger.leak_report())
    }
}
