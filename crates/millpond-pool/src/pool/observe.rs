//! Observation of a pool's blocks: events for subscribers, and the ledger of live blocks.

use super::fork;
use super::guard::Guard;
use super::heap::{Heap, lock};
use millpond_account::ledger::{Ledger, LedgerBuilder};
use millpond_os::reentrancy::inside;
use std::mem;
use std::sync::Arc;

impl Heap {
    /// Tracks live blocks from now on, or stops tracking.
    pub(crate) fn track(&self, ledger: Option<LedgerBuilder>) {
        let ledger = ledger.map(|builder| self.account(builder));
        self.change_watchers(|watchers| (watchers.with_ledger(ledger), ()));
    }

    /// Creates a ledger and adds it to the list of ledgers, so that a fork holds its locks.
    pub(super) fn account(&self, builder: LedgerBuilder) -> Arc<Ledger> {
        let filter = builder.samples().then(|| fork::filter_of(self));
        let ledger = Arc::new(builder.build_with(filter));
        // The pool may be the program's own. Allocations for the list would then be reported under the list's lock, and reports need
        // the list.
        let _inside = inside();
        let mut ledgers = lock(&self.ledgers);
        let (kept, gone): (Vec<_>, Vec<_>) = mem::take(&mut *ledgers)
            .into_iter()
            .partition(|ledger| ledger.is_passing() || Arc::strong_count(ledger) > 1);
        *ledgers = kept;
        ledgers.push(Arc::clone(&ledger));
        drop(ledgers);
        // Dropped outside of the lock.
        drop(gone);
        ledger
    }

    /// Drops the ledgers of a pool that has ended. Their other owners keep them.
    pub(super) fn forget_accounts(&self) {
        self.change_watchers(|watchers| (watchers.with_ledger(None), ()));
        let gone = mem::take(&mut *lock(&self.ledgers));
        // Dropped outside of the lock.
        drop(gone);
        let others = self.hands.get().into_iter();
        others
            .chain(self.guard.as_ref().map(Guard::ledger))
            .for_each(|ledger| ledger.give_back());
    }
}

/// Implements the methods of a pool for observers. `shared` is the method that returns what the handles of the pool share.
#[doc(hidden)]
#[macro_export]
macro_rules! observed_pool {
    ($pool:ty, $shared:ident) => {
        const _: () = {
            use millpond_account::ledger::{Leak, LeakReport, Ledger, LedgerBuilder};
            use millpond_account::watchers::{Context, Subscriber, SubscriptionId};
            use std::sync::Arc;
            use $crate::pool::LeakCheck;

            /// Observers. They cost nothing while there are none. While there are some, every call leaves the fast path.
            impl $pool {
                /// Reports every allocation, free, refill, trim and refusal to a subscriber, on the thread where it happens
                /// and outside of every lock. A subscriber may use the pool itself. Events that it causes are not reported.
                ///
                /// ```
                /// use millpond::{Event, Pool, event::EventKind};
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
                    let subscriber = Arc::new(subscriber);
                    self.$shared()
                        .change_watchers(|watchers| watchers.with_subscriber(subscriber))
                }

                /// Removes a subscriber. Events that begin after this call are not reported to it. Calls of the subscriber
                /// that are in progress on other threads finish. It is dropped after the last thread has seen the change.
                pub fn unsubscribe(&self, id: SubscriptionId) {
                    self.$shared()
                        .change_watchers(|watchers| (watchers.without(id), ()));
                }

                /// Attaches a value to each event, on any thread, so that subscribers can relate the event to it.
                pub fn set_context(&self, context: Option<Context>) {
                    self.$shared()
                        .change_watchers(|watchers| (watchers.with_context(context), ()));
                }

                /// Tracks live blocks from now on, or stops tracking. The ledger records the thread, the time and the allocation
                /// site of each block. In debug builds tracking is on from the start, unless the pool's settings say otherwise.
                pub fn track(&self, account: Option<LedgerBuilder>) {
                    self.$shared().track(account);
                }

                /// Returns the ledger of live blocks, if the pool tracks them: leaks, the largest blocks, and bytes by tag.
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
                    self.$shared().ledger()
                }

                /// Returns the `n` largest live blocks with their allocation sites, largest first. Returns `None` if the pool
                /// does not [track](Self::ledger) blocks, to distinguish this from an empty list. If the ledger is sampled, only
                /// the blocks in it are returned.
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

                /// Returns the live blocks of more than this number of bytes, largest first, or `None` like
                /// [`largest`](Self::largest). Use [`parse_size`](millpond_engine::parse_size) to parse a size that a
                /// person has written.
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

                /// Returns a readable report of the live blocks by tag and allocation site, largest first, or `None` if the
                /// pool does not track blocks.
                #[must_use]
                pub fn leak_report(&self) -> Option<LeakReport> {
                    self.ledger().map(|ledger| ledger.leak_report())
                }

                /// Starts a check of the blocks that this thread allocates and does not free. A pool without tracking
                /// starts to track all blocks, with stacks if the feature is enabled, until [`track`](Self::track) ends it.
                ///
                /// ```
                /// let pool = millpond::Pool::host()?;
                /// let check = pool.leak_check();
                /// let kept = pool.alloc_zeroed::<f32>(1000)?;
                /// drop(pool.alloc_zeroed::<f32>(1000)?);
                ///
                /// let report = check.finish();
                /// assert_eq!((report.blocks, report.groups[0].largest), (1, 4096));
                /// # drop(kept);
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                pub fn leak_check(&self) -> LeakCheck {
                    LeakCheck::of(
                        self.name(),
                        || self.ledger(),
                        |account| self.track(Some(account)),
                    )
                }
            }
        };
    };
}

crate::observed_pool!(super::Pool, heap);
