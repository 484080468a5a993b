//! Limits of scopes: the counted blocks, frees by other threads, concurrent threads, and errors.

#![cfg(target_os = "linux")]

mod support;

use millpond::limits::{Exceeded, Limits, LimitsError, LimitsExceeded, Usage};
use millpond::{Buffer, Pool, Tag, Tracking};
use std::sync::{Barrier, mpsc};
use std::thread;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn pool(name: &str) -> Pool {
    Pool::builder().name(name).host().expect("addresses")
}

fn block(pool: &Pool, bytes: usize) -> Buffer<u8> {
    pool.alloc_zeroed(bytes).expect("room")
}

fn tagged(pool: &Pool, tag: &str, bytes: usize) -> Buffer<u8> {
    let _scope = millpond::tag(tag);
    block(pool, bytes)
}

fn exceeded(error: LimitsError) -> LimitsExceeded {
    match error {
        LimitsError::Exceeded(exceeded) => *exceeded,
        other => panic!("{other}"),
    }
}

/// Returns peak, total, allocations, temporary allocations, and bytes that are live at the end.
fn figures(usage: &Usage) -> (u64, u64, u64, u64, u64) {
    (
        usage.peak,
        usage.total,
        usage.allocations,
        usage.temporary,
        usage.leaked.bytes,
    )
}

#[test]
fn figures_are_exact_and_may_reach_their_limits() {
    let pool = pool("exact");
    let mut kept = None;
    let work = |kept: &mut Option<Buffer<u8>>| {
        let first = block(&pool, MIB);
        drop(block(&pool, 64 * KIB));
        drop(first);
        *kept = Some(tagged(&pool, "kept", 4 * KIB));
    };
    let (peak, total, leaked) = ((MIB + 64 * KIB) as u64, (MIB + 68 * KIB) as u64, 4 * KIB as u64);
    let limits = Limits::new()
        .peak(peak)
        .total(total)
        .leaked(leaked)
        .allocations(3)
        .temporary(1);
    let measured = limits.check(|| work(&mut kept)).expect("at its limits");
    assert_eq!(figures(&measured.runs[0]), (peak, total, 3, 1, leaked));
    for (limits, expected) in [
        (
            Limits::new().peak(peak - 1),
            Exceeded::Peak {
                limit: peak - 1,
                measured: peak,
            },
        ),
        (
            Limits::new().total(total - 1),
            Exceeded::Total {
                limit: total - 1,
                measured: total,
            },
        ),
        (
            Limits::new().leaked(leaked - 1),
            Exceeded::Leaked {
                limit: leaked - 1,
                measured: leaked,
            },
        ),
        (
            Limits::new().leaked_at_one_place(leaked - 1),
            Exceeded::LeakedAtOnePlace {
                limit: leaked - 1,
                measured: leaked,
            },
        ),
        (
            Limits::new().allocations(2),
            Exceeded::Allocations {
                limit: 2,
                measured: 3,
            },
        ),
        (
            Limits::new().temporary(0),
            Exceeded::Temporary {
                limit: 0,
                measured: 1,
            },
        ),
    ] {
        let error = limits.check(|| work(&mut kept)).expect_err("one less");
        assert_eq!(exceeded(error).exceeded, [expected]);
    }
}

/// Runs the body in a process without other tests. Returns the child's output in the parent.
fn in_a_process_of_its_own(test: &str, body: impl FnOnce()) -> Option<String> {
    const CHILD: &str = "MILLPOND_TEST_OF_LIMITS";
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    let here = std::env::current_exe().expect("a program");
    let mut command = std::process::Command::new(here);
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
    let output = support::child::ends(&mut command).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    Some(text)
}

/// Each of many threads has figures of its own in a shared pool.
#[test]
fn concurrent_scopes_do_not_affect_each_other() {
    const THREADS: usize = 16;
    let pool = pool("shared");
    let start = Barrier::new(THREADS);
    thread::scope(|threads| {
        for at in 0..THREADS {
            let (pool, start) = (&pool, &start);
            threads.spawn(move || {
                let bytes = (at + 1) * 64 * KIB;
                let limits = Limits::new()
                    .peak(2 * bytes as u64)
                    .leaked(0)
                    .allocations(2)
                    .temporary(1)
                    .runs(50);
                start.wait();
                let measured = limits
                    .check(|| {
                        let _one = block(pool, bytes);
                        thread::yield_now();
                        let _other = block(pool, bytes);
                    })
                    .expect("its own figures");
                for usage in &measured.runs {
                    let both = 2 * bytes as u64;
                    assert_eq!(figures(usage), (both, both, 2, 1, 0));
                }
            });
        }
    });
}

