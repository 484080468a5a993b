//! Sets of pools, of the host and of devices.

use crate::support::emulator;
use crate::{MIB, builder, device};
use millpond::cuda::{CudaDevice, CudaStream, DevicePool};
use millpond::{Budget, Device, Event, Pool, Pools, Tracking, event::EventKind, pools, set_default_pools};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A set has a pool for each device, which is made on demand. Operations on the set apply to its pools.
#[test]
fn a_set_has_pools_of_devices_too() {
    const TEST: &str = "sets::a_set_has_pools_of_devices_too";
    if !emulator::is_child(TEST) {
        let (passed, text) = emulator::child(TEST, "devices:2");
        assert!(passed, "{text}");
        return;
    }
    let Some((device, stream)) = device() else { return };
    let set = Pools::builder()
        .name("training")
        .cuda_template(builder().track(Some(Tracking::All)))
        .build();
    assert!(
        set.stats().pools.is_empty(),
        "nothing is made before it is asked for"
    );
    set.configure("limit:48MiB,trim-every:1s").expect("all have them");
    let seen = Arc::new(Mutex::new(0u64));
    let told = Arc::clone(&seen);
    set.subscribe(move |event: &Event<'_>| {
        if event.kind == EventKind::Allocated {
            *told.lock().expect("whole") += event.requested as u64;
        }
    });
    let pool = set.cuda(0).expect("a pool");
    assert!(set.cuda(0).expect("the same") == pool);
    assert_eq!((pool.name(), pool.limit()), ("training cuda:0", 48 * MIB));
    let held = pool.alloc::<f32>(1 << 20, &stream).expect("fits");
    let there = set
        .host()
        .expect("a pool")
        .alloc_zeroed::<u8>(1 << 20)
        .expect("fits");
    assert_eq!(*seen.lock().expect("whole"), 5 * MIB);
    let stats = set.stats();
    assert_eq!(stats.on(Device::Cuda(0)).requested.current, 4 * MIB);
    assert_eq!(stats.total.requested.current, 5 * MIB);
    assert!(stats.to_string().contains("training cuda:0"), "{stats}");
    let largest = set.largest(1);
    assert_eq!(
        (largest.blocks[0].pool.as_str(), largest.blocks[0].block.requested),
        ("training cuda:0", 4 << 20)
    );
    assert!(set.cuda(2).is_err(), "there is no such device");
    if let Ok(other) = CudaDevice::get(1) {
        assert_eq!(set.cuda(1).expect("a pool").device().number(), other.number());
        assert_eq!(set.stats().pools.len(), 3);
    }
    set.configure("limit:1GiB").expect("all have it");
    assert_eq!(pool.limit(), 1 << 30);
    drop((held, there));
    set.clear();
    let total = set.stats().total;
    assert_eq!((total.reserved.current, total.allocations), (0, 0));
    let mine = builder().name("mine").build(&device).expect("a pool");
    assert!(set.insert_cuda(mine.clone()).is_some_and(|before| before == pool));
    assert!(set.cuda(0).expect("mine") == mine);
    assert!(set.remove_cuda(0) == Some(mine) && set.cuda(0).expect("another") != pool);

    assert!(pool.configure("no-such:1").is_err());
    pool.configure("memory-fraction:0.5,zero-on-reuse:on,cache-size:4MiB")
        .expect("it has them");
    assert!(pool.limit() > 1 << 30);
}

/// Runs the body in a process of its own with two devices.
fn with_two_devices(test: &str, body: impl FnOnce()) {
    emulator::in_children(test, ["devices:2".to_owned()].into_iter(), body);
}

/// Returns a set's pools of both devices, each with a stream.
fn two(set: &Pools) -> [(DevicePool, CudaStream); 2] {
    [0, 1].map(|number| {
        let pool = set.cuda(number).expect("a pool");
        let stream = CudaStream::new(pool.device()).expect("a stream");
        (pool, stream)
    })
}

fn set() -> Pools {
    let host = Pool::builder().settings("trim-every:off");
    let devices = DevicePool::builder().settings("trim-every:off");
    Pools::builder().template(host).cuda_template(devices).build()
}

const ALL: [Device; 3] = [Device::Host, Device::Cuda(0), Device::Cuda(1)];

