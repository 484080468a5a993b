//! The observers of a pool: subscribers, an account of live blocks, and a recording.
//!
//! [`Watchers`] is one immutable value. A pool holds one and replaces it as a whole. A pool without observers pays one load. Subscribers
//! are called outside every lock, on the thread that caused the event. They may allocate, also from that pool.

mod context;
mod subscriber;
#[cfg(test)]
mod tests;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "tracing")]
pub use self::tracing::TracingSubscriber;
pub use context::Context;
pub use subscriber::{Subscriber, SubscriptionId};

use crate::event::{BlockInfo, EventKind, PoolLabel};
use crate::ledger::{Ledger, Record, Tracking, WrongFree};
#[cfg(target_os = "linux")]
use crate::session::Sink;
use crate::tags::Tag;
use crate::tally;
use millpond_os::thread::{self, COUNTING, DELIVERING};
use millpond_os::time::Time;
use std::any::Any;
use std::fmt;
use std::mem;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An event of a block or a pool. It is borrowed during the call of an observer, and every field is a value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The kind of the event.
    pub kind: EventKind,
    /// The pool.
    pub pool: &'a PoolLabel,
    /// The block's address, or 0 without a block.
    pub address: usize,
    /// The requested bytes.
    pub requested: usize,
    /// The bytes of the block, or the bytes that were taken from the source or returned to it.
    pub bytes: usize,
    /// The requested alignment.
    pub align: usize,
    /// The tag of the thread that caused the event. For a free, the block's own tag may differ: see `record`.
    pub tag: Tag,
    /// The [number](millpond_os::thread_number) of that thread.
    pub thread: u32,
    /// The number of the stream on a device, as counted by the pool.
    pub stream: u32,
    /// The context that was set on the pool.
    pub context: Option<&'a Context>,
    /// The time, if a subscriber [wants](Subscriber::wants_time) it.
    pub time: Option<Time>,
    /// The current `tracing` span, if a subscriber [wants](Subscriber::wants_span) it.
    pub span: Option<NonZeroU64>,
    /// The block's entry in the account of live blocks, if there is one. For a free, it contains the owner and the time
    /// of the allocation.
    pub record: Option<&'a Record>,
}

/// The allocations that a pool has to report to its observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFilter {
    /// No allocations and no frees.
    Nothing,
    /// The allocations that [`Watchers::picked`] receives, and all frees.
    OneIn(u32),
    /// All allocations.
    Every,
}

/// The subscribers, the context and the account of live blocks of one pool.
///
/// A pool holds it as `Arc<Watchers>`. A change, such as a new subscription, makes a new value and replaces the pool's.
/// So an event is sent to the observers that were registered when it began, without a lock.
#[derive(Clone)]
pub struct Watchers {
    pool: PoolLabel,
    subscribers: Vec<Subscription>,
    context: Option<Context>,
    ledger: Option<Arc<Ledger>>,
    #[cfg(target_os = "linux")]
    sink: Option<Sink>,
    wants_time: bool,
    wants_span: bool,
    /// The number of the pool's change that made this value.
    change: u64,
    troubles: Arc<Troubles>,
}

#[derive(Clone)]
struct Subscription {
    id: SubscriptionId,
    to: Arc<dyn Subscriber>,
    wants_time: bool,
    wants_span: bool,
    /// True if the subscriber has panicked and is not called again.
    muted: Arc<AtomicBool>,
}

#[derive(Default)]
struct Troubles {
    panics: AtomicU64,
    undelivered: AtomicU64,
}

impl SubscriptionId {
    /// Returns a new unique id.
    #[doc(hidden)]
    pub fn next() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self(IDS.fetch_add(1, Ordering::Relaxed))
    }
}

impl Watchers {
    /// Makes a value without observers.
    #[must_use]
    pub fn new(pool: PoolLabel) -> Self {
        Self {
            pool,
            subscribers: Vec::new(),
            context: None,
            ledger: None,
            #[cfg(target_os = "linux")]
            sink: None,
            wants_time: false,
            wants_span: false,
            change: 0,
            troubles: Arc::default(),
        }
    }

    /// Makes a value with the same observers for another pool.
    #[doc(hidden)]
    pub fn for_pool(&self, pool: PoolLabel) -> Self {
        Self {
            #[cfg(target_os = "linux")]
            sink: self.sink.as_ref().map(|sink| sink.for_pool(&pool)),
            pool,
            ..self.clone()
        }
    }

    /// Sets the number of the pool's change that made this value.
    #[doc(hidden)]
    pub fn of_change(self, change: u64) -> Self {
        Self { change, ..self }
    }

    /// Returns true if the value belongs to this pool after the given number of changes.
    #[inline]
    #[doc(hidden)]
    pub fn is_of(&self, pool: u64, change: u64) -> bool {
        self.pool.id == pool && self.change == change
    }

    /// Adds a subscriber.
    #[must_use]
    pub fn with_subscriber(&self, subscriber: Arc<dyn Subscriber>) -> (Self, SubscriptionId) {
        let id = SubscriptionId::next();
        (self.with_subscriber_as(id, subscriber), id)
    }

