//! The live monitor: its samples, its callbacks, and its server.

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

/// Waits until a condition holds, and fails if it never does.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs as a child of a test, which selects the part to run.
#[test]
fn part() {
    match std::env::var(environment::PART).as_deref() {
        Ok("holds") => environment::holds(),
        Ok("forks") => environment::forks(),
        Ok(part) => panic!("there is no part {part}"),
        Err(_) => {}
    }
}
