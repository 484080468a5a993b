//! The statistics of pools in combination with limits, closed pools, tenants and threads.

use millpond::{Budget, Pool, Tracking, budget::Measure};
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

/// The pool lists its blocks for refusals of its own budget. A tenant's budget has no such list.
#[test]
fn the_refusal_of_a_tenant_names_the_holders_of_its_blocks_only() {
    let all = Budget::builder("all").measure(Measure::Allocated).limit(64 << 20);
    let all = all.build().expect("a budget");
    let pool = Pool::builder()
        .name("pool")
        .budget(&all)
        .track(Some(Tracking::All));
    let pool = pool.host().expect("a pool");
    let own = pool.budget().expect("its own budget");
    let group = own
        .child_builder("group")
        .limit(4 << 20)
        .build()
        .expect("a budget");
    let tenant = |name: &str| {
        pool.tenant(&group.child(name).expect("a budget"))
            .expect("a tenant")
    };
    let (one, two) = (tenant("one"), tenant("two"));
    let held = {
        let _scope = millpond::tag("activations");
        [&one, &two].map(|tenant| tenant.alloc::<u8>(1 << 20).expect("room"))
    };
    let _others = pool.alloc::<u8>(8 << 20).expect("room");
    let refused = |tenant: &millpond::Tenant| {
        tenant
            .alloc::<u8>(3 << 20)
            .expect_err("over the budget")
            .to_string()
    };
    let said = refused(&one);
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "out of memory: 3.00 MiB requested, 1.00 MiB over budget 'all/pool/group' (2.00 MiB of 4.00 MiB allocated)",
            "below it: one 1.00 MiB, two 1.00 MiB",
            "2.00 MiB in 2 blocks held by activations",
            "to free: at least 1.00 MiB; the smallest sufficient block has 1.00 MiB",
        ]
    );
    pool.track(None);
    let unknown = refused(&two.wait(std::time::Duration::from_millis(1)));
    assert!(
        unknown.contains("a pool keeps no account of the holders"),
        "{unknown}"
    );
    drop(held);
    assert_eq!(group.used(), 0);
}
