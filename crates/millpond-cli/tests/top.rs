//! Tests `millpond top` with processes that use the library.
#![cfg(feature = "top")]

mod support;

use millpond::{Monitor, Pool};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PART: &str = "MILLPOND_TEST_TOP_PART";

/// A folder that is removed when it is dropped.
struct Runtime(PathBuf);

impl Runtime {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millpond-top-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn socket(&self, process: u32) -> PathBuf {
        self.0.join(format!("millpond/{process}.sock"))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs as a child of a test. Holds memory until its standard input ends.
#[test]
fn part() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    let pool = Pool::builder()
        .name("held-by-a-child")
        .limit(16 << 20)
        .host()
        .expect("a pool");
    let held = pool.alloc_zeroed::<u8>(15 << 20).expect("memory");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(held);
}

/// A child that is ended with the test.
struct Running(Child);

impl Running {
    fn start(runtime: &Runtime) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "part"])
            .env(PART, "1")
            .env("MILLPOND_MONITOR", "1,interval=20ms")
            .env("RANK", "5")
            .env("XDG_RUNTIME_DIR", &runtime.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a child");
        let socket = runtime.socket(child.id());
        wait_for("the socket", || socket.exists());
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `millpond top` with these arguments and this folder of sockets. Returns exit code, stdout and stderr.
fn top(runtime: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let args = [&["top"], args].concat();
    let output = support::command(&args)
        .env("XDG_RUNTIME_DIR", runtime)
        .output()
        .expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_process_can_be_observed_from_outside_without_effect() {
    let runtime = Runtime::new("child");
    let child = Running::start(&runtime);
    let process = child.0.id().to_string();
    let mut frame = String::new();
    wait_for("the pool, and its warning", || {
        let (code, out, error) = top(&runtime.0, &[&process, "--once"]);
        assert_eq!(code, Some(0), "{error}");
        frame = out;
        frame.contains("held-by-a-child") && frame.contains("! held-by-a-child: ")
    });
    for part in [
        format!("pid {process}"),
        "rank 5".into(),
        "15.0 MiB".into(),
        "of its limit is reserved".into(),
    ] {
        assert!(frame.contains(&part), "{part}\n{frame}");
    }
    assert!(!frame.contains('\u{1b}'), "plain text: {frame:?}");
    let (_, list, _) = top(&runtime.0, &[]);
    assert!(list.contains(&process) && list.contains("15.0 MiB"), "{list}");
    let (_, text, _) = top(&runtime.0, &["--json"]);
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let of = list
        .as_array()
        .expect("a list")
        .iter()
        .find(|of| of["id"] == child.0.id());
    let of = of.expect("it is there");
    assert_eq!(
        (of["rank"].as_str(), of["allocated"].as_u64()),
        (Some("5"), Some(15 << 20))
    );
    let socket = runtime.socket(child.0.id());
    for target in [process.as_str(), socket.to_str().expect("UTF-8")] {
        let (code, text, _) = top(&runtime.0, &[target, "--json"]);
        let stats: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (code, stats["pools"][0]["name"].as_str()),
            (Some(0), Some("held-by-a-child"))
        );
    }
}

#[test]
fn a_killed_process_is_reported_as_gone() {
    let runtime = Runtime::new("killed");
    let child = Running::start(&runtime);
    let (process, socket) = (child.0.id().to_string(), runtime.socket(child.0.id()));
    drop(child);
    assert!(socket.exists(), "nobody was there to take it away");
    let (code, out, error) = top(&runtime.0, &[&process, "--once"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(
        error.contains("nothing listens there") && error.contains("MILLPOND_MONITOR=1"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    let (code, list, _) = top(&runtime.0, &["--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let seen = list
        .as_array()
        .expect("a list")
        .iter()
        .any(|of| of["id"].as_u64() == process.parse().ok());
    assert!(code == Some(0) && !seen);
    // The next process removes the stale socket.
    let other = Running::start(&runtime);
    assert!(!socket.exists());
    drop(other);
}

#[test]
fn a_process_can_be_named_by_its_address() {
    let runtime = Runtime::new("address");
    let monitor = Monitor::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .rank("11")
        .start()
        .expect("a monitor");
    let address = monitor.address().expect("an address").to_string();
    let (code, frame, error) = top(&runtime.0, &[&address, "--once"]);
    assert!(code == Some(0) && frame.contains("rank 11"), "{frame}{error}");
    drop(monitor);
    let (code, _, error) = top(&runtime.0, &[&address, "--once"]);
    assert!(
        code == Some(2) && error.contains("nothing listens there"),
        "{error}"
    );
}

#[test]
fn targets_without_a_process_are_refused() {
    let runtime = Runtime::new("wrong");
    let file = runtime.0.join("file");
    std::fs::write(&file, "").expect("a file");
    for (target, why) in [
        ("firefox", "names no process"),
        ("/nowhere/at/all.sock", "nothing listens there"),
        (file.to_str().expect("UTF-8"), "nothing listens there"),
    ] {
        let (code, out, error) = top(&runtime.0, &[target, "--once"]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{target}");
        assert!(
            error.contains(why) && error.lines().count() == 1,
            "{target}: {error}"
        );
    }
}