/// Statistics of the host and both devices, and operations on all of them by one call.
#[test]
fn operations_on_the_default_set_reach_the_host_and_all_devices() {
    with_two_devices(
        "sets::operations_on_the_default_set_reach_the_host_and_all_devices",
        || {
            set_default_pools(set());
            assert_eq!(millpond::memory_stats().hit_rate(), 0.0, "and no NaN");
            let [(first, stream), (second, other)] = two(&pools());
            let free = || [&first, &second].map(|pool| pool.device().memory().expect("it says").free);
            let at_first = free();
            let held = (
                millpond::alloc_zeroed::<u8>(3 << 20).expect("room"),
                first.alloc::<u8>(5 << 20, &stream).expect("fits"),
                second.alloc::<u8>(7 << 20, &other).expect("fits"),
            );
            let stats = millpond::memory_stats();
            assert_eq!(
                ALL.map(|device| stats.on(device).requested.current / MIB),
                [3, 5, 7]
            );
            assert_eq!(ALL.map(|device| stats.on(device).allocations), [1; 3]);
            assert_eq!(
                (stats.total.requested.current, stats.total.allocations),
                (15 * MIB, 3)
            );
            assert!(ALL.map(|device| stats.on(device).cached()).iter().sum::<u64>() == stats.total.cached());
            drop(held);
            let stats = millpond::memory_stats();
            assert_eq!(ALL.map(|device| stats.on(device).frees), [1; 3]);
            assert!(ALL.iter().all(|device| stats.on(*device).cached() > 0));
            millpond::empty_cache();
            let stats = millpond::memory_stats();
            assert_eq!(ALL.map(|device| stats.on(device).reserved.current), [0; 3]);
            assert_eq!(free(), at_first, "as the driver counts it");
            assert_eq!(
                ALL.map(|device| stats.on(device).allocations),
                [1; 3],
                "the account stays"
            );

            // Blocks that wait for a stream or that another thread freed are free after a collection.
            let third = CudaStream::new(first.device()).expect("a stream");
            let mut waits = first.alloc::<u8>(1 << 20, &stream).expect("fits");
            waits.record_use(&third).expect("of the device");
            let given = second.alloc::<u8>(1 << 20, &other).expect("fits");
            std::thread::spawn(move || drop((waits, given)))
                .join()
                .expect("it gave");
            third.synchronize().expect("it ends");
            millpond::collect_garbage();
            let stats = millpond::memory_stats();
            assert_eq!((stats.total.waiting, stats.total.allocated.current), (0, 0));
            // Blocks that were not used for the configured time are returned to the driver.
            pools().configure("decay:2").expect("all have it");
            (0..4).for_each(|_| millpond::collect_garbage());
            let stats = millpond::memory_stats();
            assert_eq!(ALL.map(|device| stats.on(device).reserved.current), [0; 3]);

            drop((
                millpond::alloc_zeroed::<u8>(3 << 20).expect("room"),
                first.alloc::<u8>(5 << 20, &stream).expect("fits"),
                second.alloc::<u8>(7 << 20, &other).expect("fits"),
            ));
            let reserved = millpond::memory_stats().total.reserved.current;
            let done = millpond::compact();
            assert_eq!((done.reserved_before, done.reserved_after), (reserved, 0));

            let (kept, report) = pools().profile(|| {
                drop(second.alloc::<u8>(2 << 20, &other).expect("fits"));
                first.alloc::<u8>(4 << 20, &stream).expect("fits")
            });
            let kept_on = ALL.map(|device| report.kept_on(device));
            assert_eq!(kept_on, [0, kept.bytes() as i64, 0]);
            assert_eq!(report.pools.len(), 3);
            pools().clear();
            let stats = millpond::memory_stats();
            assert_eq!(
                (stats.total.allocations, stats.on(Device::Cuda(1)).reserved.peak),
                (0, 0)
            );
            assert_eq!(
                stats.on(Device::Cuda(0)).requested.current,
                4 * MIB,
                "what is live stays"
            );
        },
    );
}

