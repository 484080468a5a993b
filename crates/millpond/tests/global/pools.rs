//! Other pools in a program whose allocator is a pool.

use crate::{POOL, Stamped, child, stats};
use millpond::engine::{Logged, SourceEvent};
use millpond::{
    AllocError, Buffer, Device, Event, Host, MemoryKind, Pool, PoolError, Pools, Tracking, pools,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn churn(pool: &Pool, rounds: usize) {
    let mut held: Vec<Buffer<u8>> = Vec::new();
    for round in 0..rounds {
        held.push(pool.alloc_zeroed(1 + round * 7919 % 200_000).expect("room"));
        if held.len() > 60 {
            held.swap_remove(round * 31 % 60);
        }
    }
}

#[test]
fn another_pool_keeps_its_tables_outside_the_programs_pool() {
    let metadata = POOL.metadata_bytes();
    let pool = Pool::host().expect("a pool");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    churn(&pool, 500);
                    pool.trim();
                    assert!(stats().allocations > pool.stats().frees / 1_000_000);
                }
            });
        }
    });
    let own = pool.stats();
    assert_eq!((own.allocations, own.requested.current), (20_000, 0));
    pool.compact();
    assert_eq!(pool.stats().reserved.current, 0);
    drop(pool);
    assert!(POOL.metadata_bytes() >= metadata.max(1 << 20));
}

#[test]
fn a_ledger_keeps_its_tables_outside_the_programs_pool() {
    child("pools::accounts_for_many_blocks_of_many_places", |_| {});
}

#[inline(never)]
fn deeper(calls: u32, pool: &Pool, held: &mut Vec<Buffer<u8>>) {
    if calls > 0 {
        deeper(calls - 1, pool, held);
    } else {
        held.extend((0..200).map(|_| pool.alloc_zeroed(64).expect("room")));
    }
    std::hint::black_box(calls);
}

#[test]
#[ignore = "a child of another test"]
fn accounts_for_many_blocks_of_many_places() {
    let pool = Pool::builder().track(Some(Tracking::All)).host().expect("a pool");
    let mut held = Vec::with_capacity(100 * 200);
    deeper(0, &pool, &mut held);
    let before = stats();
    for calls in 1..100 {
        deeper(calls, &pool, &mut held);
    }
    let after = stats();
    let blocks = pool.ledger().map(|ledger| (ledger.blocks(), ledger.lost()));
    assert_eq!(blocks, Some((20_000, 0)));
    // The test runner may still work on its own thread. The ledger of these blocks takes hundreds of blocks and
    // megabytes.
    let asked = after.allocations - before.allocations;
    let more = after.allocated.current.saturating_sub(before.allocated.current);
    assert!(asked < 32 && more < 64 << 10, "{asked} blocks, {more} bytes");
}

#[test]
fn the_programs_own_pool_is_maintained_while_it_serves() {
    let (pool, over) = (POOL.pool().expect("a pool"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // No other thread uses these sizes, so nothing of them is left after a trim.
                    let held: Vec<Stamped> = (0..300)
                        .map(|n| Stamped::new(1000 * thread + n * n % 90_000, n as u8))
                        .collect();
                    held.iter().for_each(Stamped::check);
                }
            });
        }
        for _ in 0..300 {
            pool.trim();
            pool.reset_peak();
            let (stats, compaction) = (pool.stats(), pool.compact());
            assert!(stats.reserved.current > 0 && compaction.reserved_before >= compaction.reserved_after);
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Returns a pool whose source allocates and frees in each of its calls, which run under the pool's lock. Each call frees
/// blocks that were allocated before it. Blocks that it allocates are freed after it.
fn noisy() -> Pool {
    let mut seen: Vec<Stamped> = (0..10).map(|n| Stamped::new(n * 3000, n as u8)).collect();
    let mut calls = Vec::new();
    let log = move |event: &SourceEvent<'_>| {
        calls.push(format!("{event:?}"));
        seen.drain(..).for_each(|block| block.check());
        seen.extend((0..10).map(|n| Stamped::new(n * calls.len(), n as u8)));
        if calls.len() > 100 {
            calls = Vec::new();
        }
    };
    let host = Host::builder()
        .page_bytes(64 << 10)
        .capacity(Some(1 << 30))
        .build()
        .expect("a source");
    Pool::builder()
        .over(Box::new(Logged::new(host, log)))
        .expect("a pool")
}

