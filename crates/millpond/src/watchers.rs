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

use crate::event::{EventKind, Facts, PoolLabel};
use crate::ledger::{Ledger, Record, Tracking, WrongFree};
#[cfg(all(feature = "record", target_os = "linux"))]
use crate::session::Sink;
use crate::tag::Tag;
use crate::tally;
use crate::thread::{self, COUNTING, DELIVERING};
use crate::time::Time;
use std::any::Any;
use std::fmt;
use std::mem;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What happened to a block or a pool. Borrowed while it is told; every field is a value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub pool: &'a PoolLabel,
    /// The block's address; 0 where there is none.
    pub address: usize,
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes of the block, or taken from the source or given back to it.
    pub bytes: usize,
    /// The alignment asked for.
    pub align: usize,
    /// The tag of the thread that did it. With a free the block's own tag may be another one: see `record`.
    pub tag: Tag,
    /// The [number](crate::thread_number) of that thread.
    pub thread: u32,
    /// The number of the stream it happened on, on a device: the pool's own count of streams.
    pub stream: u32,
    /// What was set on the pool.
    pub context: Option<&'a Context>,
    /// When, if some subscriber [wants](Subscriber::wants_time) it.
    pub time: Option<Time>,
    /// The `tracing` span it happened in, if some subscriber [wants](Subscriber::wants_span) it.
    pub span: Option<NonZeroU64>,
    /// What the account of live blocks says of the block, if there is one and it has the block: with a free, whose it
    /// was, and when it was allocated.
    pub record: Option<&'a Record>,
}

/// Which allocations a pool has to tell its watchers of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// None, and no frees.
    Nothing,
    /// Those that are picked, by [`Watchers::picked`], and all frees.
    OneIn(u32),
    /// All.
    Every,
}

/// The subscribers, the context and the account of live blocks of one pool.
///
/// A pool holds it as `Arc<Watchers>`; whoever subscribes or sets something makes another one and replaces the pool's.
/// So an event is told to those who were there when it began, without a lock.
#[derive(Clone)]
pub struct Watchers {
    pool: PoolLabel,
    subscribers: Vec<Subscription>,
    context: Option<Context>,
    ledger: Option<Arc<Ledger>>,
    #[cfg(all(feature = "record", target_os = "linux"))]
    sink: Option<Sink>,
    wants_time: bool,
    wants_span: bool,
    /// Of which of its pool's changes it is.
    change: u64,
    troubles: Arc<Troubles>,
}

#[derive(Clone)]
struct Subscription {
    id: SubscriptionId,
    to: Arc<dyn Subscriber>,
    wants_time: bool,
    wants_span: bool,
    /// It has panicked and is not called again.
    muted: Arc<AtomicBool>,
}

#[derive(Default)]
struct Troubles {
    panics: AtomicU64,
    undelivered: AtomicU64,
}

impl SubscriptionId {
    /// One that nobody has.
    pub(crate) fn next() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self(IDS.fetch_add(1, Ordering::Relaxed))
    }
}

impl Watchers {
    /// Nobody watches this pool.
    #[must_use]
    pub fn new(pool: PoolLabel) -> Self {
        Self {
            pool,
            subscribers: Vec::new(),
            context: None,
            ledger: None,
            #[cfg(all(feature = "record", target_os = "linux"))]
            sink: None,
            wants_time: false,
            wants_span: false,
            change: 0,
            troubles: Arc::default(),
        }
    }

    /// The same who watch another pool.
    #[cfg(feature = "cuda")]
    pub(crate) fn for_pool(&self, pool: PoolLabel) -> Self {
        Self {
            #[cfg(all(feature = "record", target_os = "linux"))]
            sink: self.sink.as_ref().map(|sink| sink.for_pool(&pool)),
            pool,
            ..self.clone()
        }
    }

    /// Those that a pool has after so many changes.
    pub(crate) fn of_change(self, change: u64) -> Self {
        Self { change, ..self }
    }

    /// Whether they are this pool's after so many changes.
    #[inline]
    pub(crate) fn is_of(&self, pool: u64, change: u64) -> bool {
        self.pool.id == pool && self.change == change
    }

