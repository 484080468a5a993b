//! Tests how a pool handles unused memory, as shown by its statistics.

#[path = "upkeep/charges.rs"]
mod charges;
#[path = "upkeep/compaction.rs"]
mod compaction;
#[path = "oracle/dice.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod dice;

use millpond::engine::{ConfError, Counted, Source};
use millpond::{Buffer, Host, Pool, PoolBuilder, PoolError, Pools, pool::Prewarm, source::HugePages};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Returns a pool with small pages, so that its reserved memory follows the held memory closely.
fn fine() -> PoolBuilder {
    Pool::builder().huge_pages(HugePages::System)
}

fn quiet() -> Pool {
    fine().trim_every(None).host().expect("a pool")
}

#[test]
fn capacity_can_be_reserved_in_advance() {
    let pool = Pool::builder().capacity(16 * MIB).host().expect("a pool");
    assert!((16 * MIB..17 * MIB).contains(&pool.stats().reserved.current));
    pool.reserve(32 * MIB).expect("room");
    let stats = pool.stats();
    assert!(
        (32 * MIB..33 * MIB).contains(&stats.reserved.current),
        "{stats:?}"
    );
    assert_eq!((stats.allocations, stats.allocated.peak), (0, 0));
    // Reserving less than is reserved changes nothing.
    pool.reserve(MIB).expect("room");
    assert_eq!(pool.stats().reserved, stats.reserved);
    let held: Vec<Buffer<u8>> = (0..31)
        .map(|_| pool.alloc_zeroed(1 << 20).expect("room"))
        .collect();
    let after = pool.stats();
    assert_eq!((after.hits, after.reserved.peak), (31, stats.reserved.peak));
    drop(held);
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
    let small = Pool::builder().limit(8 * MIB).host().expect("a pool");
    assert!(
        small
            .reserve(9 * MIB)
            .is_err_and(|error| error.is_out_of_memory())
    );
    assert_eq!(
        small.alloc_zeroed::<u8>(8 << 20).expect("all of it").len(),
        8 << 20
    );
}

#[test]
fn prewarmed_blocks_call_no_source() {
    let pool = Pool::builder()
        .prewarm(Prewarm::small_sizes())
        .trim_every(None)
        .host()
        .expect("a pool");
    let held: Vec<Buffer<u8>> = (6..=16)
        .flat_map(|log| std::iter::repeat_n(1 << log, 16))
        .map(|bytes| pool.alloc_zeroed(bytes).expect("room"))
        .collect();
    assert_eq!(pool.stats().hits, held.len() as u64);
    pool.prewarm(&Prewarm::six_sizes(60 << 20).touched())
        .expect("room");
    let before = pool.stats();
    let six: Vec<Buffer<u8>> = (0..6)
        .flat_map(|step| std::iter::repeat_n(1024 << (2 * step), (10 << 20) >> (10 + 2 * step)))
        .map(|bytes| pool.alloc_zeroed(bytes).expect("room"))
        .collect();
    let after = pool.stats();
    assert_eq!(after.hits - before.hits, six.len() as u64);
    assert_eq!(after.reserved, before.reserved);
}

/// While the pool makes room, it takes back the free blocks that it has prepared.
#[test]
fn more_prewarmed_blocks_than_the_limit_allows_are_refused() {
    let pool = Pool::builder()
        .limit(16 << 20)
        .trim_every(None)
        .host()
        .expect("a pool");
    let refused = |count| pool.prewarm(&Prewarm::of([(64, count)])).expect_err("too many");
    assert!(refused(300_000).is_out_of_memory());
    refused(usize::MAX / 64);
    refused(usize::MAX);
    pool.prewarm(&Prewarm::of([(64, 200_000)])).expect("room");
    assert_eq!(pool.alloc_zeroed::<u8>(64).expect("room").len(), 64);
}

#[test]
fn a_pool_may_be_trimmed_never() {
    let never = Duration::MAX;
    let pool = Pool::builder().trim_every(Some(never)).host().expect("a pool");
    pool.set_trim_every(Some(never)).expect("a setting");
    pool.set_trim_every(Some(Duration::from_millis(1)))
        .expect("a setting");
    assert_eq!(pool.alloc_zeroed::<u8>(64).expect("room").len(), 64);
}

