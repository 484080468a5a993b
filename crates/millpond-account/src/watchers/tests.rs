use super::*;
use crate::ledger::{Ledger, Tracking, WrongFree};
use crate::memory::MemoryKind;
use millpond_os::device::Device;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, RwLock};

/// Holds a value and replaces it as a whole, like a pool.
#[derive(Default)]
struct Held(RwLock<Option<Arc<Watchers>>>);

impl Held {
    fn new() -> Arc<Self> {
        let label = PoolLabel::new(3, "host", MemoryKind::Host, Device::Host);
        Arc::new(Self(RwLock::new(Some(Arc::new(Watchers::new(label))))))
    }
    fn now(&self) -> Arc<Watchers> {
        self.0.read().unwrap().clone().unwrap()
    }
    fn set(&self, watchers: Watchers) {
        *self.0.write().unwrap() = Some(Arc::new(watchers));
    }
    fn subscribe(&self, subscriber: impl Subscriber + 'static) -> SubscriptionId {
        let (watchers, id) = self.now().with_subscriber(Arc::new(subscriber));
        self.set(watchers);
        id
    }
}

fn info(address: usize) -> BlockInfo {
    BlockInfo {
        address,
        requested: 100,
        bytes: 128,
        align: 64,
        ..BlockInfo::default()
    }
}

type Seen = Arc<Mutex<Vec<(EventKind, usize, Tag)>>>;

fn recorder(seen: &Seen) -> impl Subscriber + 'static {
    let seen = Arc::clone(seen);
    move |event: &Event<'_>| seen.lock().unwrap().push((event.kind, event.address, event.tag))
}

