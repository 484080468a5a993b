//! Requests that wait.

use super::executor::{Task, run};
use millpond::{
    Budget,
    budget::{BudgetError, Charge},
};
use std::future::Future;
use std::thread;
use std::time::Duration;

const NEVER: Duration = Duration::from_secs(600);
const NOW: Duration = Duration::ZERO;

fn budget(limit: u64) -> Budget {
    Budget::builder("b").limit(limit).build().expect("a root")
}

fn child(parent: &Budget, limit: u64) -> Budget {
    parent.child_builder("c").limit(limit).build().expect("a child")
}

fn waiting(budget: &Budget, bytes: u64) -> Task<millpond::budget::Wait> {
    let mut task = Task::new(budget.charge_async(bytes));
    assert!(task.poll().is_none(), "there is no room for it yet");
    task
}

fn served(task: &mut Task<millpond::budget::Wait>) -> Charge {
    assert_eq!(task.wakeups.count(), 1, "woken once, and only when served");
    task.poll().expect("served").expect("charged")
}

fn not_served(task: &mut Task<millpond::budget::Wait>) {
    assert_eq!(task.wakeups.count(), 0, "woken for nothing");
    assert!(task.poll().is_none());
}

#[test]
fn a_large_request_is_not_overtaken() {
    let budget = budget(100);
    let (mut held, rest) = (budget.charge(80).expect("fits"), budget.charge(15).expect("fits"));
    let (mut large, mut small) = (waiting(&budget, 50), waiting(&budget, 5));
    assert!(budget.has_waiters() && budget.waiting() == 2);
    // Five bytes are free, and the first request in the queue needs fifty.
    let refused = budget.try_charge(5).expect_err("others come first");
    assert_eq!((refused.over_by(), refused.waiting), (0, 2));
    drop(held.split(40));
    not_served(&mut large);
    not_served(&mut small);
    drop(held.split(5));
    let large = served(&mut large);
    // Nothing is left for the second request.
    not_served(&mut small);
    drop(rest);
    let small = served(&mut small);
    assert_eq!(
        (budget.used(), budget.has_waiters(), budget.waiting()),
        (90, false, 0)
    );
    drop((large, small, held));
    assert_eq!((budget.used(), budget.remaining()), (0, 100));
    drop(budget.charge(100).expect("the line is empty"));
}

#[test]
fn returned_bytes_serve_as_many_waiting_requests_as_fit_in_order() {
    let budget = budget(100);
    let held = budget.charge(100).expect("fits");
    let mut tasks: Vec<_> = (0..40).map(|_| waiting(&budget, 4)).collect();
    drop(held);
    let charges: Vec<_> = tasks.iter_mut().take(25).map(served).collect();
    for late in tasks.iter_mut().skip(25) {
        not_served(late);
    }
    drop(charges);
    let charges: Vec<_> = tasks.iter_mut().skip(25).map(served).collect();
    assert_eq!((charges.len(), budget.used(), budget.peak()), (15, 60, 100));
}