#[test]
fn clear_resets_the_statistics() {
    let pool = quiet();
    let kept = pool.alloc_zeroed::<u8>(100_000).expect("room");
    for _ in 0..10 {
        drop(pool.alloc_zeroed::<u8>(1 << 20).expect("room"));
    }
    pool.clear();
    let stats = pool.stats();
    assert_eq!(
        (stats.allocations, stats.frees, stats.hits, stats.refusals),
        (0, 0, 0, 0)
    );
    assert_eq!(stats.requested.peak, 100_000);
    assert_eq!(stats.hit_rate(), 0.0);
    drop(pool.alloc_zeroed::<u8>(1 << 20).expect("room"));
    drop(pool.alloc_zeroed::<u8>(1 << 20).expect("room"));
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.frees, stats.hits), (2, 2, 1));
    drop(kept);
}

#[test]
fn a_limit_below_the_used_bytes_is_reached_as_blocks_are_freed() {
    let pool = quiet();
    let mut held: Vec<Buffer<u8>> = (0..16)
        .map(|_| pool.alloc_zeroed(2 << 20).expect("room"))
        .collect();
    drop(pool.alloc_zeroed::<u8>(30 << 20).expect("room"));
    assert!(pool.stats().reserved.current >= 62 * MIB);
    pool.set_limit(8 * MIB);
    let reserved = pool.stats().reserved.current;
    assert!(
        (32 * MIB..33 * MIB).contains(&reserved),
        "what nobody used went: {reserved}"
    );
    assert!(
        pool.alloc_zeroed::<u8>(1 << 20)
            .is_err_and(|error| error.is_out_of_memory())
    );
    while held.pop().is_some() {
        let stats = pool.stats();
        assert!(
            stats.reserved.current <= (stats.allocated.current + MIB).max(8 * MIB),
            "{stats:?}"
        );
    }
    pool.alloc_zeroed::<u8>(8 << 20).expect("within the limit");
    pool.configure("limit:none").expect("known");
    assert_eq!(pool.limit(), None);
    pool.alloc_zeroed::<u8>(64 << 20).expect("no limit");
    let stats = pool.stats();
    assert!(
        stats.kept + stats.cached() >= 64 * MIB,
        "caches serve again: {stats:?}"
    );
}

#[test]
fn a_fraction_of_the_memory_can_be_the_limit() {
    let source = || {
        Box::new(
            Host::builder()
                .capacity(Some(100 * MIB))
                .build()
                .expect("a source"),
        )
    };
    let pool = Pool::builder()
        .memory_fraction(0.8)
        .over(source())
        .expect("a pool");
    assert_eq!(pool.limit(), Some(80 * MIB));
    pool.configure("memory-fraction:0.9").expect("known");
    assert_eq!(pool.limit(), Some(90 * MIB));
    pool.configure("limit:10MiB").expect("known");
    assert_eq!(pool.limit(), Some(10 * MIB));
    for bad in [0.0, -1.0, 1.5, f64::NAN] {
        let refused = Pool::builder().memory_fraction(bad).over(source());
        assert!(matches!(refused, Err(PoolError::Settings(_))), "{bad}");
    }
    let error = pool
        .configure("limit:1MiB,align:128")
        .expect_err("for life")
        .to_string();
    assert!(error.contains("when the pool is created"), "{error}");
    assert_eq!(pool.limit(), Some(10 * MIB), "nothing was changed");
}

#[test]
fn settings_that_a_policy_ignores_are_refused() {
    let pool = |policy: &str| Pool::builder().settings("").policy(policy);
    let is_unused = |error: &ConfError, key: &str| {
        let ConfError::Unused {
            key: told,
            policy,
            policies,
        } = error
        else {
            return false;
        };
        (told.as_str(), policy.as_str(), policies.as_str()) == (key, "bfc", "millpond and planned")
    };
    for key in ["cache-size", "decay", "low-water", "high-water", "handle"] {
        let text = format!("limit:8MiB,{key}:4194304");
        let refused = pool("bfc").settings(&text).host().expect_err(key);
        assert!(
            matches!(&refused, PoolError::Settings(error) if is_unused(error, key)),
            "{refused:?}"
        );
        assert!(pool("planned").settings(&text).host().is_ok(), "{key}");
    }
    let refused = pool("bfc").cache_size(1 << 20).host().expect_err("no such thing");
    assert!(
        matches!(&refused, PoolError::Settings(error) if is_unused(error, "cache-size")),
        "{refused:?}"
    );
    // Settings of the pool itself apply to every policy.
    let bfc = pool("bfc")
        .settings("memory-fraction:0.5,limit:64MiB,guard:off")
        .host();
    let bfc = bfc.expect("known");
    let error = bfc.configure("limit:1MiB,decay:3").expect_err("no such thing");
    assert!(is_unused(&error, "decay"), "{error:?}");
    assert_eq!(bfc.limit(), Some(64 * MIB), "nothing was changed");
    let set = Pools::with(pool("bfc"));
    let error = set.configure("limit:1MiB,decay:3").expect_err("no such thing");
    assert!(is_unused(&error, "decay"), "{error:?}");
    assert_eq!(set.host().expect("a pool").limit(), None, "nothing was changed");
}