/// A replaced default serves until its last block. A scope serves its thread and is cleared at its end, also by a
/// panic.
#[test]
fn sets_are_replaced_and_scoped_with_their_devices() {
    with_two_devices("sets::sets_are_replaced_and_scoped_with_their_devices", || {
        let (before, after) = (set(), set());
        set_default_pools(before.clone());
        let [(old, stream), _] = two(&pools());
        let held = old.alloc_from(&[3u8; 100], &stream).expect("fits");
        assert!(set_default_pools(after.clone()).is_same(&before));
        let new = pools().cuda(0).expect("a pool");
        assert!(new != old && new == after.cuda(0).expect("the same"));
        assert_eq!(millpond::memory_stats().on(Device::Cuda(0)).requested.current, 0);
        drop((before, old));
        assert_eq!(held.to_vec().expect("a copy"), [3; 100]);

        let scoped = set();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            scoped.scope(|| {
                assert!(pools().is_same(&scoped));
                for (pool, stream) in two(&pools()) {
                    drop(pool.alloc::<u8>(1 << 20, &stream).expect("fits"));
                }
                drop(millpond::alloc_zeroed::<u8>(1 << 20).expect("room"));
                assert_eq!(millpond::memory_stats().total.requested.peak, 3 * MIB);
                std::thread::scope(|threads| {
                    threads.spawn(|| assert!(pools().is_same(&after), "another thread is in no scope"));
                });
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err() && pools().is_same(&after));
        let stats = scoped.stats();
        assert_eq!(ALL.map(|device| stats.on(device).reserved.current), [0; 3]);
        assert_eq!((stats.pools.len(), stats.total.allocations), (3, 0));
    });
}

/// Either all pools are configured or none. The settings also apply to pools that are made later.
#[test]
fn a_set_with_devices_is_configured_as_one() {
    with_two_devices("sets::a_set_with_devices_is_configured_as_one", || {
        let set = set();
        let [(first, _), _] = two(&set);
        set.configure("limit:2GB,cache-size:1GB,zero-on-reuse:on")
            .expect("all have it");
        assert_eq!(first.limit(), 2_000_000_000);
        assert_eq!(set.host().expect("made later").limit(), Some(2_000_000_000));
        let bfc = builder().policy("bfc").build(first.device()).expect("a pool");
        set.insert_cuda(bfc.clone());
        let error = set
            .configure("limit:1GB,decay:3")
            .expect_err("one has no such thing");
        assert!(error.to_string().contains("bfc"), "{error}");
        let limits = (
            set.cuda(1).expect("there").limit(),
            set.host().expect("there").limit(),
        );
        assert_eq!(
            limits,
            (2_000_000_000, Some(2_000_000_000)),
            "then nothing is changed"
        );
        set.configure("memory-fraction:0.25").expect("all have it");
        let total = first.device().memory().expect("it says").total;
        assert_eq!(bfc.limit(), total / 4);
        assert_eq!(first.limit(), 2_000_000_000, "it is not of the set any more");
    });
}

/// The host and two devices share one limit. The error says by how much it would be exceeded.
#[test]
fn one_budget_holds_for_the_host_and_its_devices() {
    with_two_devices("sets::one_budget_holds_for_the_host_and_its_devices", || {
        let budget = Budget::builder("all").limit(48 * MIB).build().expect("a budget");
        let host = Pool::builder().settings("trim-every:off").budget(&budget);
        let set = Pools::builder()
            .template(host)
            .cuda_template(builder().budget(&budget))
            .build();
        let [(first, stream), (second, other)] = two(&set);
        let held = (
            set.host()
                .expect("a pool")
                .alloc_zeroed::<u8>(8 << 20)
                .expect("room"),
            first.alloc::<u8>(16 << 20, &stream).expect("fits"),
            second.alloc::<u8>(16 << 20, &other).expect("fits"),
        );
        assert_eq!(budget.used(), set.stats().total.reserved.current);
        let error = second.alloc::<u8>(24 << 20, &other).expect_err("too much");
        let (said, left) = (error.to_string(), budget.remaining());
        assert!(left < 24 * MIB && said.contains("over budget 'all'"), "{said}");
        let missing = millpond::engine::display_size(24 * MIB - left).to_string();
        assert!(said.contains(&missing), "{missing}: {said}");
        drop(held.1);
        assert!(
            second.alloc::<u8>(24 << 20, &other).is_ok(),
            "what the first device kept went"
        );
        assert!(budget.used() <= 48 * MIB);
    });
}
