//! Whole programs whose allocator is a pool: this one, and its children.

#![cfg(target_os = "linux")]

mod counted;
mod ends;
#[path = "../support/forking.rs"]
mod forking;
mod limits;
#[path = "../support/child.rs"]
mod parts;
mod pools;
#[cfg(feature = "record")]
mod snapshots;
mod work;
mod zeroed;

use millpond::{GlobalPool, PoolStats};
use std::process::{Command, Output};

#[global_allocator]
static POOL: GlobalPool = GlobalPool::new();

fn stats() -> PoolStats {
    POOL.pool().expect("it serves already").stats()
}

/// A block that shows foreign writes.
struct Stamped(Vec<u8>, u8);

impl Stamped {
    fn new(bytes: usize, stamp: u8) -> Self {
        Self(vec![stamp; bytes], stamp)
    }

    fn check(&self) {
        assert!(self.0.iter().all(|byte| *byte == self.1));
    }
}

/// Runs one ignored test of this program in a process of its own.
fn child(name: &str, change: impl FnOnce(&mut Command)) -> Output {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", name]);
    command.env_remove("MILLPOND_CONF");
    change(&mut command);
    let output = parts::ends(&mut command).output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{:?}\n{text}\n{error}",
        output.status
    );
    output
}
