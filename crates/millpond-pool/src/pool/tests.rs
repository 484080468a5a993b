//! Tests of the guarantees of pools.

use super::*;
use millpond_account::Event;
use millpond_account::EventKind;
use millpond_account::Tracking;
use millpond_account::WrongFree;
use millpond_engine::policies;
use proptest::prelude::*;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::mpsc;
use std::sync::{Barrier, Mutex};

mod kept;
mod sampled;

fn pool() -> Pool {
    Pool::host().expect("addresses")
}

/// A block that a test holds.
#[derive(Debug)]
struct Raw {
    taken: heap::RawBlock,
    requested: usize,
}

impl Raw {
    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.taken.address)
    }

    fn bytes(&self) -> usize {
        self.taken.bytes
    }
}

fn alloc(pool: &Pool, bytes: usize, align: usize) -> Result<Raw, AllocError> {
    let taken = pool.heap().allocate(bytes, align, false)?;
    Ok(Raw {
        taken,
        requested: bytes,
    })
}

fn free(pool: &Pool, raw: Raw) {
    pool.heap().free(raw.taken, raw.requested, 0);
}

/// Fills a block with a pattern.
fn fill(raw: &Raw, seed: u8) {
    // SAFETY: the block belongs to this test alone and has at least these bytes.
    unsafe { raw.pointer().write_bytes(seed, raw.bytes()) };
}

fn assert_filled(raw: &Raw, seed: u8) {
    // SAFETY: the block belongs to this test alone, has these bytes, and `fill` wrote all of them.
    let bytes = unsafe { std::slice::from_raw_parts(raw.pointer(), raw.bytes()) };
    assert!(bytes.iter().all(|b| *b == seed), "{raw:?}");
}

fn take(pool: &Pool, bytes: usize, align: usize, seed: u8) -> Raw {
    let raw = alloc(pool, bytes, align).expect("room");
    assert_eq!(raw.pointer() as usize % align.max(64), 0);
    assert!(raw.bytes() >= bytes);
    fill(&raw, seed);
    raw
}

fn give(pool: &Pool, raw: Raw, seed: u8) {
    assert_filled(&raw, seed);
    free(pool, raw);
}

#[test]
fn every_size_and_alignment_is_served() {
    let pool = pool();
    let mut held = Vec::new();
    for log in 0..24 {
        for align in [1, 64, 256, 4096, 1 << 16, 1 << 21] {
            for bytes in [(1usize << log) - 1, 1 << log, (1 << log) + 1] {
                let seed = held.len() as u8;
                held.push((take(&pool, bytes, align, seed), seed));
            }
        }
    }
    for (raw, seed) in held {
        give(&pool, raw, seed);
    }
    pool.heap().check();
    assert_eq!(pool.stats().allocated.current, 0);
}

#[test]
fn the_block_freed_last_is_reused_first() {
    let pool = pool();
    for bytes in [64, 1000, 30_000, 40_000, 1 << 20, 32 << 20] {
        let (one, two) = (take(&pool, bytes, 64, 1), take(&pool, bytes, 64, 2));
        let address = two.pointer();
        give(&pool, one, 1);
        give(&pool, two, 2);
        let again = alloc(&pool, bytes, 64).expect("room");
        assert_eq!(again.pointer(), address, "{bytes}");
        free(&pool, again);
    }
}

#[test]
fn impossible_requests_are_refused_with_a_reason() {
    let small = Pool::builder().limit(8 << 20).host().expect("a pool");
    assert!(matches!(
        alloc(&small, 16 << 20, 64),
        Err(AllocError::OutOfMemory(_))
    ));
    assert!(matches!(
        alloc(&small, usize::MAX, 64),
        Err(AllocError::TooLarge { .. })
    ));
    assert!(matches!(
        small.alloc_raw(64, 3),
        Err(AllocError::Alignment { .. })
    ));
    assert!(matches!(
        small.alloc_zeroed::<u64>(usize::MAX / 4),
        Err(AllocError::TooLarge { .. })
    ));
    assert!(small.alloc_zeroed::<u64>(100).is_ok());
    assert_eq!(small.stats().refusals, 2);
    let error = Pool::builder()
        .policy("best")
        .host()
        .expect_err("no such policy")
        .to_string();
    assert!(error.contains("millpond"), "{error}");
    assert!(Pool::builder().settings("slak:1").host().is_err());
}

