//! The statistics of pools in combination with limits, closed pools, tenants and threads.

use millpond::{Budget, Pool, budget::Measure};
use std::thread;

const MIB: u64 = 1 << 20;

fn quiet() -> Pool {
    Pool::builder().trim_every(None).host().expect("a pool")
}

#[test]
fn statistics_of_a_closed_pool_end_at_zero() {
    let pool = quiet();
    let small = pool.alloc_from(&[1u8; 5000]).expect("room");
    let large = pool.alloc_from(&[2u8; 500_000]).expect("room");
    let closed = small.pool().expect("a pool's");
    drop(pool);
    thread::spawn(move || drop(large)).join().expect("freed");
    drop(small);
    let stats = closed.stats();
    assert_eq!((stats.requested.current, stats.allocated.current), (0, 0));
    assert_eq!((stats.allocations, stats.frees), (2, 2));
    assert_eq!(stats.reserved.current, 0);
}

#[test]
fn peaks_are_exact_with_one_thread_even_if_a_free_bypasses_its_cache() {
    let pool = quiet();
    let held = pool.alloc_zeroed::<u8>(10 << 20).expect("room");
    pool.set_limit(MIB);
    drop(held);
    pool.set_limit(64 * MIB);
    drop(pool.alloc_zeroed::<u8>(6 << 20).expect("room"));
    assert_eq!(pool.stats().requested.peak, 10 * MIB);
    drop(pool.alloc_zeroed::<u8>(11 << 20).expect("room"));
    assert_eq!(pool.stats().requested.peak, 11 * MIB);
}

#[test]
fn a_block_that_changes_owner_is_charged_to_its_current_owner() {
    // The size exceeds the threads' caches, so memory that one thread frees is available to the other at once.
    const BYTES: usize = 33 << 20;
    let pool = quiet();
    thread::scope(|scope| {
        for name in ["one", "two", "three", "four", "five", "six"] {
            let pool = &pool;
            scope.spawn(move || {
                let budget = Budget::builder(name).measure(Measure::Allocated).build();
                let tenant = pool.tenant(&budget.expect("a budget")).expect("allocated bytes");
                for round in 0..5000 {
                    let held = tenant.alloc::<u8>(BYTES).expect("room");
                    let used = tenant.budget().map(Budget::used);
                    assert_eq!(used, Some(BYTES as u64), "{name}, round {round}");
                    drop(held);
                    assert_eq!(
                        tenant.budget().map(Budget::used),
                        Some(0),
                        "{name}, round {round}"
                    );
                }
            });
        }
    });
}