    /// With one more subscriber.
    #[must_use]
    pub fn with_subscriber(&self, subscriber: Arc<dyn Subscriber>) -> (Self, SubscriptionId) {
        let id = SubscriptionId::next();
        (self.with_subscriber_as(id, subscriber), id)
    }

    /// The same under a number that was given out before, in place of whoever has it.
    pub(crate) fn with_subscriber_as(&self, id: SubscriptionId, subscriber: Arc<dyn Subscriber>) -> Self {
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

    /// Without this subscriber. Threads that have begun to tell it of something go on; it is dropped with the last
    /// value that has it.
    #[must_use]
    pub fn without(&self, id: SubscriptionId) -> Self {
        let mut made = self.clone();
        made.subscribers.retain(|subscription| subscription.id != id);
        made.ready()
    }

    /// With this context, or none.
    #[must_use]
    pub fn with_context(&self, context: Option<Context>) -> Self {
        Self {
            context,
            ..self.clone()
        }
    }

    /// With this account of live blocks, or none. Pools may share one if they have no addresses in common, as pools of
    /// several devices might.
    #[must_use]
    pub fn with_ledger(&self, ledger: Option<Arc<Ledger>>) -> Self {
        Self {
            ledger,
            ..self.clone()
        }
        .ready()
    }

    /// With a recording that is told, or none.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn with_sink(&self, sink: Option<Sink>) -> Self {
        Self { sink, ..self.clone() }
    }