#[test]
fn cached_blocks_are_reclaimed_when_memory_is_short() {
    let pool = Pool::builder().limit(8 << 20).host().expect("a pool");
    for bytes in [1 << 20, 2 << 20, 300_000, 20_000] {
        let held: Vec<Raw> = (0..3).map(|i| take(&pool, bytes, 64, i)).collect();
        for (seed, raw) in held.into_iter().enumerate() {
            give(&pool, raw, seed as u8);
        }
    }
    assert!(pool.stats().kept > 1 << 20);
    let all = take(&pool, 8 << 20, 64, 7);
    assert_eq!(pool.stats().kept, 0);
    give(&pool, all, 7);
}

#[test]
fn a_block_can_be_freed_by_its_layout() {
    let pool = pool();
    for bytes in [0, 1, 64, 1000, 32 << 10, 40_000, 3 << 20, 40 << 20] {
        for align in [1, 64, 4096, 1 << 16, 1 << 21] {
            let layout = Layout::from_size_align(bytes, align).expect("a layout");
            let block = pool.allocate(layout).expect("room");
            // SAFETY: it was just allocated for this request, and is not used any more.
            unsafe { pool.deallocate(block.cast(), layout) };
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.requested.current, stats.allocated.current), (0, 0));
    pool.heap().check();
}

#[test]
fn a_wrong_pointer_is_refused_with_the_reason() {
    let (one, two) = (pool(), pool());
    for bytes in [0, 100, 70_000, 40 << 20] {
        let block: NonNull<u8> = one.alloc_raw(bytes, 64).expect("room").cast();
        let inside = NonNull::new(block.as_ptr().wrapping_add(64)).expect("an address");
        // SAFETY: no pointer here is of a block in use, and wrong ones are refused.
        let free = |pool: &Pool, pointer| unsafe { pool.free_raw(pointer) };
        // SAFETY: the same.
        let free_sized = |bytes, align| unsafe { one.free_raw_sized(block, bytes, align) };
        let wrong = free(&two, block).expect_err("not its own");
        assert!(matches!(*wrong, WrongFree::Foreign { .. }));
        let wrong = free(&one, inside).expect_err("no start");
        assert!(matches!(*wrong, WrongFree::Foreign { .. }));
        let wrong = free_sized(bytes + 1, 64).expect_err("another size");
        assert!(matches!(*wrong, WrongFree::WrongSize { .. }));
        let wrong = free_sized(bytes, 128).expect_err("another alignment");
        assert!(matches!(*wrong, WrongFree::WrongAlign { .. }));
        free_sized(bytes, 64).expect("right at last");
        let twice = free(&one, block).expect_err("gone already");
        assert!(matches!(*twice, WrongFree::AlreadyFree { .. }), "{twice}");
    }
    assert_eq!(one.stats().allocated.current, 0);
    assert_eq!((one.stats().allocations, one.stats().frees), (4, 4));
}

#[test]
fn a_free_with_a_wrong_layout_leaves_the_block_allocated() {
    let pool = Pool::builder().track(Some(Tracking::All)).host().expect("a pool");
    let layout = Layout::from_size_align(100, 64).expect("a layout");
    let wrong = Layout::from_size_align(200, 64).expect("a layout");
    let block: NonNull<u8> = pool.allocate(layout).expect("room").cast();
    // SAFETY: the blocks are not used any more. The wrong layout and the second free are refused.
    let give = |block, layout| unsafe { pool.deallocate(block, layout) };
    give(block, wrong);
    assert_eq!(pool.stats().frees, 0);
    give(block, layout);
    give(block, layout);
    assert_eq!((pool.stats().frees, pool.stats().allocated.current), (1, 0));
    let again: NonNull<u8> = pool.allocate(layout).expect("room").cast();
    let other: NonNull<u8> = pool.allocate(layout).expect("room").cast();
    assert_ne!(again, other, "it was not taken back twice");
    give(again, layout);
    give(other, layout);
}