#[test]
fn a_source_may_allocate_under_the_lock_of_its_pool() {
    let pool = noisy();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    churn(&pool, 100);
                    pool.trim();
                }
            });
        }
    });
    drop(pool);
}

/// Blocks that are freed under a lock are returned when the call ends. Each guarded block is returned by the slow path.
#[test]
fn a_source_may_free_many_blocks_at_once() {
    child("pools::frees_many_blocks_at_once", |command| {
        command.env("MILLPOND_CONF", "guard:on");
    });
}

#[test]
#[ignore = "a child of another test"]
fn frees_many_blocks_at_once() {
    let few = std::thread::Builder::new().stack_size(256 << 10);
    let work = || {
        let mut held: Vec<Box<usize>> = (0..10_000).map(Box::new).collect();
        let log = move |_: &SourceEvent<'_>| held.clear();
        let host = Host::builder().build().expect("a source");
        let pool = Pool::builder().over(Box::new(Logged::new(host, log)));
        let block = pool.expect("a pool").alloc_zeroed::<u8>(1 << 20).expect("room");
        assert_eq!(block[0], 0);
        Stamped::new(1 << 20, 1).check();
    };
    few.spawn(work).expect("a thread").join().expect("no panic");
}

#[test]
fn all_pools_are_usable_in_the_child_of_a_fork() {
    let (pool, over) = (noisy(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    churn(&pool, 100);
                    pool.trim();
                    drop(Pool::host());
                }
            });
        }
        let mut ends = Vec::new();
        for _ in 0..30 {
            // SAFETY: the child only uses memory and functions that are safe after a fork, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the call takes only a number.
                unsafe { libc::alarm(20) };
                churn(&pool, 100);
                pool.trim();
                Stamped::new(1 << 20, 1).check();
                // SAFETY: the call ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: waits for the child that was just made; the status is a local variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            ends.push(status);
            if status != 0 {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(|end| *end == 0), "a child was ended: {ends:?}");
    });
}

/// An observer of the program's pool allocates from the sets, also while it observes an allocation of a set.
#[test]
fn sets_of_pools_work_while_the_programs_pool_has_an_observer() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let program = POOL.pool().expect("a pool");
    let told = program.subscribe(|_: &Event<'_>| {
        // The observer does so for every fifth event only, because it sees every test's allocations.
        if TOLD.fetch_add(1, Ordering::Relaxed).is_multiple_of(5) {
            drop(pools().iter());
            match millpond::alloc_zeroed::<u8>(100) {
                Ok(_) => {}
                Err(AllocError::Pool(why))
                    if matches!(why.downcast_ref(), Some(PoolError::Reentered { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..50 {
                    let set = Pools::with(Pool::builder().trim_every(None).name(format!("round {round}")));
                    set.configure("limit:64MiB").expect("known");
                    let buffer = set.scope(|| {
                        let held: Vec<Buffer<u8>> = (0..50)
                            .map(|n| millpond::alloc_zeroed(n * 1000).expect("room"))
                            .collect();
                        // The observer's allocations in the scope come from the scope's set too.
                        assert!(set.stats().total.allocations >= 49);
                        held.into_iter().next_back().expect("one")
                    });
                    pools().remove(Device::Host, MemoryKind::Host);
                    drop(set);
                    assert_eq!(buffer.len(), 49_000);
                }
            });
        }
    });
    program.unsubscribe(told);
    assert!(TOLD.load(Ordering::Relaxed) > 1000);
}
