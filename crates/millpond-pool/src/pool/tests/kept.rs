//! Tests of the number of small blocks that a thread caches, and of the return of blocks that it does not need.

use super::*;
use crate::pool::fast;
use crate::pool::heap::lock;

const BLOCKS: usize = 4000;

fn quiet() -> Pool {
    Pool::builder()
        .trim_every(None)
        .track(None)
        .host()
        .expect("addresses")
}

/// Returns sizes from 64 bytes to 64 KiB, with equally many in each octave.
fn sizes() -> impl Iterator<Item = usize> {
    (0..BLOCKS).map(|n| {
        let log = n * 7 % 10;
        (64 << log) + n * 131 % (64 << log)
    })
}

fn take_all(pool: &Pool) -> Vec<Raw> {
    sizes().map(|bytes| take(pool, bytes, 64, bytes as u8)).collect()
}

fn give_all(pool: &Pool, held: Vec<Raw>) {
    for raw in held {
        let seed = raw.requested as u8;
        give(pool, raw, seed);
    }
}

/// Returns the number of blocks on all shelves.
fn on_shelves(pool: &Pool) -> usize {
    let shelves = pool.heap().shelves.iter();
    shelves.map(|shelf| lock(shelf).blocks()).sum()
}

/// Returns the bytes of small and larger blocks that this thread caches.
fn kept(pool: &Pool) -> usize {
    loop {
        let bytes = fast::with(pool.heap(), |cache| cache.with(|stacks| stacks.bytes()));
        // A fork of another test may hold the cache for a moment.
        match bytes.expect("a cache") {
            Some(bytes) => return bytes,
            None => std::thread::yield_now(),
        }
    }
}

fn pass(pool: &Pool, ticks: usize) {
    for _ in 0..ticks {
        // The thread stays active with one size.
        let raw = alloc(pool, 64, 64).expect("room");
        free(pool, raw);
        pool.heap().pass_time();
    }
}

#[test]
fn a_thread_caches_as_many_blocks_as_it_has_used() {
    let pool = quiet();
    for _ in 0..3 {
        let held = take_all(&pool);
        give_all(&pool, held);
    }
    // A fork of another test may hold this cache for a moment. In that case a few blocks bypass the cache.
    let few = BLOCKS / 100;
    let before = on_shelves(&pool);
    let held = take_all(&pool);
    assert!(
        on_shelves(&pool) + few >= before,
        "nothing comes from the shelves any more"
    );
    let used: usize = held.iter().map(Raw::bytes).sum();
    give_all(&pool, held);
    assert!(on_shelves(&pool) <= before + few, "and nothing goes to them");
    assert!(kept(&pool) >= used / 10 * 9);
    // Other threads get the blocks when they need them.
    pool.trim();
    assert_eq!((kept(&pool), pool.stats().reserved.current), (0, 0));
}

#[test]
fn a_thread_that_only_frees_caches_few_blocks() {
    let pool = quiet();
    for _ in 0..3 {
        let held = take_all(&pool);
        let used: usize = held.iter().map(Raw::bytes).sum();
        let freed = std::thread::scope(|scope| {
            let frees = || {
                give_all(&pool, held);
                kept(&pool)
            };
            scope.spawn(frees).join().expect("no panic")
        });
        assert!(freed < used / 2, "kept {freed} of {used}");
    }
}

/// A thread that has large blocks in use does not cache more small blocks because of them.
#[test]
fn a_large_block_in_use_does_not_let_a_thread_cache_more_small_blocks() {
    let pool = quiet();
    let held = take_all(&pool);
    let used: usize = held.iter().map(Raw::bytes).sum();
    let freed = std::thread::scope(|scope| {
        let frees = || {
            let large = alloc(&pool, 1 << 30, 64).expect("addresses");
            give_all(&pool, held);
            let freed = kept(&pool);
            free(&pool, large);
            freed
        };
        scope.spawn(frees).join().expect("no panic")
    });
    assert!(freed < used / 2, "kept {freed} of {used}");
}

#[test]
fn blocks_that_a_busy_thread_does_not_need_return_to_the_shelves() {
    let pool = quiet();
    let mut kept_after = Vec::new();
    for _ in 0..2 {
        let held = take_all(&pool);
        give_all(&pool, held);
        let most = kept(&pool);
        // Every second check takes half of the blocks.
        pass(&pool, 200);
        let left = kept(&pool);
        // As many blocks are left as any thread may cache.
        assert!(left < most / 8, "kept {left} of {most}");
        kept_after.push(left);
    }
    assert!(kept_after[1] <= 2 * kept_after[0], "{kept_after:?}");
    pool.heap().check();
}

#[test]
fn blocks_that_were_set_aside_are_allocated_again() {
    let pool = quiet();
    let held = take_all(&pool);
    give_all(&pool, held);
    let most = kept(&pool);
    let before = on_shelves(&pool);
    // The first check only sets blocks aside and returns none to the shelves.
    pass(&pool, 8);
    assert_eq!(kept(&pool), most);
    let held = take_all(&pool);
    assert!(on_shelves(&pool) <= before);
    let mut addresses: Vec<usize> = held.iter().map(|raw| raw.taken.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), BLOCKS, "no block is there twice");
    give_all(&pool, held);
    pool.heap().check();
}

#[test]
fn spans_without_live_blocks_serve_other_sizes() {
    let (pool, bytes) = (quiet(), 16 << 20);
    let mut reserved = Vec::new();
    for size in [3000, 5000, 9000, 20_000] {
        let held: Vec<Raw> = (0..bytes / size).map(|_| take(&pool, size, 64, 7)).collect();
        reserved.push(pool.stats().reserved.current);
        held.into_iter().for_each(|raw| give(&pool, raw, 7));
    }
    // Each size needs little more than 16 MiB with its rounding. Four of them would be 64 MiB.
    assert!(*reserved.last().expect("four") < 40 << 20, "{reserved:?}");
}

/// Free memory that is too small for the requested blocks is returned to the system when the pool grows.
#[test]
fn a_pool_that_grows_returns_the_pages_between_its_blocks() {
    const MIB: usize = 1 << 20;
    let pool = Pool::builder().trim_every(None).of_a_program(None, true);
    let pool = pool.host().expect("addresses");
    let mut held: Vec<_> = (0..128).map(|seed| Some(take(&pool, MIB, 64, seed))).collect();
    for (seed, place) in held.iter_mut().enumerate().step_by(2) {
        give(&pool, place.take().expect("held so far"), seed as u8);
    }
    let before = pool.stats().reserved.current;
    assert!(before >= 128 * MIB as u64);
    let large: Vec<_> = (0..8)
        .map(|_| alloc(&pool, 4 * MIB, 64).expect("addresses"))
        .collect();
    let stats = pool.stats();
    assert!(
        stats.reserved.current < before,
        "{before} bytes grew to {}",
        stats.reserved.current
    );
    // The pages are used again by blocks that need them.
    let again: Vec<_> = (0..64).map(|seed| take(&pool, MIB, 64, seed)).collect();
    for (seed, raw) in again.into_iter().enumerate() {
        give(&pool, raw, seed as u8);
    }
    for (seed, raw) in held.into_iter().enumerate() {
        if let Some(raw) = raw {
            give(&pool, raw, seed as u8);
        }
    }
    large.into_iter().for_each(|raw| free(&pool, raw));
}
