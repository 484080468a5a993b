//! Budgets and tenants of pools, and requests that wait for them.

use super::{MIB, quiet};
use millpond::{
    AllocError, Budget, Pool,
    budget::{BudgetError, Measure},
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

fn tree() -> (Budget, Budget, Budget) {
    let process = Budget::builder("process")
        .limit(64 * MIB)
        .build()
        .expect("a budget");
    let one = process.child("one").expect("a budget");
    let two = process.child("two").expect("a budget");
    (process, one, two)
}

#[test]
fn memory_reserved_by_a_pool_is_charged() {
    let (process, one, two) = tree();
    let pools = [&one, &two].map(|budget| {
        let builder = Pool::builder().name("p").budget(budget).trim_every(None);
        builder.host().expect("a pool")
    });
    let held = pools[0].alloc_zeroed::<u8>(40 << 20).expect("room");
    assert_eq!(one.used(), pools[0].stats().reserved.current);
    assert_eq!(process.used(), one.used());
    let refused = pools[1].alloc_zeroed::<u8>(40 << 20).expect_err("over");
    assert!(matches!(refused, AllocError::Budget(_)), "{refused}");
    let told = refused.to_string();
    assert!(
        told.contains("over budget 'process'") && told.contains("below it: one 40"),
        "{told}"
    );
    // Memory that the other pool keeps without using it is freed for this one.
    drop(held);
    assert!(process.used() >= 40 * MIB);
    let held = pools[1].alloc_zeroed::<u8>(40 << 20).expect("room");
    assert_eq!(one.used(), 0);
    drop(held);
    drop(pools);
    assert_eq!((process.used(), process.forgotten()), (0, 0));
}

#[test]
fn blocks_are_charged_to_pool_and_tenant() {
    let process = Budget::builder("process")
        .limit(64 * MIB)
        .build()
        .expect("a budget");
    let bytes = |name: &str, above: &Budget, limit: u64| {
        let child = above.child_builder(name).measure(Measure::Allocated);
        child.limit(limit).build().expect("a budget")
    };
    let pool_budget = bytes("pool", &process, 20 * MIB);
    let pool = Pool::builder()
        .name("a")
        .budget(&pool_budget)
        .trim_every(None)
        .host()
        .expect("a pool");
    let own = pool.budget().expect("it has one");
    let tenants = [bytes("small", own, 7 * MIB), bytes("large", own, 19 * MIB)];
    assert!(matches!(
        pool.tenant(&process),
        Err(BudgetError::OtherMeasure { .. })
    ));
    let [small, large] = tenants.map(|budget| pool.tenant(&budget).expect("allocated bytes"));
    let own = pool.alloc_zeroed::<u8>(4 << 20).expect("room");
    let theirs = small.alloc_zeroed::<u8>(3 << 20).expect("room");
    assert_eq!(
        (pool_budget.used(), small.budget().map(Budget::used)),
        (7 * MIB, Some(3 * MIB))
    );
    let refused = small.alloc_zeroed::<u8>(5 << 20).expect_err("over").to_string();
    assert!(
        refused.contains("over budget 'process/pool/a/small'"),
        "{refused}"
    );
    let refused = large.alloc_zeroed::<u8>(17 << 20).expect_err("over").to_string();
    assert!(refused.contains("over budget 'process/pool'"), "{refused}");
    assert_eq!(large.budget().map(Budget::used), Some(0), "nothing stays charged");
    let mut theirs = theirs;
    // Both blocks are held for a moment.
    theirs.try_grow_zeroed(7 << 19).expect("room");
    assert_eq!(small.budget().map(Budget::used), Some(7 * MIB / 2));
    drop(theirs);
    assert_eq!(
        (pool_budget.used(), small.budget().map(Budget::used)),
        (4 * MIB, Some(0))
    );
    drop(own);
    assert_eq!(pool_budget.used(), 0);
    assert_eq!(pool.stats().refusals, 2);
}

#[test]
fn a_tenant_is_charged_to_the_pools_budget_and_its_own() {
    let allocated = |name: &str, limit: u64| {
        let budget = Budget::builder(name).measure(Measure::Allocated);
        budget.limit(limit).build().expect("a budget")
    };
    let (ours, theirs) = (allocated("pool", 20 * MIB), allocated("tenant", 7 * MIB));
    let pool = Pool::builder()
        .budget(&ours)
        .trim_every(None)
        .host()
        .expect("a pool");
    let tenant = pool.tenant(&theirs).expect("allocated bytes");
    let held = tenant.alloc_zeroed::<u8>(3 << 20).expect("room");
    assert_eq!((ours.used(), theirs.used()), (3 * MIB, 3 * MIB));
    let refused = tenant.alloc_zeroed::<u8>(5 << 20).expect_err("over").to_string();
    assert!(refused.contains("over budget 'tenant'"), "{refused}");
    assert_eq!(
        (ours.used(), theirs.used()),
        (3 * MIB, 3 * MIB),
        "nothing stays charged"
    );
    drop(held);
    assert_eq!((ours.used(), theirs.used()), (0, 0));
}

#[test]
fn waiting_requests_are_served_in_order() {
    let pool = Pool::builder()
        .limit(16 * MIB)
        .trim_every(None)
        .host()
        .expect("a pool");
    let held = pool.alloc_zeroed::<u8>(12 << 20).expect("room");
    let long = Duration::from_secs(120);
    let (first, behind) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(2)));
    thread::scope(|scope| {
        scope.spawn(|| {
            let all = pool.waiting(long).alloc_zeroed::<u8>(16 << 20).expect("in time");
            first.store(true, Ordering::SeqCst);
            behind.wait();
            drop(all);
        });
        while pool.stats().refusals == 0 {
            thread::yield_now();
        }
        // There is room for this request, but another thread comes first.
        let refused = loop {
            match pool.alloc_zeroed::<u8>(3 << 20) {
                Err(error) => break error,
                Ok(too_early) => drop(too_early),
            }
        };
        assert!(refused.is_out_of_memory());
        assert!(!first.load(Ordering::SeqCst));
        drop(held);
        behind.wait();
        let next = pool.waiting(long).alloc_zeroed::<u8>(8 << 20).expect("in time");
        assert!(first.load(Ordering::SeqCst));
        drop(next);
    });
    let held = pool.alloc_zeroed::<u8>(16 << 20).expect("room");
    let began = Instant::now();
    let late = pool
        .waiting(Duration::from_millis(30))
        .alloc_zeroed::<u8>(1 << 20);
    assert!(
        late.is_err_and(|error| error.is_out_of_memory()) && began.elapsed() >= Duration::from_millis(30)
    );
    drop(held);
    pool.alloc_zeroed::<u8>(16 << 20).expect("nobody waits any more");
}