    /// The recording that is told.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref()
    }

    /// Whether there is a recording.
    #[inline]
    fn is_recorded(&self) -> bool {
        #[cfg(all(feature = "record", target_os = "linux"))]
        return self.sink.is_some();
        #[cfg(not(all(feature = "record", target_os = "linux")))]
        false
    }

    /// Whether a recording is all that is told.
    pub(crate) fn only_record(&self) -> bool {
        self.is_recorded() && self.ledger.is_none() && self.subscribers.is_empty()
    }

    /// Tells the recording, if there is one.
    #[inline(always)]
    fn record(&self, _kind: EventKind, _facts: &Facts) {
        #[cfg(all(feature = "record", target_os = "linux"))]
        if let Some(sink) = &self.sink {
            sink.note(_kind, _facts, self.change);
        }
    }

    /// What subscribers want, gathered once.
    fn ready(mut self) -> Self {
        let kept = self.ledger.as_ref().is_some_and(|ledger| ledger.keeps_times());
        self.wants_time = kept || self.subscribers.iter().any(|s| s.wants_time);
        self.wants_span = self.subscribers.iter().any(|s| s.wants_span);
        self
    }

    /// Whether nobody watches: no subscriber, no account and no recording.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty() && self.ledger.is_none() && !self.is_recorded()
    }

    /// Which allocations have to be told.
    #[must_use]
    pub fn sees(&self) -> Sees {
        match &self.ledger {
            _ if !self.subscribers.is_empty() || self.is_recorded() => Sees::Every,
            None => Sees::Nothing,
            Some(ledger) => match ledger.tracking() {
                Tracking::All => Sees::Every,
                Tracking::Sampled { one_in } => Sees::OneIn(one_in),
            },
        }
    }

    /// The account of live blocks.
    #[must_use]
    pub fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref()
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PoolLabel {
        &self.pool
    }

    /// How often a subscriber has panicked, which ended its subscription.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.troubles.panics.load(Ordering::Relaxed)
    }

    /// Events that a subscriber caused itself, and which were told to none.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        self.troubles.undelivered.load(Ordering::Relaxed)
    }

    /// A block was handed out. To be called for each one if [`sees`](Self::sees) says so: an account that samples throws
    /// its dice here. Outside every lock, before the caller has the block.
    #[inline(always)]
    pub fn allocated(&self, facts: &Facts) {
        self.enter_and_tell(facts, |ledger| ledger.picks());
    }

    /// A block was handed out whose turn it was: so many were let pass as
    /// [`Ledger::next_gap`](crate::Ledger::next_gap) said.
    #[inline]
    pub fn picked(&self, facts: &Facts) {
        self.enter_and_tell(facts, |_| true);
    }

    #[inline(always)]
    fn enter_and_tell(&self, facts: &Facts, picks: impl FnOnce(&Ledger) -> bool) {
        if thread::inside() & COUNTING != 0 {
            return;
        }
        self.record(EventKind::Allocated, facts);
        match &self.ledger {
            Some(ledger) if picks(ledger) => self.enter(ledger, facts),
            _ if self.subscribers.is_empty() => {}
            _ => self.tell(EventKind::Allocated, facts, self.time(), None),
        }
    }

    #[inline(never)]
    fn enter(&self, ledger: &Arc<Ledger>, facts: &Facts) {
        let time = self.time();
        let record = ledger.record(facts, self.pool.kind, time);
        let record = ledger.insert(facts.address, record);
        if let Some(record) = record.as_ref().filter(|record| record.charged.is_some()) {
            tally::allocated(self.pool.id, ledger, record);
        }
        if !self.subscribers.is_empty() {
            self.tell(EventKind::Allocated, facts, time, record.as_ref());
        }
    }

    /// A block comes back. To be called for each one while not [empty](Self::is_empty), outside every lock, and
    /// **before** anyone else can be given the block: else the next owner's entry would be the one that is taken out.
    ///
    /// # Errors
    /// The block is not what the caller says, or not in callers' hands: it must not be taken back. Subscribers were told
    /// so.
    #[inline(always)]
    pub fn freed(&self, facts: &Facts) -> Result<(), Box<WrongFree>> {
        if thread::inside() & COUNTING != 0 {
            return Ok(());
        }
        match &self.ledger {
            Some(ledger) if ledger.may_hold(facts.address) => self.take_out(ledger, facts)?,
            _ if self.subscribers.is_empty() => {}
            _ => self.tell(EventKind::Freed, facts, self.time(), None),
        }
        // The block is its owner's until this returns, so nobody has told of the next in its place.
        self.record(EventKind::Freed, facts);
        Ok(())
    }

    #[inline(never)]
    fn take_out(&self, ledger: &Arc<Ledger>, facts: &Facts) -> Result<(), Box<WrongFree>> {
        let time = self.time();
        let given = (facts.align != 0).then_some((facts.requested, facts.align));
        let record = match ledger.remove_at(facts.address, given, time) {
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
            let mut facts = *facts;
            if let Some(record) = record.as_ref().filter(|_| facts.align == 0) {
                facts.requested = record.requested;
                facts.align = record.align;
            }
            self.tell(EventKind::Freed, &facts, time, record.as_ref());
        }
        Ok(())
    }

    /// Something is wrong with a block, found elsewhere. Outside every lock.
    #[cfg(target_os = "linux")]
    pub(crate) fn wrong(&self, error: &WrongFree) {
        if !self.subscribers.is_empty() {
            self.each(|subscriber| subscriber.wrong_free(error));
        }
    }

    /// Something else has happened: memory came from the source or went back, or a request was refused. Outside every
    /// lock.
    #[inline]
    pub fn note(&self, kind: EventKind, facts: &Facts) {
        if thread::inside() & COUNTING != 0 {
            return;
        }
        self.record(kind, facts);
        if !self.subscribers.is_empty() {
            self.tell(kind, facts, self.time(), None);
        }
    }

    #[inline]
    fn time(&self) -> Option<Time> {
        self.wants_time.then(Time::now)
    }

    /// Part of its callers: facts that were written one by one and are read here all at once would make the processor wait
    /// for the writes.
    #[inline(always)]
    fn tell(&self, kind: EventKind, facts: &Facts, time: Option<Time>, record: Option<&Record>) {
        let event = Event {
            kind,
            pool: &self.pool,
            address: facts.address,
            requested: facts.requested,
            bytes: facts.bytes,
            align: facts.align,
            tag: Tag::current(),
            thread: thread::thread_number(),
            stream: facts.stream,
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
        // What a panic carries may panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            mem::forget(again);
        }
    }
}

/// The current span of `tracing`.
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