    /// Adds a subscriber under an existing id, replacing the one that has it.
    #[doc(hidden)]
    pub fn with_subscriber_as(&self, id: SubscriptionId, subscriber: Arc<dyn Subscriber>) -> Self {
        let mut made = self.clone();
        made.subscribers.retain(|other| other.id != id);
        made.subscribers.push(Subscription {
            id,
            wants_time: subscriber.wants_time(),
            wants_span: subscriber.wants_span(),
            to: subscriber,
            muted: Arc::default(),
        });
        made.ready()
    }

    /// Removes a subscriber. Threads that have begun to call it continue. It is dropped with the last value that
    /// contains it.
    #[must_use]
    pub fn without(&self, id: SubscriptionId) -> Self {
        let mut made = self.clone();
        made.subscribers.retain(|subscription| subscription.id != id);
        made.ready()
    }

    /// Sets or removes the context.
    #[must_use]
    pub fn with_context(&self, context: Option<Context>) -> Self {
        Self {
            context,
            ..self.clone()
        }
    }

    /// Sets or removes the account of live blocks. Pools may share an account if their addresses are disjoint, which
    /// may not be true for pools of several devices.
    #[must_use]
    pub fn with_ledger(&self, ledger: Option<Arc<Ledger>>) -> Self {
        Self {
            ledger,
            ..self.clone()
        }
        .ready()
    }

