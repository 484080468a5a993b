//! Sets of pools: created on demand, once, and changed, counted and cleared together. Scopes select the current set.

#![cfg(target_os = "linux")]

use millpond::{
    AllocError, Budget, Buffer, Device, Event, Ledger, MemoryKind, Pool, PoolError, Pools, Tracking,
    event::{Context, EventKind},
    pool::Prewarm,
    pools,
    pools::{PoolsBlocks, PoolsScope},
    source::HugePages,
};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;

const MIB: u64 = 1 << 20;

fn quiet() -> Pools {
    // With small pages, reserved memory follows held memory closely.
    Pools::with(Pool::builder().trim_every(None).huge_pages(HugePages::System))
}

fn held() -> Buffer<u8> {
    millpond::alloc_zeroed(100_000).expect("room")
}

/// Returns true if a buffer is from the set.
fn is_from(buffer: &Buffer<u8>, set: &Pools) -> bool {
    let pool = buffer.pool().expect("a pool's").id();
    set.iter().any(|of| of.id() == pool)
}

#[test]
fn pools_are_created_on_demand_and_only_once() {
    let set = quiet();
    let none = set.stats();
    assert!(none.pools.is_empty());
    for ratio in [none.hit_rate(), none.utilisation(), none.fragmentation_ratio()] {
        assert_eq!(ratio, 0.0);
    }
    set.clear();
    set.trim();
    set.reset_peak();
    set.collect_garbage();
    assert_eq!(set.compact().reserved_before, 0);
    assert!(set.iter().next().is_none());

    let together = Barrier::new(8);
    let ids: Vec<u64> = thread::scope(|scope| {
        let ask = || {
            together.wait();
            set.host().expect("a pool").id()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let again = set.pool(Device::Host, MemoryKind::Host).expect("there");
    assert_eq!((again.id(), again.name()), (ids[0], "host"));
}

#[test]
fn a_set_has_one_pool_for_each_kind_and_sums_their_statistics() {
    let set = Pools::builder()
        .name("both")
        .template(Pool::builder().trim_every(None))
        .template_for(
            Device::Host,
            MemoryKind::Pinned,
            Pool::builder().trim_every(None).limit(MIB),
        )
        .build();
    let host = set
        .host()
        .expect("a pool")
        .alloc_zeroed::<u8>(3000)
        .expect("room");
    let pinned = set.pinned().expect("a pool");
    assert_eq!((pinned.kind(), pinned.limit()), (MemoryKind::Pinned, Some(MIB)));
    let locked = pinned.alloc_zeroed::<u8>(5000).expect("room");
    assert!(millpond::source::is_pinned(locked.as_ptr()));
    let stats = set.stats();
    let names: Vec<&str> = stats.pools.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["both host", "both pinned"]);
    assert_eq!(stats.total.requested.current, 8000);
    assert_eq!(stats.total.allocations, 2);
    assert_eq!(stats.on(Device::Host), stats.total);
    assert_eq!(
        stats.total.reserved.current,
        stats
            .pools
            .iter()
            .map(|entry| entry.stats.reserved.current)
            .sum::<u64>()
    );
    drop((host, locked));
    set.reset_peak();
    assert_eq!(set.stats().total.allocated.peak, 0);
    assert_eq!(set.stats().total.allocations, 2, "only peaks begin anew");
    let compacted = set.compact();
    assert!(
        compacted.returned() > 0 && compacted.reserved_after == 0,
        "{compacted}"
    );
    set.clear();
    assert_eq!(set.stats().total, millpond::pools::PoolsStats::default().total);
}

#[test]
fn an_inserted_pool_is_returned() {
    let set = quiet();
    let made = set.host().expect("a pool").id();
    let mine = Pool::builder().name("mine").host().expect("a pool");
    assert_eq!(set.insert(mine.clone()).map(|before| before.id()), Some(made));
    assert_eq!(set.host().expect("there").id(), mine.id());
    let removed = set.remove(Device::Host, MemoryKind::Host);
    assert_eq!(removed.map(|pool| pool.id()), Some(mine.id()));
    assert!(set.remove(Device::Host, MemoryKind::Host).is_none());
    assert_ne!(set.host().expect("another").id(), mine.id());
}

#[test]
fn settings_of_a_set_apply_to_later_pools() {
    let set = Pools::with(Pool::builder().trim_every(None).limit(64 * MIB));
    set.configure("limit:8MiB").expect("known");
    set.configure("memory-fraction:0.5,decay:3").expect("known");
    set.configure("limit:16MiB").expect("known");
    let host = set.host().expect("a pool");
    assert_eq!(host.limit(), Some(16 * MIB));
    set.configure("limit:32MiB").expect("known");
    assert_eq!(host.limit(), Some(32 * MIB));
    // Either all settings apply or none, now and later.
    for bad in [
        "limit:1MiB,handle:4MiB",
        "limit:lots",
        "lmit:1MiB",
        "limit:1MiB,low-water:2MiB,high-water:1MiB",
    ] {
        assert!(set.configure(bad).is_err(), "{bad}");
    }
    drop(host);
    set.remove(Device::Host, MemoryKind::Host);
    assert_eq!(set.host().expect("a pool").limit(), Some(32 * MIB));
    // Settings that a later text does not replace stay in effect.
    set.configure("limit:64MiB,zero-on-reuse:on").expect("known");
    set.configure("limit:48MiB").expect("known");
    set.remove(Device::Host, MemoryKind::Host);
    let host = set.host().expect("a pool");
    assert_eq!(host.limit(), Some(48 * MIB));
    drop(host.alloc::<u8>(1000).expect("room").fill(0xAA));
    let raw = host.alloc_raw(1000, 64).expect("room");
    // SAFETY: the block is ours, and its bytes were written above or cleared since.
    let block = unsafe { raw.as_ref() };
    assert!(
        block.iter().all(|byte| *byte == 0),
        "it clears what is used again"
    );
    // SAFETY: nothing uses it any more.
    unsafe { host.free_raw(raw.cast()) }.expect("ours");
    set.configure("zero-on-reuse:off").expect("known");
    // A pool that cannot be changed prevents the change of all others, including pools made later.
    let stubborn = Pool::builder().settings("low-water:2GiB");
    set.insert(stubborn.pinned().expect("a pool"));
    assert!(set.configure("limit:5MiB,high-water:1GiB").is_err());
    assert_eq!(host.limit(), Some(48 * MIB));
    set.remove(Device::Host, MemoryKind::Host);
    assert_eq!(set.host().expect("a pool").limit(), Some(48 * MIB));
    // The template has the same effect if there is no pool yet.
    let none = Pools::with(Pool::builder().settings("low-water:2GiB"));
    assert!(none.configure("high-water:1GiB").is_err() && none.configure("lmit:1MiB").is_err());
    assert!(none.host().is_ok());
}

#[test]
fn observers_of_a_set_also_observe_its_later_pools() {
    let set = Pools::with(Pool::builder().settings("track:off"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let watch = |name: &'static str| {
        let told = Arc::clone(&told);
        set.subscribe(move |event: &Event<'_>| {
            let number = event.context.and_then(Context::number);
            if event.kind == EventKind::Allocated {
                told.lock()
                    .expect("no panic")
                    .push((name, event.requested, number));
            }
        })
    };
    let events = |set: &Pools, bytes: usize| {
        drop(
            set.host()
                .expect("a pool")
                .alloc_zeroed::<u8>(bytes)
                .expect("room"),
        );
        std::mem::take(&mut *told.lock().expect("no panic"))
    };
    let early = watch("early");
    set.set_context(Some(Context::from(7)));
    assert_eq!(events(&set, 100), [("early", 100, Some(7))]);
    let late = watch("late");
    let both = |number| [("early", 200, number), ("late", 200, number)];
    assert_eq!(events(&set, 200), both(Some(7)));
    set.remove(Device::Host, MemoryKind::Host);
    assert_eq!(
        events(&set, 200),
        both(Some(7)),
        "another pool, the same watchers"
    );
    set.unsubscribe(early);
    set.set_context(None);
    assert_eq!(events(&set, 300), [("late", 300, None)]);
    set.remove(Device::Host, MemoryKind::Host);
    assert_eq!(events(&set, 300), [("late", 300, None)]);
    set.unsubscribe(late);
    assert!(events(&set, 300).is_empty());
}

#[test]
fn the_largest_blocks_of_a_set_name_the_pools_without_a_ledger() {
    let set = Pools::with(Pool::builder().settings("track:off").trim_every(None));
    let held = set
        .host()
        .expect("a pool")
        .alloc_zeroed::<u8>(5000)
        .expect("room");
    let none = set.largest(3);
    assert!(none.blocks.is_empty(), "{none:?}");
    assert_eq!(none.without_account, ["host"], "not known is not none");
    assert!(set.host().expect("a pool").largest(3).is_none());
    assert!(set.host().expect("a pool").larger_than(0).is_none());
    set.track(Some(Ledger::builder(Tracking::All)));
    let empty = set.largest(3);
    assert!(
        empty.blocks.is_empty() && empty.without_account.is_empty(),
        "{empty:?}"
    );
    set.remove(Device::Host, MemoryKind::Host);
    let host = set.host().expect("one that keeps an account from the start");
    let blocks: Vec<_> = [70_000, 1_000, 200_000, 3_000]
        .map(|bytes| host.alloc_zeroed::<u8>(bytes).expect("room"))
        .into();
    let requested =
        |found: &PoolsBlocks| -> Vec<usize> { found.blocks.iter().map(|one| one.block.requested).collect() };
    assert_eq!(requested(&set.largest(3)), [200_000, 70_000, 3_000]);
    assert_eq!(requested(&set.larger_than(69_000)), [200_000, 70_000]);
    assert!(requested(&set.larger_than(u64::MAX)).is_empty());
    let largest = &set.largest(1).blocks[0];
    assert_eq!(
        (largest.pool.as_str(), largest.block.address),
        ("host", blocks[2].as_ptr() as usize)
    );
    let of_pool: Vec<usize> = host
        .larger_than(69_000)
        .expect("kept")
        .iter()
        .map(|b| b.requested)
        .collect();
    assert_eq!(of_pool, [200_000, 70_000]);
    drop(held);
}

#[test]
fn a_pool_that_cannot_be_made_is_an_error_each_time() {
    let set = Pools::with(Pool::builder().policy("no such"));
    for _ in 0..2 {
        assert!(matches!(set.host(), Err(PoolError::UnknownPolicy { .. })));
    }
    let refused = set
        .scope(|| millpond::alloc_zeroed::<u8>(100))
        .expect_err("no pool");
    assert!(!refused.is_out_of_memory());
    let AllocError::Pool(why) = &refused else {
        panic!("{refused}")
    };
    assert!(
        matches!(why.downcast_ref(), Some(PoolError::UnknownPolicy { .. })),
        "{refused}"
    );
    set.insert(Pool::host().expect("a pool"));
    assert!(set.host().is_ok());
}

#[test]
fn callbacks_may_request_the_pool_that_is_being_created() {
    static SET: OnceLock<Pools> = OnceLock::new();
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let budget = Budget::builder("asks").soft_limit(1, |_| {
        let answer = SET.get().expect("set").host();
        assert!(matches!(answer, Err(PoolError::Reentered { name }) if name == "host"));
        ASKED.fetch_add(1, Ordering::Relaxed);
    });
    let budget = budget.build().expect("a budget");
    let template = Pool::builder().trim_every(None).capacity(MIB).budget(&budget);
    let set = SET.get_or_init(|| Pools::with(template));
    assert!(set.host().is_ok());
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
}

#[test]
fn the_innermost_scope_is_current_and_is_cleared_at_its_end() {
    let outside = pools();
    let (one, two) = (quiet(), quiet());
    let first = one.enter();
    assert!(pools().is_same(&one) && first.pools().is_same(&one));
    let kept = held();
    {
        let _second = two.enter();
        assert!(is_from(&held(), &two));
        assert!(two.stats().total.reserved.current > 0);
    }
    assert_eq!(
        two.stats().total,
        millpond::pools::PoolsStats::default().total,
        "cleared"
    );
    assert!(is_from(&held(), &one));
    drop(first);
    assert!(pools().is_same(&outside));
    let left = one.stats().total;
    assert_eq!(left.requested.current, 100_000, "what is in use stays");
    assert!(left.cached() < MIB, "and what it shares a page with: {left:?}");
    drop(one);
    assert!(kept.iter().all(|byte| *byte == 0));
}

#[test]
fn a_panic_restores_the_outer_scope() {
    let outside = pools();
    let set = quiet();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        set.scope(|| {
            let _buffer = held();
            assert!(set.stats().total.reserved.current > 0);
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert!(pools().is_same(&outside));
    assert_eq!(set.stats().total.reserved.current, 0);
}

#[test]
fn scopes_end_in_any_order() {
    let outside = pools();
    let sets: [Pools; 4] = std::array::from_fn(|_| quiet());
    // All orders in which four scopes can end.
    let mut orders = vec![vec![]];
    for _ in 0..4 {
        let longer = orders.iter().flat_map(|order: &Vec<usize>| {
            (0..4)
                .filter(|next| !order.contains(next))
                .map(|next| [order.clone(), vec![next]].concat())
        });
        orders = longer.collect();
    }
    assert_eq!(orders.len(), 24);
    for order in orders {
        let mut scopes: Vec<Option<PoolsScope>> = sets.iter().map(|set| Some(set.enter())).collect();
        for (ended, next) in order.iter().enumerate() {
            scopes[*next] = None;
            let last = (0..4).rfind(|at| !order[..=ended].contains(at));
            let expected = last.map_or(&outside, |at| &sets[at]);
            assert!(pools().is_same(expected), "{order:?} after {ended}");
        }
    }
    // A long chain is dropped without deep recursion on the stack.
    let mut scopes: Vec<PoolsScope> = (0..100_000).map(|_| sets[0].join()).collect();
    let innermost = scopes.pop();
    scopes.into_iter().for_each(drop);
    assert!(pools().is_same(&sets[0]));
    drop(innermost);
    assert!(pools().is_same(&outside));
}

#[test]
fn a_scope_applies_to_one_thread_and_others_may_join() {
    let set = quiet();
    let _scope = set.enter();
    let mine = held();
    thread::scope(|threads| {
        threads.spawn(|| {
            assert!(!pools().is_same(&set));
            {
                let _scope = set.join();
                drop(held());
            }
            assert!(!pools().is_same(&set));
        });
    });
    let stats = set.stats().total;
    assert_eq!((stats.allocations, stats.frees), (2, 1), "not cleared");
    assert!(is_from(&mine, &set));
}

/// Allocates, enters and leaves at the end of its thread.
struct Late {
    set: Pools,
    outside: Pools,
    ended: Arc<AtomicUsize>,
}

impl Drop for Late {
    fn drop(&mut self) {
        assert!(pools().is_same(&self.outside));
        self.set.scope(|| assert!(is_from(&held(), &self.set)));
        assert!(pools().is_same(&self.outside));
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    static GUARD: RefCell<Option<PoolsScope>> = const { RefCell::new(None) };
}

#[test]
fn scopes_at_the_end_of_a_thread() {
    let ended = Arc::new(AtomicUsize::new(0));
    let outside = pools();
    let late = Late {
        set: quiet(),
        outside: outside.clone(),
        ended: Arc::clone(&ended),
    };
    thread::spawn(move || LATE.set(Some(late)))
        .join()
        .expect("no panic");
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    // A guard that ends with the thread's other values.
    let set = quiet();
    let entered = set.clone();
    thread::spawn(move || {
        GUARD.set(Some(entered.enter()));
        drop(held());
        assert!(entered.stats().total.reserved.current > 0);
    })
    .join()
    .expect("no panic");
    assert_eq!(set.stats().total.reserved.current, 0, "cleared");
    // A forgotten guard stays in effect to the end of its thread, and affects no other thread.
    let forgotten = quiet();
    thread::spawn(move || {
        std::mem::forget(forgotten.enter());
        assert!(pools().is_same(&forgotten));
    })
    .join()
    .expect("no panic");
    assert!(pools().is_same(&outside));
}

#[test]
fn dropping_a_set_frees_its_memory() {
    let set = quiet();
    let budget = Budget::builder("watched").build().expect("a budget");
    set.insert(
        Pool::builder()
            .trim_every(None)
            .budget(&budget)
            .prewarm(Prewarm::small_sizes())
            .host()
            .expect("a pool"),
    );
    let kept = set.scope(held);
    drop(set);
    assert!(budget.used() >= 100_000);
    drop(kept);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_profile_covers_every_pool_and_device() {
    let set = quiet();
    let before = set
        .host()
        .expect("a pool")
        .alloc_zeroed::<u8>(1 << 20)
        .expect("room");
    drop(
        set.host()
            .expect("a pool")
            .alloc_zeroed::<u8>(5 << 20)
            .expect("room"),
    );
    let (kept, report) = set.profile(|| {
        drop(before);
        let kept = set
            .host()
            .expect("there")
            .alloc_zeroed::<u8>(2 << 20)
            .expect("room");
        let pinned = set.pinned().expect("a pool");
        drop(pinned.alloc_zeroed::<u8>(8192).expect("room"));
        kept
    });
    let [host, pinned] = &report.pools[..] else {
        panic!("{report}")
    };
    assert_eq!((host.name.as_str(), pinned.name.as_str()), ("host", "pinned"));
    assert_eq!((host.kept(), host.allocations(), host.frees()), (1 << 20, 1, 1));
    assert_eq!(
        (host.before.cached(), host.peak()),
        (0, MIB),
        "it was cleared before"
    );
    assert_eq!((pinned.allocations(), pinned.peak(), pinned.kept()), (1, 8192, 0));
    assert_eq!(report.kept_on(Device::Host), 1 << 20);
    assert_eq!(kept.len(), 2 << 20);
}
