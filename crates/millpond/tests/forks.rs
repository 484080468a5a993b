//! A child of a fork, whatever the parent's other threads were at.

#![cfg(target_os = "linux")]

use millpond::{Budget, Measure, Pool, Tenant};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Runs `work` in a child; answers how it ended. One that hangs is ended by the alarm.
fn in_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses pools and what a child of threads may use, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(10) };
        let fine = work();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: waits for the child just made; the status is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

#[test]
fn nobody_waits_in_a_child() {
    let pool = Pool::builder()
        .limit(16 << 20)
        .trim_every(None)
        .host()
        .expect("a pool");
    let held = pool.alloc_zeroed::<u8>(12 << 20).expect("room");
    thread::scope(|scope| {
        scope.spawn(|| drop(pool.waiting(Duration::from_secs(120)).alloc_zeroed::<u8>(8 << 20)));
        while pool.stats().refusals == 0 {
            thread::yield_now();
        }
        // Whoever comes while another waits is refused; in the child nobody does.
        let end = in_child(|| pool.alloc_raw(2 << 20, 64).is_ok());
        drop(held);
        assert_eq!(end, 0);
    });
}

#[test]
fn a_child_of_tenants_at_work_can_be_a_tenant() {
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .build()
        .expect("a budget");
    let tenant: Tenant = pool.tenant(&budget).expect("allocated bytes");
    let over = AtomicBool::new(false);
    let ends: Vec<i32> = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(tenant.alloc::<u8>(64).expect("room"));
                }
            });
        }
        let ends = (0..60)
            .map(|_| in_child(|| tenant.alloc_zeroed::<u8>(5000).is_ok()))
            .take_while(|end| *end == 0)
            .collect();
        over.store(true, Ordering::Relaxed);
        ends
    });
    assert_eq!(ends, [0; 60]);
}
