//! Random programs on several threads, compared with a list of live blocks.
//!
//! ```sh
//! MILLPOND_ORACLE_SECONDS=600 cargo test -p millpond --test oracle
//! MILLPOND_ORACLE_SEED=7 cargo test -p millpond --test oracle
//! ```
//!
//! Each case prints its seed, which appears if it fails. The requests of a thread depend on the seed only. The order of
//! the threads does not.

#![cfg(target_os = "linux")]

mod dice;
mod live;
mod program;
mod terms;

use program::Case;
use std::time::{Duration, Instant};
use terms::Terms;

/// Runs cases of one configuration for a while.
fn check(terms: &Terms) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("MILLPOND_ORACLE_SEED") {
        return Case::run(terms, seed);
    }
    let time = Duration::from_millis(number("MILLPOND_ORACLE_SECONDS").map_or(700, |s| s * 1000 / 8));
    let (began, mut seed) = (Instant::now(), 1);
    while seed == 1 || began.elapsed() < time {
        Case::run(terms, seed);
        seed += 1;
    }
}

#[test]
fn one_thread_is_counted_exactly_including_peaks() {
    check(&Terms {
        threads: 1,
        ..Terms::plenty()
    });
}

#[test]
fn threads_with_plenty_of_memory() {
    check(&Terms::plenty());
}

#[test]
fn threads_with_tenants_and_a_budget() {
    check(&Terms {
        tenants: true,
        budget: true,
        ..Terms::plenty()
    });
}

#[test]
fn threads_that_do_not_see_contents_of_each_other() {
    check(&Terms {
        cleared: true,
        ..Terms::plenty()
    });
}

#[test]
fn threads_under_a_limit_that_rises_and_falls() {
    check(&Terms {
        limit: Some(24 << 20),
        moving_limit: true,
        waiting: true,
        ..Terms::plenty()
    });
}

#[test]
fn threads_that_run_short_and_wait() {
    check(&Terms {
        threads: 3,
        limit: Some(12 << 20),
        tenants: true,
        budget: true,
        waiting: true,
        ..Terms::plenty()
    });
}

#[test]
fn threads_over_a_source_that_fails() {
    check(&Terms {
        faults: 0.2,
        limit: Some(64 << 20),
        ..Terms::plenty()
    });
}

#[test]
fn threads_over_pages_with_aliases() {
    for faults in [0.0, 0.2] {
        check(&Terms {
            aliases: true,
            faults,
            limit: Some(64 << 20),
            ..Terms::plenty()
        });
    }
}

#[test]
fn threads_with_any_policy() {
    for name in millpond::engine::policies::names() {
        let terms = Terms {
            policy: name,
            limit: Some(1 << 30),
            steps: 80,
            rounds: 2,
            ..Terms::plenty()
        };
        for seed in 1..=2 {
            Case::run(&terms, seed);
        }
    }
}