#[test]
fn tenants_do_not_wait_for_each_other() {
    let pool = budget(100);
    let (one, two) = (child(&pool, 30), child(&pool, 60));
    let held = one.charge(30).expect("fits");
    let mut stuck = waiting(&one, 10);
    assert_eq!((one.waiting(), pool.waiting(), two.has_waiters()), (1, 0, true));
    let more = two.charge(60).expect("another tenant's line is not its own");
    let mut behind = waiting(&pool, 20);
    // Now a request waits at the pool itself, so the pool serves no other request before it.
    assert!(two.charge(0).is_ok() && one.try_charge(1).is_err());
    assert!(pool.try_charge(5).expect_err("one comes first").waiting == 1);
    drop(held);
    // The first request in the queue was the tenant's, and the second needs the rest.
    let (first, second) = (served(&mut stuck), served(&mut behind));
    assert_eq!(pool.used(), 90);
    drop((first, second, more));
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_request_that_its_tenant_serves_keeps_its_turn_in_the_parents_queue() {
    let pool = budget(100);
    let (one, two) = (child(&pool, 30), child(&pool, 90));
    let held = one.charge(30).expect("fits");
    let mut first = waiting(&one, 30);
    let more = two.charge(70).expect("fits");
    let mut second = waiting(&two, 20);
    // The tenant's bytes are free again, and the pool has enough for the first request in the queue.
    drop(held);
    let first = served(&mut first);
    not_served(&mut second);
    drop(first);
    drop((served(&mut second), more));

    let (held, mut more) = (one.charge(30).expect("fits"), two.charge(70).expect("fits"));
    let mut first = waiting(&one, 30);
    let third = pool.child("late").expect("a child");
    pool.set_limit(Some(90));
    drop(held);
    // The tenant has room. The pool lacks ten bytes.
    not_served(&mut first);
    assert_eq!((one.waiting(), pool.waiting()), (0, 1));
    assert!(third.try_charge(1).is_err(), "nobody passes the pool before it");
    drop(more.split(10));
    drop(served(&mut first));
}

#[test]
fn a_dropped_request_leaves_the_queue() {
    let budget = budget(100);
    let held = budget.charge(90).expect("fits");
    let (large, mut small) = (waiting(&budget, 50), waiting(&budget, 10));
    drop(large);
    let small = served(&mut small);
    assert!(!budget.has_waiters());
    // The first request was granted and not taken. The next one is served, and the peak does not include the first.
    let (first, mut second) = (waiting(&budget, 90), waiting(&budget, 80));
    drop(held);
    assert_eq!(
        (first.wakeups.count(), budget.used(), budget.remaining()),
        (1, 10, 0)
    );
    not_served(&mut second);
    drop(first);
    drop(served(&mut second));
    drop(small);
    assert_eq!((budget.used(), budget.peak(), budget.remaining()), (0, 100, 100));
    // A request that was never polled was never in the queue.
    let unpolled = budget.charge_async(1000);
    assert!(!budget.has_waiters());
    drop(unpolled);
}

#[test]
fn limits_change_while_requests_wait() {
    let budget = budget(10);
    let held = budget.charge(10).expect("fits");
    let (mut one, mut two) = (waiting(&budget, 8), waiting(&budget, 3));
    budget.set_limit(Some(17));
    not_served(&mut one);
    budget.set_limit(Some(18));
    let one = served(&mut one);
    not_served(&mut two);
    // The limit is lowered below a waiting request, which fails and delays no other.
    let mut three = waiting(&budget, 1);
    budget.set_limit(Some(2));
    assert_eq!((two.wakeups.count(), three.wakeups.count()), (1, 0));
    assert!(matches!(two.poll(), Some(Err(BudgetError::TooLarge(_)))));
    drop((held, one));
    drop(served(&mut three));
    budget.set_limit(None);
    drop(budget.charge(1000).expect("no limit"));
}

#[test]
fn a_charge_above_the_limit_does_not_wait() {
    let pool = budget(100);
    let tenant = child(&pool, 200);
    let held = pool.charge(100).expect("fits");
    let refused = tenant
        .charge_timeout(101, NEVER)
        .expect_err("above the pool's limit");
    assert!(matches!(&refused, BudgetError::TooLarge(report) if report.refusal().budget.is_same(&pool)));
    assert!(matches!(
        run(tenant.charge_async(u64::MAX)),
        Err(BudgetError::TooLarge(_))
    ));
    assert_eq!(
        (pool.has_waiters(), pool.refusals(), tenant.refusals()),
        (false, 2, 0)
    );
    drop(held);
}

#[test]
fn a_waiting_request_times_out() {
    let budget = budget(100);
    let held = budget.charge(60).expect("fits");
    let refused = budget.charge_timeout(50, NOW).expect_err("nothing comes back");
    assert!(matches!(&refused, BudgetError::TimedOut { report, .. } if report.refusal().over_by() == 10));
    assert!(refused.is_out_of_memory() && !budget.has_waiters());
    // When a large request gives up, the small one behind it is served.
    thread::scope(|scope| {
        let mut large = Task::new(budget.charge_async(50));
        assert!(large.poll().is_none());
        let small = scope.spawn(|| budget.charge_timeout(30, NEVER).map(|charge| charge.bytes()));
        while budget.waiting() < 2 {
            thread::yield_now();
        }
        drop(large);
        assert_eq!(small.join().expect("no panic").expect("served"), 30);
    });
    drop(held);
    assert_eq!((budget.used(), budget.refusals()), (0, 1));
}

#[test]
fn a_joined_request_gets_bytes_that_are_freed_before_it_blocks() {
    let budget = budget(10);
    let cached = budget.charge(10).expect("fits");
    let mut wait = budget.charge_async(4);
    assert!(wait.join().expect("it may wait").is_none() && budget.has_waiters());
    drop(cached);
    assert_eq!(wait.block_for(NOW).expect("served before it slept").bytes(), 4);
    let at_once = budget
        .charge_async(10)
        .join()
        .expect("no error")
        .expect("there is room");
    assert_eq!((at_once.bytes(), budget.used()), (10, 10));
}

#[test]
fn only_the_last_waker_is_woken() {
    let budget = budget(1);
    let held = budget.charge(1).expect("fits");
    let mut future = Box::pin(budget.charge_async(1));
    let (old, new) = (
        std::sync::Arc::new(super::executor::Wakeups::default()),
        std::sync::Arc::default(),
    );
    for wakeups in [&old, &new] {
        let waker = std::task::Waker::from(std::sync::Arc::clone(wakeups));
        assert!(
            future
                .as_mut()
                .poll(&mut std::task::Context::from_waker(&waker))
                .is_pending()
        );
    }
    drop(held);
    assert_eq!((old.count(), new.count()), (0, 1));
}

#[test]
fn a_waker_that_panics_does_not_block_other_requests() {
    struct Bad;
    impl std::task::Wake for Bad {
        fn wake(self: std::sync::Arc<Self>) {
            std::panic::resume_unwind(Box::new("a bad waker"));
        }
    }
    let budget = budget(2);
    let held = budget.charge(2).expect("fits");
    let mut bad = Box::pin(budget.charge_async(1));
    let waker = std::task::Waker::from(std::sync::Arc::new(Bad));
    assert!(
        bad.as_mut()
            .poll(&mut std::task::Context::from_waker(&waker))
            .is_pending()
    );
    let mut good = waiting(&budget, 1);
    drop(held);
    drop(served(&mut good));
}