#[test]
fn a_future_waits_for_its_tenants_budget() {
    let pool = quiet();
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .limit(8 * MIB)
        .build();
    let tenant = pool.tenant(&budget.expect("a budget")).expect("allocated bytes");
    let held = tenant.alloc_zeroed::<u8>(6 << 20).expect("room");
    let giver = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        held.free();
    });
    let waiter = tenant.clone();
    let buffer = futures_lite(async move { waiter.alloc_zeroed_async::<u8>(5 << 20).await });
    assert_eq!(buffer.expect("in time").len(), 5 << 20);
    giver.join().expect("freed");
    assert_eq!(tenant.budget().map(Budget::used), Some(0));
}

#[test]
fn a_future_waits_no_longer_than_its_tenant() {
    let pool = quiet();
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .limit(8 * MIB)
        .build();
    let budget = budget.expect("a budget");
    let tenant = pool.tenant(&budget).expect("allocated bytes");
    let held = tenant.alloc_zeroed::<u8>(6 << 20).expect("room");
    let limit = Duration::from_millis(30);
    let waiter = tenant.wait(limit);
    let begun = Instant::now();
    // No thread frees memory, so only the alarm wakes this thread.
    let error = futures_lite(waiter.alloc_async::<u8>(5 << 20)).expect_err("nobody freed");
    assert!(begun.elapsed() >= limit);
    let AllocError::Budget(why) = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(&**why, BudgetError::TimedOut { waited, .. } if *waited >= limit),
        "{error}"
    );
    assert!(!budget.has_waiters(), "it has left the line");
    // A dropped request leaves the queue, and so does its alarm.
    {
        let mut dropped = std::pin::pin!(waiter.alloc_from_async(&[1u8; 5 << 20]));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert!(budget.has_waiters());
    }
    assert!(!budget.has_waiters(), "it has left the line");
    let patient = tenant.wait(Duration::from_secs(60));
    let giver = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        held.free();
    });
    let values: Vec<u8> = (0..5 << 20).map(|n| n as u8).collect();
    let copy = futures_lite(patient.alloc_from_async(&values)).expect("in time");
    assert!(copy[..] == values[..]);
    giver.join().expect("freed");
    let written = futures_lite(patient.alloc_async::<u16>(1000))
        .expect("room")
        .fill(7);
    assert!(written.iter().all(|n| *n == 7));
    assert_eq!(budget.used(), 5 * MIB + 2048, "by the blocks of both");
    // A handle of the pool alone never waits for a budget.
    let alone = pool.waiting(limit);
    assert_eq!(
        futures_lite(alone.alloc_from_async(&[1, 2, 3])).expect("room")[..],
        [1, 2, 3]
    );
    drop((copy, written));
    assert_eq!(budget.used(), 0);
}

/// Runs a future on this thread.
fn futures_lite<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            return answer;
        }
        thread::park();
    }
}