#[test]
fn threads_that_join_count_and_others_do_not() {
    let pool = pool("joined");
    let scope = Limits::new().peak("3 MiB").enter().expect("a scope");
    let handle = scope.handle();
    let held = block(&pool, MIB);
    thread::scope(|threads| {
        threads.spawn(|| drop(block(&pool, 32 * MIB)));
        threads.spawn(|| {
            let joined = handle.join();
            let theirs = block(&pool, 2 * MIB);
            drop(joined);
            drop(block(&pool, 16 * MIB));
            drop(theirs);
        });
    });
    drop(held);
    // The next operation of this thread was the free of its own block. The operations of other threads do not change that.
    let usage = scope.end().expect("three at once");
    assert_eq!(figures(&usage), (3 * MIB as u64, 3 * MIB as u64, 2, 1, 0));

    // A thread that is still joined to an ended scope counts for no scope.
    let joined = handle.join();
    let late = Limits::new().enter().expect("a scope");
    drop(joined);
    drop(block(&pool, MIB));
    assert_eq!(late.end().expect("no limits").allocations, 0, "left out of turn");
}

#[test]
fn blocks_that_other_threads_free_are_subtracted() {
    let pool = pool("strangers");
    let (give, take) = mpsc::channel::<Buffer<u8>>();
    let (done, freed) = mpsc::channel();
    let stranger = thread::spawn(move || {
        for buffer in take {
            drop(buffer);
            done.send(()).expect("somebody waits");
        }
    });
    let scope = Limits::new().peak("1 MiB").leaked(0).enter().expect("a scope");
    for _ in 0..10 {
        give.send(block(&pool, MIB)).expect("a thread");
        freed.recv().expect("a thread");
    }
    let usage = scope.end().expect("never two at once");
    assert_eq!(figures(&usage), (MIB as u64, 10 * MIB as u64, 10, 0, 0));
    drop(give);
    stranger.join().expect("no panic");
}

#[test]
fn an_inner_scope_counts_for_the_outer_one_even_after_it_has_ended() {
    let pool = pool("nested");
    let outer = Limits::new().enter().expect("a scope");
    let before = block(&pool, 4 * KIB);
    let inner = Limits::new().leaked("1 MiB").enter().expect("a scope");
    drop(before);
    let left = tagged(&pool, "left", MIB);
    let usage = inner.end().expect("at its limit");
    assert_eq!(figures(&usage), (MIB as u64, MIB as u64, 1, 0, MIB as u64));
    // The record of its outer scope lives as long as the block.
    drop(left);
    let more = block(&pool, 2 * MIB);
    let usage = outer.end().expect("no limits");
    let total = (3 * MIB + 4 * KIB) as u64;
    assert_eq!(figures(&usage), (2 * MIB as u64, total, 3, 0, 2 * MIB as u64));
    drop(more);
}

#[test]
fn an_outer_scope_reports_leaks_of_inner_scopes() {
    let pool = pool("left");
    let mut held = Vec::new();
    let outer = Limits::new().leaked(0).enter().expect("a scope");
    for depth in 0..3 {
        let inner = Limits::new().enter().expect("a scope");
        let innermost = Limits::new().enter().expect("a scope");
        held.push(tagged(&pool, &format!("depth {depth}"), MIB));
        innermost.end().expect("no limits");
        inner.end().expect("no limits");
    }
    let error = exceeded(outer.end().expect_err("three blocks"));
    let mut tags: Vec<&str> = error
        .usage
        .leaked
        .groups
        .iter()
        .map(|group| group.tag.name())
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, ["depth 0", "depth 1", "depth 2"]);
}

/// There is room for many scopes one after the other, whatever blocks they leave, and for a thousand at once.
#[test]
fn scopes_that_have_ended_use_no_memory() {
    let pool = pool("many");
    let mut left = Vec::new();
    for _ in 0..3000 {
        let outer = Limits::new().enter().expect("room");
        let inner = Limits::new().enter().expect("room");
        left.push(block(&pool, 64));
        inner.end().expect("no limits");
        outer.end().expect("no limits");
    }
    drop(left);
}

