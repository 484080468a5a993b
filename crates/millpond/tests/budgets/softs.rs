//! Soft limits.

use millpond::Budget;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

#[test]
fn each_crossing_is_told_once() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    let top = Budget::builder("top")
        .soft_limit(80, move |crossing| {
            sink.lock()
                .expect("not poisoned")
                .push((crossing.limit, crossing.used));
        })
        .build()
        .expect("a root");
    let low = top.child("low").expect("a child");
    let told = || told.lock().expect("not poisoned").clone();
    let (base, edge) = (top.charge(70).expect("fits"), low.charge(10).expect("fits"));
    assert!(told().is_empty(), "at the limit is not above it");
    let over = low.charge(1).expect("fits");
    assert_eq!(told(), [(80, 81)]);
    // Up and down around the limit tells nothing more, until it was down to 70.
    drop(over);
    drop(low.charge(20).expect("fits"));
    assert_eq!(told().len(), 1);
    drop(edge);
    let over = low.charge(30).expect("fits");
    assert_eq!(told(), [(80, 81), (80, 100)]);
    drop((base, over));
}

#[test]
fn a_callback_may_charge_change_limits_and_panic() {
    let budget: Arc<OnceLock<Budget>> = Arc::default();
    let (inner, calls) = (Arc::clone(&budget), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    let made = Budget::builder("b")
        .limit(100)
        .soft_limit_rearmed_at(50, 10, move |crossing| {
            count.fetch_add(1, Ordering::SeqCst);
            let budget = inner.get().expect("set before");
            assert!(crossing.budget.is_same(budget));
            drop(budget.charge(5).expect("there is room"));
            budget.set_limit(Some(200));
            drop(budget.child("made here").expect("a child"));
            std::panic::resume_unwind(Box::new("a bad callback"));
        })
        .build()
        .expect("a root");
    budget.set(made.clone()).expect("empty");
    let charge = made.charge(60).expect("charged, whatever the callback does");
    assert_eq!(
        (calls.load(Ordering::SeqCst), made.used(), made.limit()),
        (1, 60, Some(200))
    );
    drop(charge);
    drop(made.charge(51));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn a_granted_request_crosses_when_it_is_taken() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let budget = Budget::builder("b")
        .limit(10)
        .soft_limit_rearmed_at(5, 0, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .expect("a root");
    let held = budget.charge(4).expect("fits");
    let mut task = super::executor::Task::new(budget.charge_async(8));
    assert!(task.poll().is_none());
    drop(held);
    assert_eq!((task.wakeups.count(), calls.load(Ordering::SeqCst)), (1, 0));
    drop(task.poll());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
