//! Tests with many threads at once.

use super::executor::run;
use millpond::Budget;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const NEVER: Duration = Duration::from_secs(600);

/// A small generator with which threads differ and runs do not.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

#[test]
fn threads_never_exceed_a_limit_and_every_request_is_served() {
    let top = Budget::builder("top").limit(100).build().expect("a root");
    let tenants: Vec<_> = (0..3)
        .map(|n| {
            top.child_builder(n.to_string())
                .limit(60)
                .build()
                .expect("a child")
        })
        .collect();
    // The threads themselves count their bytes between charge and release.
    let held = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..6u64 {
            let (top, tenants, held) = (&top, &tenants, &held);
            scope.spawn(move || {
                let mut dice = Dice(thread + 1);
                for _ in 0..3_000 {
                    let budget = match dice.below(4) {
                        3 => top,
                        tenant => &tenants[tenant as usize],
                    };
                    let bytes = 1 + dice.below(60);
                    let charge = match dice.below(5) {
                        0 => budget.charge_timeout(bytes, NEVER).ok(),
                        1 => run(budget.charge_async(bytes)).ok(),
                        2 => budget
                            .charge_timeout(bytes, Duration::from_micros(dice.below(50)))
                            .ok(),
                        3 => {
                            let mut wait = budget.charge_async(bytes);
                            wait.join().expect("it may wait")
                        }
                        _ => budget.try_charge(bytes).ok(),
                    };
                    if let Some(charge) = charge {
                        let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(now <= 100, "{now} held of 100");
                        assert!(top.used() <= 100 && budget.used() <= 100);
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        drop(charge);
                    }
                }
            });
        }
    });
    assert_eq!(
        (top.used(), top.remaining(), top.waiting(), top.has_waiters()),
        (0, 100, 0, false)
    );
    assert!(top.peak() <= 100 && tenants.iter().all(|t| t.used() == 0 && t.peak() <= 60));
    drop(tenants[0].charge(60).expect("all of it is back"));
}

#[test]
fn large_requests_are_served_among_many_small_ones() {
    let budget = Budget::builder("b").limit(64).build().expect("a root");
    let done = AtomicBool::new(false);
    let small = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (budget, done, small) = (&budget, &done, &small);
            scope.spawn(move || {
                let mut dice = Dice(thread + 7);
                while !done.load(Ordering::Relaxed) {
                    let charge = budget.charge_timeout(1 + dice.below(8), NEVER).expect("served");
                    small.fetch_add(1, Ordering::Relaxed);
                    thread::yield_now();
                    drop(charge);
                }
            });
        }
        while small.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        // This charges the whole budget repeatedly. Each time all small charges must have been returned.
        for _ in 0..50 {
            let all = budget.charge_timeout(64, NEVER).expect("served");
            assert_eq!(budget.used(), 64);
            drop(all);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!((budget.used(), budget.has_waiters()), (0, false));
}

#[test]
fn limits_change_under_load() {
    let budget = Budget::builder("b").limit(50).build().expect("a root");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|thread| {
                let budget = &budget;
                scope.spawn(move || {
                    let mut dice = Dice(thread + 3);
                    for _ in 0..4_000 {
                        let bytes = 1 + dice.below(10);
                        // The charge is never larger than any limit, so every waiting request is served in the end.
                        drop(budget.charge_timeout(bytes, NEVER).expect("served"));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice(99);
            while !done.load(Ordering::Relaxed) {
                budget.set_limit(Some(10 + dice.below(60)));
                thread::yield_now();
            }
        });
        let joined: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(joined.into_iter().all(|outcome| outcome.is_ok()));
    });
    assert_eq!((budget.used(), Some(budget.remaining())), (0, budget.limit()));
}
