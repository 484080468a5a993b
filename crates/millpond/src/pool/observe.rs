//! What a pool tells of its blocks: to subscribers as it happens, and to whoever asks who holds what.

use super::Pool;
use super::fork;
use super::guard::Guard;
use super::heap::{Heap, lock};
use crate::ledger::{Leak, LeakReport, Ledger, LedgerBuilder};
use crate::reentrancy::inside;
use crate::watchers::{Context, Subscriber, SubscriptionId};
use std::mem;
use std::sync::Arc;

impl Heap {
    /// Keeps an account of live blocks from now on, or none.
    pub(crate) fn track(&self, ledger: Option<LedgerBuilder>) {
        let ledger = ledger.map(|builder| self.account(builder));
        self.change_watchers(|watchers| (watchers.with_ledger(ledger), ()));
    }

    /// An account that a fork brings to rest.
    pub(super) fn account(&self, builder: LedgerBuilder) -> Arc<Ledger> {
        let filter = builder.samples().then(|| fork::filter_of(self));
        let ledger = Arc::new(builder.build_with(filter));
        // The pool may be the program's own: what the list takes would be told, and asked of it, under its lock.
        let _inside = inside();
        let mut ledgers = lock(&self.ledgers);
        let (kept, gone): (Vec<_>, Vec<_>) = mem::take(&mut *ledgers)
            .into_iter()
            .partition(|ledger| ledger.is_passing() || Arc::strong_count(ledger) > 1);
        *ledgers = kept;
        ledgers.push(Arc::clone(&ledger));
        drop(ledgers);
        // Outside the lock.
        drop(gone);
        ledger
    }

    /// The pool has ended: nobody asks for its accounts any more but who has one.
    pub(super) fn forget_accounts(&self) {
        self.change_watchers(|watchers| (watchers.with_ledger(None), ()));
        let gone = mem::take(&mut *lock(&self.ledgers));
        // Outside the lock.
        drop(gone);
        let others = self.hands.get().into_iter();
        others
            .chain(self.guard.as_ref().map(Guard::scribe))
            .for_each(|ledger| ledger.give_back());
    }
}

/// Those who watch. While nobody does they cost nothing; while someone does, every call goes out of its way.
impl Pool {
    /// Has every allocation, free, refill, trim and refusal told, on the thread where it happens, outside every lock. A
    /// subscriber may use the pool itself; what it causes there is told to nobody.
    ///
    /// ```
    /// use millpond::{Event, EventKind, Pool};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// let pool = Pool::host()?;
    /// let bytes = Arc::new(AtomicUsize::new(0));
    /// let seen = Arc::clone(&bytes);
    /// let id = pool.subscribe(move |event: &Event<'_>| {
    ///     if event.kind == EventKind::Allocated && event.tag.name() == "weights" {
    ///         seen.fetch_add(event.requested, Ordering::Relaxed);
    ///     }
    /// });
    /// let _scope = millpond::tag("weights");
    /// let weights = pool.alloc_zeroed::<f32>(1000)?;
    /// assert_eq!(bytes.load(Ordering::Relaxed), 4000);
    /// pool.unsubscribe(id);
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscribe(&self, subscriber: impl Subscriber + 'static) -> SubscriptionId {
        self.heap()
            .change_watchers(|watchers| watchers.with_subscriber(Arc::new(subscriber)))
    }

    /// The same of a subscriber that several pools know by one number. It takes the place of one with that number.
    pub(crate) fn subscribe_as(&self, id: SubscriptionId, subscriber: &Arc<dyn Subscriber>) {
        self.heap()
            .change_watchers(|watchers| (watchers.with_subscriber_as(id, Arc::clone(subscriber)), ()));
    }

    /// Tells this subscriber nothing more that begins after this call. Threads that are telling it something go on; it
    /// is dropped when the last of them has looked again.
    pub fn unsubscribe(&self, id: SubscriptionId) {
        self.heap().change_watchers(|watchers| (watchers.without(id), ()));
    }

    /// Has each event carry a value, on any thread, so that it can be told what it belongs to.
    pub fn set_context(&self, context: Option<Context>) {
        self.heap()
            .change_watchers(|watchers| (watchers.with_context(context), ()));
    }

    /// Keeps an account of live blocks from now on, or none: who allocated what, when and where. In debug builds there is
    /// one from the start, unless the pool was told otherwise.
    pub fn track(&self, account: Option<LedgerBuilder>) {
        self.heap().track(account);
    }

    /// The account of live blocks, if there is one: leaks, the largest blocks, bytes by tag.
    ///
    /// ```
    /// use millpond::{Ledger, Pool, Tag, Tracking};
    ///
    /// let pool = Pool::host()?;
    /// pool.track(Some(Ledger::builder(Tracking::All)));
    /// let _scope = millpond::tag("weights");
    /// let weights = pool.alloc_zeroed::<f32>(1000)?;
    /// let small = pool.alloc_zeroed::<u8>(100)?;
    ///
    /// let account = pool.ledger().expect("one was asked for");
    /// assert_eq!(account.largest(1)[0].requested, 4000);
    /// assert_eq!(account.larger_than(1000).len(), 1);
    /// assert_eq!((account.by_tag()[0].tag, account.blocks()), (Tag::new("weights"), 2));
    /// # drop((weights, small));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.heap().ledger()
    }

    /// The largest live blocks with the place of each, largest first, at most `n`; none where the pool keeps no
    /// [account](Self::ledger), which is another answer than an empty list. Of an account of some blocks, those that are
    /// in it.
    ///
    /// ```
    /// use millpond::{Ledger, Pool, Tracking};
    ///
    /// let pool = Pool::host()?;
    /// pool.track(Some(Ledger::builder(Tracking::All)));
    /// let held = [pool.alloc_zeroed::<f32>(1000)?, pool.alloc_zeroed::<f32>(50)?];
    /// let largest = pool.largest(1).expect("an account was asked for");
    /// assert_eq!((largest.len(), largest[0].requested), (1, 4000));
    /// assert_eq!(largest[0].address, held[0].as_ptr() as usize);
    ///
    /// pool.track(None);
    /// assert!(pool.largest(1).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn largest(&self, n: usize) -> Option<Vec<Leak>> {
        self.ledger().map(|ledger| ledger.largest(n))
    }

    /// The live blocks of more bytes than that, largest first; none as with [`largest`](Self::largest). What a person has
    /// written is read by [`parse_size`](millpond_engine::parse_size).
    ///
    /// ```
    /// use millpond::engine::parse_size;
    /// use millpond::{Pool, Tracking};
    ///
    /// let pool = Pool::builder().track(Some(Tracking::All)).host()?;
    /// let held = [pool.alloc_zeroed::<u8>(2 << 20)?, pool.alloc_zeroed::<u8>(100)?];
    /// let large = pool.larger_than(parse_size("1MB")?).expect("an account was asked for");
    /// assert_eq!((large.len(), large[0].requested), (1, 2 << 20));
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
