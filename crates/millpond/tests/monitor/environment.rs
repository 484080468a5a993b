//! `MILLPOND_MONITOR` in processes that do not use monitors themselves.

use super::http::{get, get_by_socket};
use super::{MIB, child, wait_for};
use millpond::{Monitor, Pool};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const PART: &str = "MILLPOND_TEST_MONITOR_PART";

/// A folder that is removed on drop.
struct Runtime(PathBuf);

impl Runtime {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millpond-monitor-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Holds memory until its standard input ends.
pub(crate) fn holds() {
    let pool = Pool::builder().name("a child's").host().expect("a pool");
    let held = pool.alloc_zeroed::<u8>(5 << 20).expect("memory");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(held);
}

fn start(part: &str, said: &str, runtime: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "part", "--nocapture"])
        .env(PART, part)
        .env("MILLPOND_MONITOR", said)
        .env("XDG_RUNTIME_DIR", runtime)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    child::ends(&mut command).spawn().expect("a child")
}

/// Ends a child successfully and returns its output.
fn end(mut child: Child) -> String {
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    told
}

fn pool_of(stats: &str) -> Option<u64> {
    let stats: Value = serde_json::from_str(stats).expect("JSON");
    let pools = stats["pools"].as_array().expect("a list");
    pools.iter().find(|of| of["name"] == "a child's")?["allocated"].as_u64()
}

#[test]
fn a_program_without_monitors_is_monitored_by_the_environment() {
    let runtime = Runtime::new("socket");
    let child = start("holds", "1,interval=20ms", &runtime.0);
    let path = runtime.0.join(format!("millpond/{}.sock", child.id()));
    wait_for("the socket", || path.exists());
    wait_for("its memory", || {
        pool_of(&get_by_socket(&path, "/stats").body) == Some(5 * MIB)
    });
    let told = end(child);
    assert!(!told.contains("millpond:"), "{told}");
    assert!(!path.exists(), "the socket goes with the process");
}

#[test]
fn a_port_that_the_system_chose_is_printed() {
    let runtime = Runtime::new("port");
    let mut child = start("holds", "127.0.0.1:0,interval=20ms", &runtime.0);
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let address = line
        .trim()
        .strip_prefix("millpond: the monitor is at http://")
        .expect("the address");
    let address = address.parse().expect("an address");
    wait_for("its memory", || {
        pool_of(&get(address, "/stats").body) == Some(5 * MIB)
    });
    end(child);
    assert!(
        std::fs::read_dir(&runtime.0).expect("there").next().is_none(),
        "no socket was asked for"
    );
}

#[test]
fn a_wrong_address_in_the_environment_is_reported_once() {
    let runtime = Runtime::new("bad");
    let blocked = runtime.0.join("file");
    std::fs::write(&blocked, "").expect("a file");
    for (said, why) in [
        ("yes", "'yes' is not an address with a port"),
        ("1,interval=soon", "500ms"),
        ("0.0.0.0:9", "0.0.0.0:9 is not a loopback address"),
    ] {
        let child = start("holds", said, &runtime.0);
        // The message is written by another thread.
        std::thread::sleep(Duration::from_millis(300));
        let told = end(child);
        let lines: Vec<&str> = told
            .lines()
            .filter(|line| line.starts_with("millpond: the monitor was not started: "))
            .collect();
        assert!(lines.len() == 1 && lines[0].contains(why), "{said}: {told}");
    }
    for said in ["0", "off", ""] {
        let told = end(start("holds", said, &runtime.0));
        assert!(!told.contains("millpond:"), "{said}: {told}");
    }
    assert!(!runtime.0.join("millpond").exists());
}

/// Runs a monitor in the child of a fork.
pub(crate) fn forks() {
    let pool = Pool::builder().name("before").host().expect("a pool");
    let monitor = Monitor::builder()
        .interval(Duration::from_millis(10))
        .socket()
        .start()
        .expect("a monitor");
    let path = monitor.socket().expect("a socket").to_owned();
    for _ in 0..20 {
        // SAFETY: the child only uses functions that are safe after a fork, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call takes only a number.
            unsafe { libc::alarm(10) };
            let mut fine = !monitor.is_running() && monitor.last().is_none() && monitor.report().samples == 0;
            fine &= monitor.timeline().series.is_empty() && monitor.passed().is_empty();
            drop(monitor);
            fine &= path.exists();
            let own = Monitor::builder()
                .interval(Duration::from_millis(10))
                .socket()
                .start()
                .expect("its own");
            fine &= own.socket().is_some_and(|own| own != path && own.exists());
            fine &= own.stop().samples >= 2 && pool.stats().allocations == 0;
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child that was just made; the status is a local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
    assert!(monitor.is_running() && path.exists());
    drop(monitor);
    assert!(!path.exists());
}

#[test]
fn the_child_of_a_fork_does_not_affect_its_parents_monitor() {
    let runtime = Runtime::new("fork");
    let told = end(start("forks", "", &runtime.0));
    assert!(!told.contains("millpond:"), "{told}");
}
