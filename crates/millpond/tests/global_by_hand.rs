//! Calls the program's pool directly in a program with another allocator. Every block is this test's, so the statistics
//! are exact. There is one test because the pool belongs to the whole process.

#![cfg(target_os = "linux")]

use millpond::engine::{Logged, SourceEvent};
use millpond::{GlobalPool, Host, Pool};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

static ONE: GlobalPool = GlobalPool::new();
static OTHER: GlobalPool = GlobalPool::new();

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).expect("a layout")
}

#[test]
fn the_pool_is_made_once_and_counts_every_block() {
    // SAFETY: the function lives as long as the program and takes nothing.
    let registered = unsafe { libc::pthread_atfork(Some(look), None, None) };
    assert_eq!(registered, 0);
    many_threads_at_once_make_one_pool();
    nothing_changes_as_long_as_a_fork_is_under_way();
    in_a_cold_path_the_arena_serves_and_blocks_of_the_pool_wait();
}

/// The number of blocks that a thread has allocated and freed under the pool's lock.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
/// True if the thread allocated no block during a fork.
static STILL: AtomicBool = AtomicBool::new(false);

/// Runs before a fork. It was registered before the pool's own handler, so it is called after that one.
extern "C" fn look() {
    let before = ROUNDS.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    STILL.store(ROUNDS.load(Ordering::SeqCst) <= before + 1, Ordering::SeqCst);
}

fn nothing_changes_as_long_as_a_fork_is_under_way() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let large = layout(33 << 20);
            while !over.load(Ordering::Relaxed) {
                // SAFETY: the layout has a size other than 0.
                let block = unsafe { ONE.alloc(large) };
                // SAFETY: the block was allocated with this layout, and nothing uses it any more.
                unsafe { ONE.dealloc(block, large) };
                ROUNDS.fetch_add(1, Ordering::SeqCst);
            }
        });
        while ROUNDS.load(Ordering::SeqCst) < 10 {
            std::thread::yield_now();
        }
        // SAFETY: the child leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for the child that was just made; the status is a local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        let rounds = ROUNDS.load(Ordering::SeqCst);
        while ROUNDS.load(Ordering::SeqCst) < rounds + 10 {
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(status, 0);
    });
    assert!(STILL.load(Ordering::SeqCst), "the pool was in use at a fork");
}

fn many_threads_at_once_make_one_pool() {
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        for thread in 0..16usize {
            let (barrier, one) = (&barrier, if thread % 2 == 0 { &ONE } else { &OTHER });
            scope.spawn(move || {
                barrier.wait();
                for round in 1..200usize {
                    let mut shape = layout(round * 17 % 3000 + 1);
                    // SAFETY: the layout has a size other than 0.
                    let mut block = unsafe { one.alloc(shape) };
                    for more in [10, 500, 70_000, 1 << 20, 3] {
                        assert!(!block.is_null());
                        // SAFETY: this pool, to which both values refer, allocated the block with this layout. The new size is not 0.
                        block = unsafe { OTHER.realloc(block, shape, shape.size() + more) };
                        shape = layout(shape.size() + more);
                    }
                    // SAFETY: the block was allocated with this layout, and nothing uses it any more.
                    unsafe { ONE.dealloc(block, shape) };
                }
            });
        }
    });
    let (one, other) = (ONE.pool().expect("a pool"), OTHER.pool().expect("a pool"));
    assert!(std::ptr::eq(one, other));
    let stats = one.stats();
    assert_eq!(
        (stats.requested.current, stats.allocated.current),
        (0, 0),
        "{stats:?}"
    );
    assert_eq!(stats.allocations, stats.frees);
    assert!(stats.allocations > 16 * 199 * 3 && stats.requested.peak > 1 << 20);
    one.trim();
    assert_eq!(one.stats().reserved.current, 0);
    assert_eq!(ONE.metadata_bytes(), 0, "this program's allocator is another");
    assert!(ONE.configuration_error().is_none());
}

/// Returns a block that is filled with a stamp.
fn stamped(bytes: usize) -> usize {
    // SAFETY: the layout has a size other than 0.
    let block = unsafe { ONE.alloc(layout(bytes)) };
    assert!(!block.is_null());
    // SAFETY: the block has these bytes, and nothing else uses it.
    unsafe { block.write_bytes(bytes as u8, bytes) };
    block.expose_provenance()
}

/// Frees a block after checking its contents.
fn give(block: usize, bytes: usize) {
    let block: *mut u8 = std::ptr::with_exposed_provenance_mut(block);
    // SAFETY: `stamped` returned the block, and no other code writes to it.
    let held = unsafe { std::slice::from_raw_parts(block, bytes) };
    assert!(held.iter().all(|byte| *byte == bytes as u8));
    // SAFETY: the block was allocated with this layout, and nothing uses it any more.
    unsafe { ONE.dealloc(block, layout(bytes)) };
}

fn in_a_cold_path_the_arena_serves_and_blocks_of_the_pool_wait() {
    let own = ONE.pool().expect("a pool");
    let before = own.stats();
    // Some blocks come from the pool and some from the arena.
    let outer = Mutex::new(
        (1..40)
            .map(|n| (stamped(n * n * 100), n * n * 100))
            .collect::<Vec<_>>(),
    );
    let inner = std::sync::Arc::new(Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&inner);
    let log = move |_: &SourceEvent<'_>| {
        // The other pool's lock is held, so blocks that are freed here return to the pool when its cold path is over.
        let stats = own.stats();
        for _ in 0..3 {
            let Some((block, bytes)) = outer.lock().expect("no panic").pop() else {
                break;
            };
            if bytes % 200 == 0 {
                give(block, bytes);
            } else {
                let old = std::ptr::with_exposed_provenance_mut(block);
                // SAFETY: the block was allocated with this layout, and the new size is not 0.
                let new = unsafe { ONE.realloc(old, layout(bytes), bytes + 1) };
                assert_ne!(new, old);
                // SAFETY: the block has one more byte than was stamped.
                unsafe { *new.wrapping_add(bytes) = 0 };
                // SAFETY: these bytes were stamped and have not changed.
                let held = unsafe { std::slice::from_raw_parts_mut(new, bytes + 1) };
                assert!(held[..bytes].iter().all(|byte| *byte == bytes as u8));
                held.fill((bytes + 1) as u8);
                seen.lock()
                    .expect("no panic")
                    .push((new.expose_provenance(), bytes + 1));
            }
            seen.lock().expect("no panic").push((stamped(bytes), bytes));
        }
        assert_eq!(own.stats(), stats);
    };
    let host = Host::builder().page_bytes(64 << 10).build().expect("a source");
    let other = Pool::builder()
        .over(Box::new(Logged::new(host, log)))
        .expect("a pool");
    for _ in 0..10 {
        let held: Vec<_> = (1..30)
            .map(|n| other.alloc_zeroed::<u8>(n * 100_000).expect("room"))
            .collect();
        held.into_iter().for_each(drop);
        other.trim();
    }
    drop(other);
    let stats = own.stats();
    assert_eq!(stats.frees - before.frees, 39, "each block of the pool went back");
    assert_eq!(
        (stats.requested.current, stats.allocated.current),
        (0, 0),
        "{stats:?}"
    );
    assert!(ONE.metadata_bytes() > 0);
    let mut inner = inner.lock().expect("no panic");
    assert_eq!(inner.len(), 39 + 20);
    inner.drain(..).for_each(|(block, bytes)| give(block, bytes));
    assert_eq!(
        own.stats().frees,
        stats.frees,
        "the arena's blocks are none of the pool's"
    );
}