#[test]
fn every_setting_in_text_has_a_setter() {
    let pool = fine()
        .settings("")
        .trim_every(None)
        .over(Box::new(
            Host::builder()
                .capacity(Some(100 * MIB))
                .build()
                .expect("a source"),
        ))
        .expect("a pool");
    pool.set_memory_fraction(0.5).expect("a share");
    assert_eq!(pool.limit(), Some(50 * MIB));
    for bad in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(pool.set_memory_fraction(bad).is_err(), "{bad}");
    }
    assert_eq!(pool.limit(), Some(50 * MIB), "nothing was changed");
    pool.set_zero_on_reuse(true);
    drop(pool.alloc::<u8>(1000).expect("room").fill(0xAA));
    let raw = pool.alloc_raw(1000, 64).expect("room");
    // SAFETY: the block is ours, and its bytes were written above or cleared since.
    let block = unsafe { raw.as_ref() };
    assert!(block.iter().all(|byte| *byte == 0), "it was cleared");
    // SAFETY: nothing uses it any more.
    unsafe { pool.free_raw(raw.cast()) }.expect("ours");
    pool.set_zero_on_reuse(false);
    // After some time, memory above the bound is freed, and memory below it stays.
    drop(pool.alloc_zeroed::<u8>(32 << 20).expect("room"));
    let before = pool.stats().reserved.current;
    pool.set_cache_size(8 * MIB).expect("a size");
    assert!(pool.set_trim_every(Some(Duration::ZERO)).is_err());
    let never = Pool::builder().trim_every(Some(Duration::ZERO)).host();
    assert!(
        matches!(never, Err(PoolError::Settings(_))),
        "an interval of zero"
    );
    assert_eq!(pool.stats().reserved.current, before, "no time has passed");
    pool.set_trim_every(Some(Duration::from_millis(5)))
        .expect("a time");
    let begun = Instant::now();
    while pool.stats().reserved.current > 9 * MIB {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", pool.stats());
        thread::sleep(Duration::from_millis(5));
    }
    pool.set_trim_every(None).expect("never");
    let none = Pool::builder()
        .settings("")
        .policy("pow2")
        .host()
        .expect("a pool");
    assert!(matches!(none.set_cache_size(1), Err(ConfError::Unused { .. })));
}

#[test]
fn holes_are_fragmentation_between_blocks() {
    let pool = fine().settings("").trim_every(None).host().expect("a pool");
    assert_eq!(pool.external_fragmentation(), 0.0, "nothing is free");
    pool.reserve(64 * MIB).expect("room");
    assert_eq!(pool.external_fragmentation(), 0.0, "all in one piece");
    let blocks: Vec<_> = (0..64)
        .map(|_| pool.alloc::<u8>(1 << 20).expect("room"))
        .collect();
    let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
    // There are 32 holes of one MiB. The largest is one in 32, or slightly more with the free memory at the end.
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    pool.collect_garbage();
    let holes = pool.external_fragmentation();
    assert!((0.9..0.97).contains(&holes), "{holes}");
    blocks.clear();
    pool.trim();
    assert_eq!(pool.external_fragmentation(), 0.0, "nothing is free");
}

#[test]
fn idle_memory_is_trimmed_in_the_background() {
    let pool = fine()
        .settings("decay:3")
        .trim_every(Some(Duration::from_millis(5)))
        .host()
        .expect("a pool");
    drop(pool.alloc_zeroed::<u8>(8 << 20).expect("room"));
    let small: Vec<Buffer<u8>> = (0..1000)
        .map(|_| pool.alloc_zeroed(1000).expect("room"))
        .collect();
    let kept = pool.alloc_from(&[7u8; 100_000]).expect("room");
    drop(small);
    assert!(pool.stats().reserved.current > 8 * MIB);
    let until = Instant::now() + Duration::from_secs(60);
    while pool.stats().reserved.current > MIB {
        assert!(Instant::now() < until, "{:?}", pool.stats());
        thread::sleep(Duration::from_millis(5));
    }
    assert!(kept.iter().all(|byte| *byte == 7));
}