#[test]
fn subscribers_receive_the_events_of_a_pool() {
    let pool = Pool::builder()
        .track(None)
        .trim_every(None)
        .host()
        .expect("a pool");
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    pool.set_context(Some(millpond_account::Context::from(7u64)));
    let id = pool.subscribe(move |event: &Event<'_>| {
        assert_eq!(event.context.and_then(millpond_account::Context::number), Some(7));
        let what = (event.kind, event.requested, event.tag.name());
        log.lock().expect("no panic").push(what);
    });
    let _scope = millpond_account::tag("layer 1");
    for _ in 0..2 {
        drop(pool.alloc_zeroed::<u8>(1000).expect("room"));
    }
    drop(pool.alloc_zeroed::<u8>(40 << 20).expect("room"));
    pool.trim();
    pool.set_limit(0);
    pool.alloc_zeroed::<u8>(1 << 20).expect_err("no room");
    pool.unsubscribe(id);
    pool.set_limit(u64::MAX);
    drop(pool.alloc_zeroed::<u8>(1000).expect("room"));
    let told = told.lock().expect("no panic");
    let of = |kind| told.iter().filter(|told| told.0 == kind).collect::<Vec<_>>();
    let allocated = of(EventKind::Allocated);
    assert_eq!(
        allocated.iter().map(|told| told.1).collect::<Vec<_>>(),
        [1000, 1000, 40 << 20]
    );
    assert!(allocated.iter().all(|told| told.2 == "layer 1"));
    assert_eq!(of(EventKind::Freed).len(), 3);
    assert_eq!(of(EventKind::Refused).len(), 1);
    assert!(!of(EventKind::Refilled).is_empty() && !of(EventKind::Trimmed).is_empty());
}

#[test]
fn an_out_of_memory_error_lists_the_holders_of_memory() {
    let pool = Pool::builder()
        .limit(16 << 20)
        .track(Some(Tracking::All))
        .host()
        .expect("a pool");
    let held = {
        let _scope = millpond_account::tag("activations");
        pool.alloc_zeroed::<u8>(9 << 20).expect("room")
    };
    let weights = {
        let _scope = millpond_account::tag("weights");
        pool.alloc_zeroed::<u8>(3 << 20).expect("room")
    };
    let error = pool.alloc_zeroed::<u8>(8 << 20).expect_err("no room");
    let why = error.post_mortem().expect("memory is missing");
    let holders: Vec<(&str, u64)> = why
        .holders
        .named()
        .iter()
        .map(|holder| (holder.name.as_str(), holder.bytes))
        .collect();
    assert_eq!(
        holders,
        [("activations", 9 << 20), ("weights", 3 << 20)],
        "{error}"
    );
    let least = why.least.expect("known");
    assert_eq!((least.blocks, least.bytes), (1, 9 << 20), "{error}");
    let report = pool.leak_report().expect("an account").to_string();
    assert!(
        report.contains("activations") && report.contains("9.00 MiB"),
        "{report}"
    );
    drop((held, weights));
    assert!(pool.leak_report().is_some_and(|report| report.is_empty()));
}

#[test]
fn peaks_are_exact_with_one_thread() {
    let pool = pool();
    let held: Vec<_> = (1..100)
        .map(|i| pool.alloc_from(&vec![i as u8; i * 100]).expect("room"))
        .collect();
    let sum: u64 = (1..100).map(|i| i * 100).sum();
    drop(held);
    let kept = pool.alloc_zeroed::<u8>(10).expect("room");
    let stats = pool.stats();
    assert_eq!((stats.requested.peak, stats.requested.current), (sum, 10));
    assert!(stats.allocated.peak >= sum && stats.allocated.peak <= stats.reserved.peak);
    pool.reset_peak();
    assert_eq!(pool.stats().requested.peak, 10);
    drop(kept);
}

