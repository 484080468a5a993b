//! Tests the memory that a closed pool still uses after its last block is freed: only its shared part, which late handles
//! use, and nothing that grows with its use. There is one test because it counts the whole program's bytes.

#![cfg(target_os = "linux")]

use millpond::{Ledger, Pool, PoolBuilder, Tracking};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// The system's allocator, which counts the allocated bytes.
struct Counted;

static LIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: the system's allocator does the work, with the same arguments.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The pools that are made and closed before the measurement, followed by those that are measured.
const FIRST: usize = 8;
const POOLS: usize = 200;
/// The maximum number of bytes that one closed pool may use: its locks, its statistics, and the places of its shelves.
const MOST: i64 = 14 << 10;
/// The locks and the empty tables of a ledger that lasts for the pool's life.
const ACCOUNT: i64 = 12 << 10;

/// Runs `work` on a thread, and waits until the thread has ended and freed its resources.
fn on_another_thread(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
}

/// Uses a pool on two threads, and closes it while a third thread holds a block.
fn use_up(pool: Pool) {
    let kept = pool.alloc_zeroed::<u8>(3000).expect("room");
    for bytes in [64, 5000, 300_000] {
        drop(pool.alloc_zeroed::<u8>(bytes).expect("room"));
    }
    on_another_thread(|| drop(pool.alloc_zeroed::<u8>(64).expect("room")));
    let of = kept.pool().expect("a pool's");
    if let Some(ledger) = pool.ledger() {
        assert!(ledger.blocks() <= 1, "what was freed is in no account");
    }
    drop(pool);
    on_another_thread(|| drop(kept));
    let stats = of.stats();
    assert_eq!((stats.requested.current, stats.reserved.current), (0, 0));
    assert_eq!(stats.allocations, stats.frees, "its figures are still there");
}

/// Returns the bytes that each of many closed pools still uses.
fn left(make: impl Fn() -> PoolBuilder, first: impl Fn(&Pool)) -> i64 {
    let mut before = 0;
    for round in 0..FIRST + POOLS {
        if round == FIRST {
            before = LIVE.load(Ordering::Relaxed);
        }
        let pool = make().host().expect("a pool");
        first(&pool);
        use_up(pool);
    }
    (LIVE.load(Ordering::Relaxed) - before) / POOLS as i64
}

#[test]
fn a_closed_pool_leaves_little_behind() {
    let tracked = |tracking| move || Pool::builder().track(tracking);
    let nothing = |_: &Pool| {};
    let track = |pool: &Pool| {
        for _ in 0..3 {
            pool.track(Some(Ledger::builder(Tracking::All)));
        }
    };
    let by_hand = |pool: &Pool| {
        let block = pool.alloc_raw(100, 64).expect("room");
        // SAFETY: it was just handed out, and nothing uses it.
        unsafe { pool.free_raw(block.cast()) }.expect("ours");
    };
    let sampled = Some(Tracking::Sampled { one_in: 3 });
    let measured = [
        ("no account", left(tracked(None), nothing), MOST),
        (
            "an account of all blocks",
            left(tracked(Some(Tracking::All)), nothing),
            MOST,
        ),
        ("an account of some", left(tracked(sampled), nothing), MOST),
        ("one account after the other", left(tracked(None), track), MOST),
        ("blocks by hand", left(tracked(None), by_hand), MOST + ACCOUNT),
        (
            "guarded blocks",
            left(|| Pool::builder().guard(true), nothing),
            MOST + ACCOUNT,
        ),
    ];
    for (which, left, most) in measured {
        println!("{which}: {left} bytes left of each pool");
        assert!(left < most, "{which}: {left} bytes left of each pool");
    }
}