#[test]
fn tenants_do_not_see_contents_of_each_other() {
    let pool = Pool::builder()
        .zero_on_reuse(true)
        .trim_every(None)
        .host()
        .expect("a pool");
    for bytes in [64, 5000, 100_000, 3 << 20, 40 << 20] {
        for _ in 0..3 {
            drop(pool.alloc::<u8>(bytes).expect("room").fill(0xAA));
            let raw = pool.alloc_raw(bytes, 64).expect("room");
            // SAFETY: the block is ours, and its bytes were cleared: that is what is tested.
            let block = unsafe { raw.as_ref() };
            assert!(block.iter().all(|byte| *byte == 0), "{bytes}");
            // SAFETY: nothing uses the block any more.
            unsafe { pool.free_raw(raw.cast()) }.expect("ours");
        }
    }
    pool.configure("zero-on-reuse:off").expect("known");
    drop(pool.alloc_zeroed::<u8>(1000).expect("room"));
}

#[test]
fn zeroed_blocks_are_zero_wherever_they_come_from() {
    let pool = quiet();
    let mut seed = 1u64;
    let mut held: Vec<Buffer<u8>> = Vec::new();
    for round in 0..2000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = 1 << ((seed >> 33) % 22);
        let bytes = bytes + (seed >> 40) as usize % bytes;
        let mut buffer = pool.alloc_zeroed::<u8>(bytes).expect("room");
        assert!(
            buffer.iter().all(|byte| *byte == 0),
            "round {round}: {bytes} bytes"
        );
        buffer.fill(0xFF);
        match seed >> 60 {
            0..6 => held.push(buffer),
            6..12 => {
                if !held.is_empty() {
                    held.swap_remove((seed >> 20) as usize % held.len());
                }
            }
            12 => pool.trim(),
            13 => pool.reserve(pool.stats().reserved.current + MIB).expect("room"),
            14 => drop(pool.compact()),
            _ => pool.collect_garbage(),
        }
    }
}

#[test]
fn alignment_holds_for_the_whole_pool() {
    let pool = Pool::builder().align(512).host().expect("a pool");
    for bytes in [1, 100, 1000, 70_000, 1 << 20] {
        let buffer = pool.alloc_zeroed::<u8>(bytes).expect("room");
        assert!(buffer.as_ptr().addr().is_multiple_of(512), "{bytes}");
        let layout = Layout::from_size_align(bytes, 8).expect("a layout");
        // There are several blocks, because the first of a size lies at the beginning of a span.
        let held: Vec<[NonNull<u8>; 2]> = (0..3)
            .map(|_| {
                let block = pool.allocate(layout).expect("room").cast();
                [block, pool.alloc_raw(bytes, 1).expect("room").cast()]
            })
            .collect();
        for [block, raw] in held {
            assert!(block.addr().get().is_multiple_of(512), "{bytes} by layout");
            assert!(raw.addr().get().is_multiple_of(512), "{bytes} by hand");
            // SAFETY: the block was allocated with this layout, and nothing uses it any more.
            unsafe { pool.deallocate(block, layout) };
            // SAFETY: nothing uses the block any more.
            unsafe { pool.free_raw(raw) }.expect("ours");
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.requested.current, stats.allocated.current), (0, 0));
    assert!(matches!(
        Pool::builder().align(48).host(),
        Err(PoolError::Settings(_))
    ));
}

#[test]
fn a_running_producer_and_consumer_do_not_call_the_source() {
    let source = Counted::new(Host::builder().page_bytes(64 << 10).build().expect("a source"));
    assert!(source.is_paged());
    let pool = Pool::builder()
        .trim_every(None)
        .over(Box::new(source))
        .expect("a pool");
    let run = |items: usize| {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Buffer<u8>>(64);
        thread::scope(|scope| {
            scope.spawn(move || receiver.into_iter().for_each(drop));
            let mut seed = 7u64;
            for _ in 0..items {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bytes = 1 << (10 + (seed >> 33) % 10);
                let buffer = pool.alloc_zeroed(bytes).expect("room");
                sender.send(buffer).expect("the consumer lives");
            }
            drop(sender);
        });
    };
    run(20_000);
    let before = pool.stats();
    run(20_000);
    let after = pool.stats();
    let missed = (after.allocations - before.allocations) - (after.hits - before.hits);
    assert!(missed <= 20, "{missed} of 20,000 called the source");
    assert_eq!(after.allocated.current, 0);
}
