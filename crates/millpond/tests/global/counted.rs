//! Limits and the profiler in a program whose allocator is a pool.

use crate::{POOL, Stamped, child};
use millpond::limits::Limits;
use millpond::profiler;
use std::hint::black_box;

#[test]
fn allocations_of_collections_are_counted() {
    child("counted::counts", |_| {});
}

#[test]
#[ignore = "a child of another test"]
fn counts() {
    let limits = Limits::new().peak("96 KiB").leaked(0).warm_up(1).runs(20);
    let work = |bytes: usize| {
        let _tag = millpond::tag("collections");
        let first: Vec<u8> = black_box(Vec::with_capacity(bytes));
        drop(first);
        let texts: Vec<String> = (0..100).map(|at| format!("text {at}")).collect();
        assert_eq!(black_box(&texts).len(), 100);
    };
    let measured = limits.check(|| work(64 << 10)).expect("little");
    for usage in &measured.runs {
        assert!(usage.peak >= 64 << 10 && usage.allocations >= 102, "{usage:?}");
    }
    let text = limits.check(|| work(128 << 10)).expect_err("much").to_string();
    assert!(text.contains("128 KiB in 1 block: collections"), "{text}");

    // All threads allocate at once while the profiler is turned on and off, and read.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2000 {
                    Stamped::new(1 + round * 37 % 9000, 5).check();
                    if round % 50 == 0 {
                        assert!(Limits::new().check(|| drop(Stamped::new(100, 1))).is_ok());
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..30 {
                profiler().enable();
                std::thread::yield_now();
                assert!(!profiler().report().summary().to_string().is_empty());
                profiler().disable();
            }
        });
    });
}

#[test]
#[ignore = "a child of another test"]
fn drops_pools_with_accounts() {
    let live = || POOL.pool().expect("it serves").stats().allocated.current;
    drop(millpond::Pool::host().expect("a pool"));
    let before = live();
    for _ in 0..50 {
        drop(millpond::Pool::host().expect("a pool"));
    }
    let grown = live().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes");
}

/// The tables of an account are not recorded in the account of the program's pool, neither when they are made nor when they are freed.
#[test]
fn pools_with_accounts_free_their_tables() {
    let output = child("counted::drops_pools_with_accounts", |command| {
        command.env("MILLPOND_CONF", "track:all");
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("wrong free"), "{said}");
}