#[test]
fn trim_empties_the_caches_of_idle_threads_and_keeps_live_blocks() {
    let pool = pool();
    let (ready, go) = (Barrier::new(3), Barrier::new(3));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (pool, ready, go) = (&pool, &ready, &go);
            scope.spawn(move || {
                let raws: Vec<Raw> = (0..2000).map(|i| take(pool, 64 + i * 37, 64, seed)).collect();
                let kept = take(pool, 5000, 64, seed);
                raws.into_iter().for_each(|raw| give(pool, raw, seed));
                ready.wait();
                go.wait();
                give(pool, kept, seed);
            });
        }
        ready.wait();
        let before = pool.stats();
        pool.trim();
        let after = pool.stats();
        pool.heap().check();
        // The threads wait for this thread, so this comes before the assertions.
        go.wait();
        assert!(before.kept > 0);
        assert_eq!(after.kept, 0);
        // Each of the two live blocks keeps at most one page of the source.
        assert!(after.reserved.current <= 2 * (2 << 20), "{after:?}");
        assert!(before.reserved.current > 20 << 20, "{before:?}");
    });
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn a_thread_may_free_blocks_of_another_thread() {
    let pool = pool();
    let (to, from) = mpsc::sync_channel::<(Raw, u8)>(64);
    std::thread::scope(|scope| {
        let pool = &pool;
        let one = scope.spawn(move || {
            for i in 0..20_000usize {
                to.send((take(pool, 1 + i * 7919 % 50_000, 64, i as u8), i as u8))
                    .expect("open");
            }
        });
        let two = scope.spawn(move || {
            for (raw, seed) in from {
                give(pool, raw, seed);
            }
        });
        for thread in [one, two] {
            thread.join().expect("no panic");
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.frees), (20_000, 20_000));
    assert_eq!(
        (stats.allocated.current, stats.kept),
        (0, 0),
        "both threads have ended"
    );
    assert!(
        stats.reserved.peak < 64 << 20,
        "it came back to be used again: {stats:?}"
    );
    pool.heap().check();
}

#[test]
fn a_buffer_may_outlive_its_pool() {
    let pool = pool();
    let heap = pool.heap();
    let buffer = pool.alloc_from(&[1u32, 2, 3]).expect("room");
    let large = pool.alloc_from(&vec![7u8; 1 << 20]).expect("room");
    drop(pool);
    assert!(heap.is_closed());
    assert_eq!((&buffer[..], large[1 << 19]), (&[1, 2, 3][..], 7));
    std::thread::spawn(move || drop(large)).join().expect("no panic");
    assert!(heap.stats().reserved.current > 0);
    buffer.free();
    assert_eq!(
        heap.stats().reserved.current,
        0,
        "the memory went with the last block"
    );
}

#[test]
fn memory_is_returned_if_the_last_block_and_the_last_handle_are_dropped_at_once() {
    for _ in 0..200 {
        let pool = pool();
        let heap = pool.heap();
        let thread = std::thread::spawn({
            let pool = pool.clone();
            move || {
                let buffers: Vec<_> = (1..40)
                    .map(|i| pool.alloc_from(&vec![1u8; i * 3000]).expect("room"))
                    .collect();
                drop(pool);
                drop(buffers);
            }
        });
        drop(pool);
        thread.join().expect("no panic");
        assert_eq!(heap.stats().reserved.current, 0);
    }
}

#[test]
fn blocks_are_disjoint_and_aligned_under_every_policy() {
    for name in policies::names() {
        let pool = Pool::builder()
            .policy(name)
            .limit(1 << 30)
            .host()
            .expect("a pool");
        let mut held = Vec::new();
        for round in 0..60usize {
            for align in [64, 4096] {
                let bytes = 1 + round * 7919 % 90_000;
                held.extend(
                    alloc(&pool, bytes, align)
                        .ok()
                        .map(|raw| (raw, align, round as u8)),
                );
            }
            if round % 3 == 0 {
                let (raw, ..) = held.swap_remove(held.len() / 2);
                free(&pool, raw);
            }
        }
        assert!(!held.is_empty(), "{name} serves nothing");
        held.iter().for_each(|(raw, _, seed)| fill(raw, *seed));
        for (raw, align, seed) in held {
            assert_eq!(raw.pointer() as usize % align, 0, "{name}");
            give(&pool, raw, seed);
        }
    }
}

#[test]
fn threads_that_end_leave_no_cached_blocks() {
    let pool = pool();
    for round in 0..50u8 {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let raws: Vec<Raw> = (1..100).map(|i| take(&pool, i * 100, 64, round)).collect();
                raws.into_iter().for_each(|raw| give(&pool, raw, round));
            });
            // A scope does not wait for the destructors of a thread's locals.
            thread.join().expect("no panic");
        });
    }
    let stats = pool.stats();
    assert_eq!(
        (stats.allocations, stats.frees, stats.kept),
        (50 * 99, 50 * 99, 0)
    );
    assert!(stats.reserved.peak < 16 << 20, "{stats:?}");
}