#[test]
fn events_contain_the_data_of_the_pool_and_the_thread() {
    let pool = Held::new();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&seen);
    pool.subscribe(move |event: &Event<'_>| {
        assert_eq!(event.thread, millpond_os::thread_number());
        assert!(event.time.is_none(), "nobody wants it");
        let context = event.context.and_then(Context::number);
        told.lock().unwrap().push(format!(
            "{} {}/{} at {:x} by {} for {} in {} {context:?}",
            event.kind, event.requested, event.bytes, event.address, event.align, event.tag, event.pool.name
        ));
    });
    pool.set(pool.now().with_context(Some(Context::from(7))));
    let other = Arc::clone(&pool);
    std::thread::spawn(move || {
        let _scope = crate::tag("elsewhere");
        other.now().allocated(&info(0x1000));
    })
    .join()
    .unwrap();
    pool.set(pool.now().with_context(None));
    pool.now().freed(&info(0x1000)).unwrap();
    let refilled = BlockInfo {
        bytes: 1 << 20,
        ..BlockInfo::default()
    };
    pool.now().note(EventKind::Refilled, &refilled);
    let expected = [
        "allocated 100/128 at 1000 by 64 for elsewhere in host Some(7)",
        "freed 100/128 at 1000 by 64 for untagged in host None",
        "refilled 0/1048576 at 0 by 0 for untagged in host None",
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn with_an_account_a_free_event_contains_the_record_of_the_block() {
    let pool = Held::new();
    let ledger = Arc::new(Ledger::new(Tracking::All));
    pool.set(pool.now().with_ledger(Some(ledger)));
    let seen: Arc<Mutex<Vec<_>>> = Arc::default();
    let told = Arc::clone(&seen);
    pool.subscribe(move |event: &Event<'_>| {
        let record = event.record.unwrap();
        told.lock()
            .unwrap()
            .push((event.kind, event.requested, record.tag, record.serial));
    });
    {
        let _scope = crate::tag("owner");
        pool.now().allocated(&info(0x1000));
    }
    // The free names only the address.
    let alone = BlockInfo {
        address: 0x1000,
        ..BlockInfo::default()
    };
    pool.now().freed(&alone).unwrap();
    let owner = Tag::new("owner");
    let expected = [
        (EventKind::Allocated, 100, owner, 1),
        (EventKind::Freed, 100, owner, 1),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn events_caused_by_a_subscriber_are_recorded_but_not_delivered() {
    let pool = Held::new();
    let ledger = Arc::new(Ledger::new(Tracking::All));
    pool.set(pool.now().with_ledger(Some(Arc::clone(&ledger))));
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, own) = (Arc::clone(&calls), Arc::downgrade(&pool));
    pool.subscribe(move |_: &Event<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        if let Some(pool) = own.upgrade() {
            pool.now().allocated(&info(0x2000));
        }
    });
    let seen = Seen::default();
    pool.subscribe(recorder(&seen));
    pool.now().allocated(&info(0x1000));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(seen.lock().unwrap().len(), 1);
    assert_eq!(pool.now().undelivered(), 1);
    let addresses: Vec<usize> = ledger.leaks().iter().map(|leak| leak.address).collect();
    assert_eq!(addresses, [0x1000, 0x2000], "the account has both");
    // After the subscriber has returned, events are delivered again.
    pool.now().freed(&info(0x2000)).unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[test]
fn a_subscriber_may_unsubscribe_during_its_own_call() {
    let pool = Held::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let id = Arc::new(OnceLock::new());
    let (counted, own, which) = (Arc::clone(&calls), Arc::downgrade(&pool), Arc::clone(&id));
    let made = pool.subscribe(move |_: &Event<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        if let (Some(pool), Some(id)) = (own.upgrade(), which.get()) {
            pool.set(pool.now().without(*id));
        }
    });
    id.set(made).unwrap();
    let seen = Seen::default();
    pool.subscribe(recorder(&seen));
    for address in [0x1000, 0x2000] {
        pool.now().allocated(&info(address));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(seen.lock().unwrap().len(), 2, "the other one goes on");
}

#[test]
fn subscriptions_can_change_while_other_threads_report_events() {
    let pool = Held::new();
    let stop = AtomicBool::new(false);
    let always = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&always);
    pool.subscribe(move |_: &Event<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let told: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..4)
            .map(|thread| {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut told = 0;
                    while !stop.load(Ordering::Relaxed) || told == 0 {
                        pool.now().allocated(&info(thread << 20));
                        pool.now().freed(&info(thread << 20)).unwrap();
                        told += 2;
                    }
                    told
                })
            })
            .collect();
        for _ in 0..200 {
            let alive = Arc::new(AtomicBool::new(true));
            let id = pool.subscribe(move |_: &Event<'_>| assert!(alive.load(Ordering::Relaxed)));
            pool.set(pool.now().without(id));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(always.load(Ordering::Relaxed), told, "who stays misses nothing");
    assert_eq!(pool.now().panics(), 0);
}

#[test]
fn a_subscriber_that_panics_loses_no_block_and_is_not_called_again() {
    let pool = Held::new();
    let ledger = Arc::new(Ledger::new(Tracking::All));
    pool.set(pool.now().with_ledger(Some(Arc::clone(&ledger))));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("again"));
        }
    }
    pool.subscribe(move |_: &Event<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        // This does not call the panic hook. The payload panics when it is dropped.
        std::panic::resume_unwind(Box::new(Bomb));
    });
    let seen = Seen::default();
    pool.subscribe(recorder(&seen));
    pool.now().allocated(&info(0x1000));
    assert_eq!(ledger.blocks(), 1);
    pool.now().freed(&info(0x1000)).unwrap();
    assert_eq!(ledger.blocks(), 0);
    assert_eq!((calls.load(Ordering::Relaxed), pool.now().panics()), (1, 1));
    assert_eq!(
        seen.lock().unwrap().len(),
        2,
        "the other one is told all the same"
    );
    assert_eq!(millpond_os::thread::inside(), 0);
}

