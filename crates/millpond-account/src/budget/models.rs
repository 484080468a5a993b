//! Checks small programs in every order of steps that the memory model allows (with `loom`).
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p millpond-account --release --lib models
//! ```

use super::{Budget, Measure, Wait};
use loom::future::block_on;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(run);
}

fn budget(limit: u64) -> Budget {
    Budget::builder("top").limit(limit).build().unwrap()
}

/// Polls once, with a waker that does nothing.
fn poll(wait: &mut Wait) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(Pin::new(wait).poll(&mut context), Poll::Ready(Ok(_)))
}

fn at_rest(budget: &Budget, limit: u64) {
    assert_eq!((budget.used(), budget.remaining()), (0, limit));
    assert!(!budget.has_waiters() && budget.waiting() == 0 && !budget.node().room.see().is_waited());
}

#[test]
fn concurrent_charges_never_exceed_a_limit() {
    model(|| {
        let top = budget(10);
        let low = top.child_builder("low").limit(8).build().unwrap();
        let other = {
            let top = top.clone();
            thread::spawn(move || drop(top.try_charge(6)))
        };
        let charge = low.try_charge(5);
        assert!(top.used() <= 10);
        drop(charge);
        other.join().unwrap();
        assert!(top.peak() <= 10 && low.peak() <= 5);
        at_rest(&top, 10);
        at_rest(&low, 8);
    });
}

#[test]
fn a_charge_refused_further_up_leaves_no_peak() {
    model(|| {
        let top = budget(4);
        let low = top.child("low").unwrap();
        let other = {
            let low = low.clone();
            thread::spawn(move || low.try_charge(3).is_ok())
        };
        let mine = low.try_charge(3);
        let theirs = other.join().unwrap();
        assert_eq!(low.peak(), if mine.is_ok() || theirs { 3 } else { 0 });
        drop(mine);
        at_rest(&low, super::MOST);
    });
}

#[test]
fn refunds_wake_waiting_requests() {
    model(|| {
        let top = budget(4);
        let held = top.try_charge(3).unwrap();
        let waiter = {
            let top = top.clone();
            thread::spawn(move || drop(block_on(top.charge_async(2)).unwrap()))
        };
        drop(held);
        waiter.join().unwrap();
        at_rest(&top, 4);
    });
}

#[test]
fn a_charge_refused_by_a_higher_budget_wakes_requests_that_wait_below() {
    model(|| {
        let top = budget(4);
        let low = top.child_builder("low").limit(3).build().unwrap();
        let other = {
            let low = low.clone();
            thread::spawn(move || drop(low.try_charge(3)))
        };
        // If the other thread has taken room below but not yet above, its charge is refused above.
        let held = top.try_charge(2);
        let mut wait = low.charge_async(2);
        if !poll(&mut wait) {
            other.join().unwrap();
            assert!(poll(&mut wait), "room came back and nobody was told");
        } else {
            other.join().unwrap();
        }
        drop((wait, held));
        at_rest(&top, 4);
        at_rest(&low, 3);
    });
}

#[test]
fn a_raised_limit_wakes_waiting_requests() {
    model(|| {
        let top = budget(1);
        let waiter = {
            let top = top.clone();
            // The request is larger than the limit, so it fails immediately if it is first.
            thread::spawn(move || drop(block_on(top.charge_async(1))))
        };
        let held = top.try_charge(1);
        top.set_limit(Some(2));
        waiter.join().unwrap();
        drop(held);
        at_rest(&top, 2);
    });
}

#[test]
fn a_lowered_limit_applies_to_all_later_charges() {
    model(|| {
        let top = budget(4);
        let other = {
            let top = top.clone();
            thread::spawn(move || top.try_charge(3))
        };
        top.set_limit(Some(2));
        let before = top.used() + top.node().room.see().charged(2);
        let theirs = other.join().unwrap();
        if before == 0 {
            assert!(theirs.is_err(), "charged by the old limit");
        }
        drop(theirs);
        at_rest(&top, 2);
    });
}

#[test]
fn a_dropped_request_gives_its_turn_to_the_next() {
    model(|| {
        let top = budget(4);
        let held = top.try_charge(3).unwrap();
        let mut first = top.charge_async(4);
        assert!(!poll(&mut first));
        let second = {
            let top = top.clone();
            thread::spawn(move || drop(block_on(top.charge_async(1)).unwrap()))
        };
        let canceller = thread::spawn(move || drop(first));
        second.join().unwrap();
        canceller.join().unwrap();
        drop(held);
        at_rest(&top, 4);
    });
}