    /// Sets or removes the recording.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn with_sink(&self, sink: Option<Sink>) -> Self {
        Self { sink, ..self.clone() }
    }

    /// Returns the recording's sink.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref()
    }

    /// Returns true if there is a recording.
    #[inline]
    fn is_recorded(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.sink.is_some();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Returns true if a recording is the only observer.
    #[doc(hidden)]
    pub fn only_record(&self) -> bool {
        self.is_recorded() && self.ledger.is_none() && self.subscribers.is_empty()
    }

    /// Sends an event to the recording, if there is one.
    #[inline(always)]
    fn record(&self, _kind: EventKind, _facts: &BlockInfo) {
        #[cfg(target_os = "linux")]
        if let Some(sink) = &self.sink {
            sink.note(_kind, _facts, self.change);
        }
    }

    /// Collects the requirements of the subscribers once.
    fn ready(mut self) -> Self {
        let kept = self.ledger.as_ref().is_some_and(|ledger| ledger.keeps_times());
        self.wants_time = kept || self.subscribers.iter().any(|s| s.wants_time);
        self.wants_span = self.subscribers.iter().any(|s| s.wants_span);
        self
    }

    /// Returns true if there are no observers: no subscriber, no account and no recording.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty() && self.ledger.is_none() && !self.is_recorded()
    }

    /// Returns which allocations have to be reported.
    #[must_use]
    pub fn sees(&self) -> EventFilter {
        match &self.ledger {
            _ if !self.subscribers.is_empty() || self.is_recorded() => EventFilter::Every,
            None => EventFilter::Nothing,
            Some(ledger) => match ledger.tracking() {
                Tracking::All => EventFilter::Every,
                Tracking::Sampled { one_in } => EventFilter::OneIn(one_in),
            },
        }
    }

    /// Returns the account of live blocks.
    #[must_use]
    pub fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref()
    }

    /// Returns the context.
    #[must_use]
    pub fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    /// Returns the pool's label.
    #[must_use]
    pub fn pool(&self) -> &PoolLabel {
        &self.pool
    }

    /// Returns how many times a subscriber has panicked. Each panic ended the subscription.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.troubles.panics.load(Ordering::Relaxed)
    }

    /// Returns the number of events that subscribers caused themselves, which are not delivered.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        self.troubles.undelivered.load(Ordering::Relaxed)
    }

    /// Reports that a block was allocated. It must be called for each allocation if [`sees`](Self::sees) requires it,
    /// because an account that samples decides at random here. The caller holds no lock and does not have the block
    /// yet.
    #[inline(always)]
    pub fn allocated(&self, info: &BlockInfo) {
        self.enter_and_tell(info, |ledger| ledger.picks());
    }

    /// Reports the allocation of a block that was selected by the caller, which skipped as many allocations as
    /// [`Ledger::next_gap`](crate::Ledger::next_gap) returned.
    #[inline]
    pub fn picked(&self, info: &BlockInfo) {
        self.enter_and_tell(info, |_| true);
    }

    #[inline(always)]
    fn enter_and_tell(&self, info: &BlockInfo, picks: impl FnOnce(&Ledger) -> bool) {
        if thread::inside() & COUNTING != 0 {
            return;
        }
        self.record(EventKind::Allocated, info);
        match &self.ledger {
            Some(ledger) if picks(ledger) => self.enter(ledger, info),
            _ if self.subscribers.is_empty() => {}
            _ => self.tell(EventKind::Allocated, info, self.time(), None),
        }
    }

    #[inline(never)]
    fn enter(&self, ledger: &Arc<Ledger>, info: &BlockInfo) {
        let time = self.time();
        let record = ledger.record(info, self.pool.kind, time);
        let record = ledger.insert(info.address, record);
        if let Some(record) = record.as_ref().filter(|record| record.charged.is_some()) {
            tally::allocated(self.pool.id, ledger, record);
        }
        if !self.subscribers.is_empty() {
            self.tell(EventKind::Allocated, info, time, record.as_ref());
        }
    }

    /// Reports that a block is freed. It must be called for each free while the value is not [empty](Self::is_empty),
    /// outside every lock, and **before** the block can be allocated again. Otherwise the next owner's entry would be
    /// removed.
    ///
    /// # Errors
    /// Returns an error if the size or the alignment in `info` is wrong, or if no caller holds the block. The block
    /// must not be returned then. Subscribers have been notified.
    #[inline(always)]
    pub fn freed(&self, info: &BlockInfo) -> Result<(), Box<WrongFree>> {
        if thread::inside() & COUNTING != 0 {
            return Ok(());
        }
        match &self.ledger {
            Some(ledger) if ledger.may_hold(info.address) => self.take_out(ledger, info)?,
            _ if self.subscribers.is_empty() => {}
            _ => self.tell(EventKind::Freed, info, self.time(), None),
        }
        // The block belongs to its owner until this returns, so no event of the next block at this address precedes it.
        self.record(EventKind::Freed, info);
        Ok(())
    }

    #[inline(never)]
    fn take_out(&self, ledger: &Arc<Ledger>, info: &BlockInfo) -> Result<(), Box<WrongFree>> {
        let time = self.time();
        let given = (info.align != 0).then_some((info.requested, info.align));
        let record = match ledger.remove_at(info.address, given, time) {
            Ok(record) => record,
            Err(error) => {
                self.each(|subscriber| subscriber.wrong_free(&error));
                return Err(error);
            }
        };
        if let Some(record) = record.as_ref().filter(|record| record.charged.is_some()) {
            tally::freed(self.pool.id, ledger, record);
        }
        if !self.subscribers.is_empty() {
            let mut info = *info;
            if let Some(record) = record.as_ref().filter(|_| info.align == 0) {
                info.requested = record.requested;
                info.align = record.align;
            }
            self.tell(EventKind::Freed, &info, time, record.as_ref());
        }
        Ok(())
    }

    /// Reports a wrong free that was found elsewhere. The caller holds no lock.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn wrong(&self, error: &WrongFree) {
        if !self.subscribers.is_empty() {
            self.each(|subscriber| subscriber.wrong_free(error));
        }
    }

    /// Reports another event: memory was taken from the source or returned to it, or a request was refused. The caller
    /// holds no lock.
    #[inline]
    pub fn note(&self, kind: EventKind, info: &BlockInfo) {
        if thread::inside() & COUNTING != 0 {
            return;
        }
        self.record(kind, info);
        if !self.subscribers.is_empty() {
            self.tell(kind, info, self.time(), None);
        }
    }

    #[inline]
    fn time(&self) -> Option<Time> {
        self.wants_time.then(Time::now)
    }

    /// This is inlined into its callers. If the fields were written separately and read here as a whole, the processor
    /// would have to wait for the writes.
    #[inline(always)]
    fn tell(&self, kind: EventKind, info: &BlockInfo, time: Option<Time>, record: Option<&Record>) {
        let event = Event {
            kind,
            pool: &self.pool,
            address: info.address,
            requested: info.requested,
            bytes: info.bytes,
            align: info.align,
            tag: Tag::current(),
            thread: thread::thread_number(),
            stream: info.stream,
            context: self.context.as_ref(),
            time,
            span: if self.wants_span { span() } else { None },
            record,
        };
        self.each(|subscriber| subscriber.event(&event));
    }

    #[inline(always)]
    fn each(&self, tell: impl Fn(&dyn Subscriber)) {
        if thread::inside() != 0 {
            self.troubles.undelivered.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let _inside = thread::enter(DELIVERING);
        for subscription in &self.subscribers {
            if subscription.muted.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| tell(&*subscription.to))) {
                self.mute(subscription, panic);
            }
        }
    }

    #[cold]
    fn mute(&self, subscription: &Subscription, panic: Box<dyn Any + Send>) {
        subscription.muted.store(true, Ordering::Relaxed);
        self.troubles.panics.fetch_add(1, Ordering::Relaxed);
        // The payload of a panic may panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            mem::forget(again);
        }
    }
}

/// Returns the current span of `tracing`.
fn span() -> Option<NonZeroU64> {
    #[cfg(feature = "tracing")]
    {
        ::tracing::Span::current().id().map(|id| id.into_non_zero_u64())
    }
    #[cfg(not(feature = "tracing"))]
    None
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers")
            .field("pool", &self.pool)
            .field("subscribers", &self.subscribers.len())
            .field("context", &self.context)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}
