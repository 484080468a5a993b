//! Observation of a set's blocks: events for observers, and lists of live blocks.

use super::Pools;
use millpond_account::ledger::{Leak, Ledger, LedgerBuilder};
use millpond_account::registry::LivePool;
use millpond_account::watchers::{Context, Subscriber, SubscriptionId};
use std::sync::Arc;

/// The observers of all pools of a set, including those created later.
#[derive(Clone, Default)]
pub(super) struct Watching {
    pub(super) subscribers: Vec<(SubscriptionId, Arc<dyn Subscriber>)>,
    /// `None` if no context was set.
    pub(super) context: Option<Option<Context>>,
    pub(super) account: Option<Option<LedgerBuilder>>,
    /// The number of changes.
    pub(super) change: u64,
}

impl Watching {
    /// Applies the settings to a new pool to which `before` was applied.
    pub(super) fn tell(&self, pool: &dyn LivePool, before: Option<&Self>) {
        for (id, _) in before.into_iter().flat_map(|before| &before.subscribers) {
            if !self.subscribers.iter().any(|(still, _)| still == id) {
                pool.change_watchers(&|watchers| watchers.without(*id));
            }
        }
        for (id, subscriber) in &self.subscribers {
            pool.change_watchers(&|watchers| watchers.with_subscriber_as(*id, Arc::clone(subscriber)));
        }
        if let Some(context) = &self.context {
            pool.change_watchers(&|watchers| watchers.with_context(context.clone()));
        }
        if let Some(account) = self.account {
            pool.track(account);
        }
    }
}

/// A live block of one of the pools of a set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolsBlock {
    /// The name of the pool.
    pub pool: String,
    /// The block and its call site.
    pub block: Leak,
}

/// Live blocks of the pools of a set.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PoolsBlocks {
    /// The blocks, largest first.
    pub blocks: Vec<PoolsBlock>,
    /// The names of the pools without an account. Their blocks are not in the list.
    pub without_account: Vec<String>,
}

impl PoolsBlocks {
    /// Lists blocks of these pools.
    pub(crate) fn of(pools: Vec<Box<dyn LivePool>>, list: impl Fn(&Ledger) -> Vec<Leak>) -> Self {
        let mut all = Self::default();
        for pool in pools {
            let name = pool.label().name.to_string();
            let Some(ledger) = pool.account() else {
                all.without_account.push(name);
                continue;
            };
            all.blocks
                .extend(list(&ledger).into_iter().map(|block| PoolsBlock {
                    pool: name.clone(),
                    block,
                }));
        }
        all.blocks.sort_by_key(|one| std::cmp::Reverse(one.block.bytes));
        all
    }
}

/// These settings apply to existing pools and to those created later. They do not apply to a pool that is [inserted](Pools::insert)
/// afterwards.
impl Pools {
    /// Registers an observer for the events of every pool, as [`Pool::subscribe`](millpond_pool::Pool::subscribe) does.
    ///
    /// ```
    /// use millpond::{Event, Pools, event::EventKind};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// let set = Pools::new();
    /// let bytes = Arc::new(AtomicUsize::new(0));
    /// let seen = Arc::clone(&bytes);
    /// let id = set.subscribe(move |event: &Event<'_>| {
    ///     if event.kind == EventKind::Allocated {
    ///         seen.fetch_add(event.requested, Ordering::Relaxed);
    ///     }
    /// });
    /// let weights = set.host()?.alloc_zeroed::<f32>(1000)?;
    /// assert_eq!(bytes.load(Ordering::Relaxed), 4000);
    /// set.unsubscribe(id);
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscribe(&self, subscriber: impl Subscriber + 'static) -> SubscriptionId {
        let (id, subscriber) = (
            SubscriptionId::next(),
            Arc::new(subscriber) as Arc<dyn Subscriber>,
        );
        self.set
            .watch(|watching| watching.subscribers.push((id, Arc::clone(&subscriber))));
        for pool in self.members() {
            pool.change_watchers(&|watchers| watchers.with_subscriber_as(id, Arc::clone(&subscriber)));
        }
        id
    }

    /// Removes an observer. It receives no event that begins after this call.
    pub fn unsubscribe(&self, id: SubscriptionId) {
        let gone = self.set.watch(|watching| {
            let place = watching.subscribers.iter().position(|(other, _)| *other == id);
            place.map(|place| watching.subscribers.remove(place))
        });
        for pool in self.members() {
            pool.change_watchers(&|watchers| watchers.without(id));
        }
        drop(gone);
    }

    /// Attaches a value to each event of every pool, or removes it.
    pub fn set_context(&self, context: Option<Context>) {
        let before = self
            .set
            .watch(|watching| watching.context.replace(context.clone()));
        for pool in self.members() {
            pool.change_watchers(&|watchers| watchers.with_context(context.clone()));
        }
        drop(before);
    }

    /// Starts an account of live blocks in every pool, or ends it.
    pub fn track(&self, account: Option<LedgerBuilder>) {
        self.set.watch(|watching| watching.account = Some(account));
        self.members().iter().for_each(|pool| pool.track(account));
    }

    /// Returns the largest live blocks of all pools, at most `n`. See [`Pool::largest`](millpond_pool::Pool::largest).
    ///
    /// ```
    /// use millpond::{Ledger, Pools, Tracking};
    ///
    /// let set = Pools::new();
    /// set.track(Some(Ledger::builder(Tracking::All)));
    /// let held = set.host()?.alloc_zeroed::<f32>(1000)?;
    /// let largest = set.largest(10);
    /// assert!(largest.without_account.is_empty());
    /// assert_eq!((largest.blocks[0].pool.as_str(), largest.blocks[0].block.requested), ("host", 4000));
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn largest(&self, n: usize) -> PoolsBlocks {
        let mut all = PoolsBlocks::of(self.members(), |ledger| ledger.largest(n));
        all.blocks.truncate(n);
        all
    }

    /// Returns the live blocks of more than `bytes` bytes in all pools. See [`Pool::larger_than`](millpond_pool::Pool::larger_than).
    #[must_use]
    pub fn larger_than(&self, bytes: u64) -> PoolsBlocks {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        PoolsBlocks::of(self.members(), |ledger| ledger.larger_than(bytes))
    }
}