#[test]
fn a_child_of_a_fork_can_use_a_pool_that_other_threads_were_using() {
    let pool = pool();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2u8 {
            let (pool, over) = (&pool, &over);
            scope.spawn(move || {
                let mut round = 0usize;
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let raws: Vec<Raw> = (0..40)
                        .map(|i| take(pool, 1 + i * round % 70_000, 64, seed))
                        .collect();
                    raws.into_iter().for_each(|raw| give(pool, raw, seed));
                    round += 1;
                }
            });
        }
        let mut ends = Vec::new();
        for _ in 0..30 {
            // SAFETY: the child uses only the pool and functions that are safe after the fork of a process with several threads, and
            // ends with `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // The alarm ends a child that hangs, so that the test sees it.
                // SAFETY: the function takes a number.
                unsafe { libc::alarm(10) };
                for bytes in [64, 5000, 100_000, 3 << 20] {
                    let raw = take(&pool, bytes, 64, 3);
                    give(&pool, raw, 3);
                }
                pool.trim();
                let fine = pool.stats().kept == 0;
                // SAFETY: the function ends the child at once.
                unsafe { libc::_exit(if fine { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: this waits for the child that was just created. The status is a local variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            ends.push(status);
            if status != 0 {
                break;
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(ends.iter().all(|end| *end == 0), "a child was ended: {ends:?}");
    });
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, u32),
    Give(usize),
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1usize..2000, 1usize..70_000, 1usize..4_000_000];
    let step = prop_oneof![
        6 => (size, 0u32..14).prop_map(|(bytes, log)| Step::Take(bytes, log)),
        5 => any::<usize>().prop_map(Step::Give),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..200)
}

/// Runs the steps on a pool, and checks that the contents of the blocks stay intact.
fn run(pool: &Pool, steps: &[Step], thread: u8) {
    let mut held: Vec<(Raw, u8)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Take(bytes, log) => {
                let seed = thread.wrapping_mul(64).wrapping_add(at as u8);
                if held.len() < 64 {
                    held.push((take(pool, *bytes, 1 << log, seed), seed));
                }
            }
            Step::Give(which) if !held.is_empty() => {
                let (raw, seed) = held.swap_remove(which % held.len());
                give(pool, raw, seed);
            }
            Step::Give(_) => {}
            Step::Trim => pool.trim(),
        }
    }
    for (raw, seed) in held {
        give(pool, raw, seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_programs_in_several_threads(programs in prop::collection::vec(steps(), 1..4)) {
        let pool = pool();
        std::thread::scope(|scope| {
            let threads: Vec<_> = programs
                .iter()
                .enumerate()
                .map(|(thread, steps)| {
                    let pool = &pool;
                    scope.spawn(move || run(pool, steps, thread as u8))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
        pool.heap().check();
        let stats = pool.stats();
        prop_assert_eq!((stats.requested.current, stats.allocated.current, stats.kept), (0, 0, 0));
        prop_assert_eq!(stats.allocations, stats.frees);
        pool.trim();
        prop_assert_eq!(pool.stats().reserved.current, 0);
    }
}

#[test]
fn every_lock_of_a_pool_is_held_during_a_fork() {
    let pool = Pool::builder().guard(true).host().expect("a pool");
    let heap = pool.heap();
    let rest = heap.rest();
    let mut free: Vec<&str> = Vec::new();
    let mut look = |name, is_free: bool| free.extend(is_free.then_some(name));
    look("roll", heap.registry.try_lock().is_some());
    for shelf in &heap.shelves {
        look("shelf", shelf.try_lock().is_some());
    }
    look("core", heap.core.try_lock().is_some());
    look("watchers", heap.watchers.try_lock().is_some());
    look("retain", heap.retain.try_lock().is_some());
    look("charges", heap.charges.try_lock().is_some());
    look("forgotten", heap.forgotten.try_lock().is_some());
    look("ledgers", heap.ledgers.try_lock().is_some());
    look("line", heap.line.is_free());
    look("guard", heap.guard.as_ref().expect("it guards").is_free());
    drop(rest);
    assert!(free.is_empty(), "{free:?}");
    assert!(heap.ledgers.try_lock().is_some() && heap.line.is_free());
}

#[test]
fn no_ledger_is_created_during_a_fork() {
    let pool = pool();
    let heap = pool.heap();
    let rest = heap.rest();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| heap.hands().blocks());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let made = heap.hands.get().is_some();
        drop(rest);
        assert_eq!(asks.join().ok(), Some(0));
        assert!(!made && heap.hands.get().is_some());
    });
}

#[test]
fn a_request_above_the_limit_does_not_wait() {
    let pool = Pool::builder().limit(16 << 20).host().expect("a pool");
    let patient = pool.waiting(Duration::from_secs(1 << 20));
    let error = patient.alloc_zeroed::<u8>(17 << 20).expect_err("above the limit");
    assert!(error.is_out_of_memory(), "{error}");
}