#[test]
fn warm_up_runs_do_not_count_and_their_leaks_are_reported() {
    let pool = pool("warm");
    let mut cache: Vec<Buffer<u8>> = Vec::new();
    let limits = Limits::new()
        .peak("64 KiB")
        .leaked(0)
        .allocations(1)
        .warm_up(2)
        .runs(3);
    let measured = limits
        .check(|| {
            if cache.len() < 2 {
                cache.push(tagged(&pool, "cache", MIB));
            }
            drop(block(&pool, 64 * KIB));
        })
        .expect("the caches are full");
    assert_eq!(measured.runs.len(), 3);
    let warm_up = measured.warm_up.expect("two runs");
    assert_eq!((warm_up.bytes, warm_up.blocks), (2 * MIB as u64, 2));

    let cold = Limits::new().leaked(0).warm_up(1).runs(2);
    let mut grows = Vec::new();
    let error = cold.check(|| grows.push(tagged(&pool, "grows", MIB)));
    let text = error.expect_err("one more each time").to_string();
    assert!(text.contains("in run 1 of 2"), "{text}");
    assert!(
        text.contains("after the warm-up, which does not count: 1.00 MiB live in 1 block"),
        "{text}"
    );
}

#[test]
fn a_failure_names_the_holders_of_memory() {
    let pool = pool("told");
    let limits = Limits::new().peak("2 MiB").leaked(0).allocations(3).temporary(0);
    let mut kept = None;
    let error = limits.check(|| {
        let weights = tagged(&pool, "weights", 2 * MIB);
        let more = tagged(&pool, "activations", MIB);
        drop(weights);
        drop(more);
        kept = Some(tagged(&pool, "forgotten", 4 * KIB));
        drop(tagged(&pool, "scratch", KIB));
    });
    let text = error.expect_err("too much of everything").to_string();
    // Removes the stacks.
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("            "))
        .collect();
    let thread = format!("thread {}", millpond::event::thread_number());
    // Removes the age of the block.
    let mut shown = lines.join("\n");
    if let (Some(from), Some(to)) = (shown.find(", age "), shown.find(&format!(", {thread}\nmost"))) {
        shown.replace_range(from..to, "");
    }
    let expected = [
        "memory limits are exceeded",
        "  peak: 3.00 MiB, and the limit is 2.00 MiB",
        "  leaked: 4.00 KiB, and the limit is 0 B",
        "  allocations: 4, and the limit is 3",
        "  temporary: 1, and the limit is 0",
        "at the peak: 3.00 MiB live in 2 blocks",
        &format!(" 2.00 MiB in 1 block: weights, {thread}"),
        &format!(" 1.00 MiB in 1 block: activations, {thread}"),
        "at the end: 4.00 KiB live in 1 block",
        &format!(" 4.00 KiB in 1 block: forgotten, {thread}"),
        "most allocations:",
        "  2.00 MiB of 1 allocation, 0 temporary: weights",
        "  1.00 MiB of 1 allocation, 0 temporary: activations",
        "  4.00 KiB of 1 allocation, 0 temporary: forgotten",
        "  1.00 KiB of 1 allocation, 1 temporary: scratch",
        "most temporary blocks:",
        "  1.00 KiB of 1 allocation, 1 temporary: scratch",
    ]
    .map(str::to_owned)
    .join("\n");
    assert_eq!(shown, expected);
    #[cfg(feature = "stacks")]
    assert!(text.contains("tests/scope_limits.rs:"), "{text}");
}

#[test]
fn only_named_pools_count_and_what_is_ignored_does_not() {
    let (counted, other) = (pool("counted"), pool("other"));
    let cache = Tag::new("ignored cache");
    let scope = Limits::new()
        .pool(&counted)
        .leaked(0)
        .ignore(move |group| group.tag == cache)
        .enter()
        .expect("a scope");
    let held = (
        tagged(&other, "elsewhere", MIB),
        tagged(&counted, "ignored cache", 2 * MIB),
    );
    let usage = scope.end().expect("nothing that counts");
    assert_eq!((usage.allocations, usage.peak), (1, 2 * MIB as u64));
    drop(held);
}

/// With a sample of the blocks, the measured bytes would be too small.
#[test]
fn a_sampled_ledger_is_refused() {
    let sampled = Pool::builder()
        .name("sampled")
        .track(Some(Tracking::Sampled { one_in: 100 }))
        .host()
        .expect("addresses");
    let error = Limits::new().pool(&sampled).enter().expect_err("no figures");
    assert!(
        matches!(&error, LimitsError::Sampled { pools } if pools == &["sampled"]),
        "{error}"
    );
    // The same holds if sampling begins during the scope.
    let pool = pool("to be sampled");
    let scope = Limits::new().pool(&pool).enter().expect("all blocks");
    pool.track(Some(millpond::Ledger::builder(Tracking::Sampled { one_in: 7 })));
    assert!(matches!(scope.end(), Err(LimitsError::Sampled { .. })));
}

