//! The live monitor: what it samples, when it calls, what it serves and to whom.

#![cfg(target_os = "linux")]

#[path = "../support/child.rs"]
mod child;
mod environment;
mod http;
mod prometheus;
mod sampled;
mod served;
mod told;

use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Waits until something holds, and fails where it never does.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs as a child of a test, which says what it is to do.
#[test]
fn part() {
    match std::env::var(environment::PART).as_deref() {
        Ok("holds") => environment::holds(),
        Ok("forks") => environment::forks(),
        Ok(part) => panic!("there is no part {part}"),
        Err(_) => {}
    }
}