#[test]
fn a_dropped_grant_goes_to_the_next_request() {
    model(|| {
        let top = budget(2);
        let held = top.try_charge(2).unwrap();
        let (mut first, mut second) = (top.charge_async(2), top.charge_async(2));
        assert!(!poll(&mut first) && !poll(&mut second));
        let canceller = thread::spawn(move || drop(first));
        drop(held);
        canceller.join().unwrap();
        assert!(poll(&mut second), "nobody was given the room");
        assert_eq!(top.peak(), 2);
        drop(second);
        at_rest(&top, 2);
    });
}

#[test]
fn a_flag_set_at_a_budget_without_waiting_requests_is_cleared() {
    model(|| {
        let top = budget(5);
        let low = top.child_builder("low").limit(3).build().unwrap();
        let held = low.try_charge(3).unwrap();
        let other = {
            let top = top.clone();
            thread::spawn(move || {
                drop(held);
                // Room was returned below and is taken above.
                drop(top.try_charge(4));
            })
        };
        drop(block_on(low.charge_async(2)).unwrap());
        other.join().unwrap();
        at_rest(&top, 5);
        at_rest(&low, 3);
    });
}

#[test]
fn a_charge_sees_the_writes_before_the_refund_that_made_room() {
    model(|| {
        let top = budget(1);
        let given_back = Arc::new(AtomicUsize::new(0));
        let held = top.try_charge(1).unwrap();
        let other = {
            let given_back = Arc::clone(&given_back);
            thread::spawn(move || {
                given_back.store(1, Ordering::Relaxed);
                drop(held);
            })
        };
        if top.try_charge(1).is_ok() {
            assert_eq!(given_back.load(Ordering::Relaxed), 1);
        }
        other.join().unwrap();
    });
}

#[test]
fn every_crossing_of_a_soft_limit_is_reported_once() {
    model(|| {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let top = Budget::builder("top")
            .measure(Measure::Allocated)
            .soft_limit_rearmed_at(3, 1, move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        // The use is above the limit. The two refunds lower it to zero, and the last charge raises it above the limit
        // again.
        let (one, two) = (top.try_charge(2).unwrap(), top.try_charge(2).unwrap());
        assert_eq!(told.load(Ordering::SeqCst), 1);
        let other = thread::spawn(move || drop(two));
        drop(one);
        other.join().unwrap();
        let again = top.try_charge(4).unwrap();
        assert_eq!(told.load(Ordering::SeqCst), 2);
        drop(again);
    });
}

#[test]
fn concurrent_crossings_of_a_soft_limit_do_not_disable_it() {
    model(|| {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let top = Budget::builder("top")
            .soft_limit_rearmed_at(3, 1, move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        let other = {
            let top = top.clone();
            thread::spawn(move || drop(top.try_charge(4).unwrap()))
        };
        let mine = top.try_charge(4).unwrap();
        other.join().unwrap();
        let before = told.load(Ordering::SeqCst);
        assert!((1..=2).contains(&before), "told {before} times");
        drop(mine);
        let again = top.try_charge(4).unwrap();
        assert_eq!(told.load(Ordering::SeqCst), before + 1);
        drop(again);
    });
}

/// Makes a budget with a soft limit of 3 that is armed again at 2, and a counter of its callbacks.
fn softly() -> (Budget, impl Fn() -> usize) {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let top = Budget::builder("top").soft_limit_rearmed_at(3, 2, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    (top.build().unwrap(), move || told.load(Ordering::SeqCst))
}

#[test]
fn a_refund_during_a_crossing_arms_the_soft_limit_again() {
    model(|| {
        let (top, told) = softly();
        let falling = top.try_charge(3).unwrap();
        let other = thread::spawn(move || drop(falling));
        let mine = top.try_charge(1).unwrap();
        other.join().unwrap();
        let before = told();
        let again = top.try_charge(3).unwrap();
        assert_eq!(told(), before + 1);
        drop((mine, again));
    });
}

#[test]
fn a_crossing_during_a_refund_is_reported() {
    model(|| {
        let (top, told) = softly();
        let falling = top.try_charge(4).unwrap();
        let other = thread::spawn(move || drop(falling));
        let mine = top.try_charge(4).unwrap();
        other.join().unwrap();
        // If both charges overlapped, the use never fell below the limit. Otherwise the limit was crossed twice.
        assert_eq!(told(), if top.peak() == 8 { 1 } else { 2 });
        drop(mine);
    });
}