#[test]
fn a_wrong_free_is_reported_and_refused() {
    #[derive(Default)]
    struct Wrong(Mutex<Vec<String>>);
    impl Subscriber for Wrong {
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(event.kind.to_string());
        }
        fn wrong_free(&self, error: &WrongFree) {
            self.0.lock().unwrap().push(error.to_string());
        }
    }
    let wrong = Arc::new(Wrong::default());
    let ledger = Ledger::builder(Tracking::All).complete(true).build();
    let watchers = Watchers::new(PoolLabel::new(1, "", MemoryKind::Host, Device::Host))
        .with_ledger(Some(Arc::new(ledger)));
    let (watchers, _) = watchers.with_subscriber(Arc::clone(&wrong) as Arc<dyn Subscriber>);
    assert!(matches!(
        *watchers.freed(&info(0x1000)).unwrap_err(),
        WrongFree::Foreign { .. }
    ));
    assert_eq!(
        *wrong.0.lock().unwrap(),
        ["wrong free: no block of this pool begins at 0x1000"]
    );
}

#[test]
fn the_event_filter_follows_from_the_observers() {
    let none = Watchers::new(PoolLabel::new(1, "", MemoryKind::Host, Device::Host));
    assert!(none.is_empty());
    assert_eq!(none.sees(), EventFilter::Nothing);
    let ledger = Arc::new(Ledger::new(Tracking::Sampled { one_in: 10 }));
    let some = none.with_ledger(Some(ledger));
    assert_eq!((some.is_empty(), some.sees()), (false, EventFilter::OneIn(10)));
    let (every, id) = some.with_subscriber(Arc::new(|_: &Event<'_>| {}));
    assert_eq!(every.sees(), EventFilter::Every);
    assert_eq!(every.without(id).sees(), EventFilter::OneIn(10));
    assert!(every.without(id).with_ledger(None).is_empty());
}

#[test]
fn sampled_blocks_are_recorded_and_all_events_are_delivered() {
    let ledger = Arc::new(Ledger::new(Tracking::Sampled { one_in: 10 }));
    let watchers = Watchers::new(PoolLabel::new(1, "", MemoryKind::Host, Device::Host));
    let watchers = watchers.with_ledger(Some(Arc::clone(&ledger)));
    watchers.picked(&info(64));
    assert_eq!(ledger.blocks(), 1);
    let seen = Seen::default();
    let (every, _) = watchers.with_subscriber(Arc::new(recorder(&seen)));
    (0..10_000).for_each(|n| every.allocated(&info(128 + n)));
    assert_eq!(seen.lock().unwrap().len(), 10_000);
    // 1000 are expected, with a standard deviation of 30. The seed is not fixed, so the test allows seven deviations.
    assert!((790..1210).contains(&ledger.blocks()), "{}", ledger.blocks());
    every.freed(&info(64)).unwrap();
    (0..10_000).for_each(|n| every.freed(&info(128 + n)).unwrap());
    assert_eq!((ledger.blocks(), seen.lock().unwrap().len()), (0, 20_001));
}

#[test]
fn times_are_read_only_if_a_subscriber_wants_them() {
    struct Timed(Mutex<Vec<millpond_os::Time>>);
    impl Subscriber for Timed {
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().extend(event.time);
        }
        fn wants_time(&self) -> bool {
            true
        }
    }
    let timed = Arc::new(Timed(Mutex::default()));
    let watchers = Watchers::new(PoolLabel::new(1, "", MemoryKind::Host, Device::Host));
    let (watchers, _) = watchers.with_subscriber(Arc::clone(&timed) as Arc<dyn Subscriber>);
    watchers.allocated(&info(1));
    watchers.freed(&info(1)).unwrap();
    let times = timed.0.lock().unwrap();
    assert!(times.len() == 2 && times[0] <= times[1], "{times:?}");
}

#[cfg(feature = "tracing")]
mod with_tracing {
    use super::*;
    use ::tracing::field::{Field, Visit};
    use ::tracing::{Metadata, span};

    /// Collects `tracing` events from a level on, and knows one span.
    struct Collector {
        told: Arc<Mutex<Vec<String>>>,
        level: ::tracing::Level,
        span: OnceLock<&'static Metadata<'static>>,
        within: AtomicBool,
    }

    impl Collector {
        fn new(level: ::tracing::Level, told: &Arc<Mutex<Vec<String>>>) -> Self {
            Self {
                told: Arc::clone(told),
                level,
                span: OnceLock::new(),
                within: AtomicBool::new(false),
            }
        }
    }

    impl ::tracing::Subscriber for Collector {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_span() || *metadata.level() <= self.level
        }
        fn new_span(&self, made: &span::Attributes<'_>) -> span::Id {
            self.span.get_or_init(|| made.metadata());
            span::Id::from_u64(42)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &::tracing::Event<'_>) {
            struct Text(String);
            impl Visit for Text {
                fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                    self.0 += &format!(" {}={value:?}", field.name());
                }
            }
            let mut text = Text(format!(
                "{} {}",
                event.metadata().target(),
                event.metadata().level()
            ));
            event.record(&mut text);
            self.told.lock().unwrap().push(text.0);
        }
        fn enter(&self, _: &span::Id) {
            self.within.store(true, Ordering::Relaxed);
        }
        fn exit(&self, _: &span::Id) {
            self.within.store(false, Ordering::Relaxed);
        }
        fn current_span(&self) -> ::tracing_core::span::Current {
            match self.span.get() {
                Some(span) if self.within.load(Ordering::Relaxed) => {
                    ::tracing_core::span::Current::new(span::Id::from_u64(42), span)
                }
                _ => ::tracing_core::span::Current::none(),
            }
        }
    }

    #[test]
    fn events_are_forwarded_to_tracing() {
        let watchers = Watchers::new(PoolLabel::new(5, "host", MemoryKind::Host, Device::Host));
        let (watchers, _) = watchers.with_subscriber(Arc::new(TracingSubscriber::new()));
        let watchers = watchers.with_context(Some(Context::from("step 3")));
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        for level in [::tracing::Level::DEBUG, ::tracing::Level::TRACE] {
            let collector = Collector::new(level, &told);
            ::tracing::subscriber::with_default(collector, || {
                watchers.allocated(&info(4096));
                watchers.note(
                    EventKind::Refused,
                    &BlockInfo {
                        requested: 9,
                        ..BlockInfo::default()
                    },
                );
            });
        }
        let refused = "millpond WARN kind=\"refused\" pool=\"host\" pool_id=5 device=host address=0 requested=9 bytes=0 \
                       tag=\"untagged\" context=Context(\"step 3\")";
        let allocated = "millpond TRACE kind=\"allocated\" pool=\"host\" pool_id=5 device=host address=4096 \
                         requested=100 bytes=128 tag=\"untagged\" context=Context(\"step 3\")";
        assert_eq!(*told.lock().unwrap(), [refused, allocated, refused]);
    }

    #[test]
    fn events_contain_the_span_only_if_a_subscriber_wants_it() {
        struct Spans(Mutex<Vec<Option<u64>>>);
        impl Subscriber for Spans {
            fn event(&self, event: &Event<'_>) {
                self.0.lock().unwrap().push(event.span.map(NonZeroU64::get));
            }
            fn wants_span(&self) -> bool {
                true
            }
        }
        let spans = Arc::new(Spans(Mutex::default()));
        let watchers = Watchers::new(PoolLabel::new(5, "host", MemoryKind::Host, Device::Host));
        let (watchers, _) = watchers.with_subscriber(Arc::clone(&spans) as Arc<dyn Subscriber>);
        let collector = Collector::new(::tracing::Level::TRACE, &Arc::default());
        ::tracing::subscriber::with_default(collector, || {
            watchers.allocated(&info(4096));
            ::tracing::info_span!("step").in_scope(|| watchers.allocated(&info(8192)));
        });
        assert_eq!(*spans.0.lock().unwrap(), [None, Some(42)]);
    }
}