/// A pool without a ledger has one as long as there is a scope, also if the pool is made in it.
#[test]
fn pools_without_a_ledger_have_one_during_a_scope() {
    in_a_process_of_its_own("pools_without_a_ledger_have_one_during_a_scope", || {
        let without = || Pool::builder().track(None).host().expect("addresses");
        let pool = without();
        let old = block(&pool, MIB);
        let limits = Limits::new().leaked(0).allocations(2);
        for _ in 0..3 {
            assert!(pool.ledger().is_none());
            let usage = limits
                .check(|| {
                    drop(block(&pool, 4 * KIB));
                    let made = without();
                    drop(block(&made, 8 * KIB));
                })
                .expect("nothing is kept")
                .runs
                .remove(0);
            assert_eq!(figures(&usage), (8 * KIB as u64, 12 * KIB as u64, 2, 2, 0));
        }
        // A leak check relies on the ledger.
        let scope = limits.enter().expect("a scope");
        let check = pool.leak_check();
        let kept = block(&pool, KIB);
        assert!(scope.end().is_err());
        assert!(pool.ledger().is_some());
        drop(kept);
        assert!(check.finish().is_empty());
        drop(old);
    });
}

/// The second of two ends reports on standard error when it is dropped. During a panic it reports nothing.
#[test]
fn a_dropped_scope_reports_the_exceeded_limits() {
    const NAME: &str = "a_dropped_scope_reports_the_exceeded_limits";
    let text = in_a_process_of_its_own(NAME, || {
        let pool = pool("dropped");
        let scope = Limits::new().allocations(0).enter().expect("a scope");
        drop(block(&pool, 64));
        drop(scope);
        let panicked = std::panic::catch_unwind(|| {
            let _scope = Limits::new().total(0).enter();
            drop(block(&pool, 64));
            panic!("of its own");
        });
        assert!(panicked.is_err());
    });
    if let Some(text) = text {
        assert!(text.contains("allocations: 1, and the limit is 0"), "{text}");
        assert!(!text.contains("total:"), "{text}");
    }
}

#[test]
fn work_that_fails_is_not_checked_and_prints_nothing() {
    const NAME: &str = "work_that_fails_is_not_checked_and_prints_nothing";
    let text = in_a_process_of_its_own(NAME, || {
        let pool = pool("failing");
        for warm_up in [0, 1] {
            let limits = Limits::new().allocations(0).warm_up(warm_up);
            let failed = limits.assert_ok(|| {
                drop(block(&pool, 64));
                Err::<(), _>("of its own")
            });
            assert_eq!(failed, Err("of its own"));
        }
    });
    if let Some(text) = text {
        assert!(!text.contains("allocations:"), "{text}");
    }
}

#[test]
fn a_negative_limit_is_an_error() {
    let error = Limits::new().peak(-1).check(|| ()).expect_err("no size");
    assert!(error.to_string().contains("'-1' is not a size"), "{error}");
}

#[cfg(feature = "cuda")]
mod devices {
    use super::*;
    use millpond::cuda::{CudaDevice, CudaStream, DevicePool};
    use support::emulator;

    #[test]
    fn pools_of_devices_count_as_well() {
        if !emulator::load() {
            return;
        }
        let device = CudaDevice::get(0).expect("a device");
        let stream = CudaStream::new(&device).expect("a stream");
        let pool = DevicePool::builder().name("card").build(&device).expect("a pool");
        let host = pool_of_host();
        let limits = Limits::new().peak("6 MiB").leaked(0);
        let work = |bytes| {
            let _scope = millpond::tag("on the device");
            let on_device = pool.alloc::<u8>(bytes, &stream).expect("fits");
            let on_host = block(&host, 2 * MIB);
            drop(on_device);
            drop(on_host);
        };
        let measured = limits.check(|| work(4 * MIB)).expect("at its limit");
        assert_eq!(measured.runs[0].peak, 6 * MIB as u64);
        let text = limits.check(|| work(8 * MIB)).expect_err("too much").to_string();
        assert!(
            text.contains("peak: 10.0 MiB, and the limit is 6.00 MiB"),
            "{text}"
        );
        assert!(text.contains("8.00 MiB in 1 block: on the device"), "{text}");

        let mut kept = None;
        let named = Limits::new().device_pool(&pool).leaked(0);
        let error = named.check(|| {
            kept = Some((pool.alloc::<u8>(MIB, &stream).expect("fits"), block(&host, MIB)));
        });
        let error = exceeded(error.expect_err("held"));
        assert_eq!(
            (error.usage.leaked.bytes, error.usage.allocations),
            (MIB as u64, 1)
        );
        // Another thread frees the block.
        thread::spawn(move || drop(kept)).join().expect("no panic");
    }

    fn pool_of_host() -> Pool {
        pool("beside a card")
    }
}
