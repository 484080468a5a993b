//! Memory pressure under real limits of the system, each in a child process of its own.

#![cfg(target_os = "linux")]

mod support;

use millpond::engine::Source;
use millpond::pressure::{
    Cause, Level, LimitKind, Readings, Scope, Share, Stall, StallKind, Steps, Thresholds, Turn,
};
use millpond::{
    Host, pressure,
    pressure::{Pressure, Watch},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::memory::stamp;
use support::process::status;

const MIB: u64 = 1 << 20;
/// The variable that tells a child its role.
const CHILD: &str = "MILLPOND_PRESSURE_CHILD";

/// Returns thresholds that ignore stalls, which other programs on the machine cause.
fn deaf() -> Thresholds {
    let never = Steps::new(Share::WHOLE, Share::WHOLE, Share::WHOLE).expect("steps");
    Thresholds::default().some_stalled(never).all_stalled(never)
}

fn ask() -> Pressure {
    Readings::system().pressure(&deaf())
}

/// Runs this test again in a child. Returns true in the child.
fn is_child(test: &str, argument: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("a path");
    let outcome = support::child::ends(&mut Command::new(own))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, argument)
        .output()
        .expect("a child");
    let text = [outcome.stdout, outcome.stderr].concat();
    let lines = String::from_utf8_lossy(&text);
    let skipped = lines.lines().filter(|line| line.starts_with("skipped: "));
    skipped.for_each(|line| eprintln!("{line}"));
    assert!(
        outcome.status.success(),
        "{}: {}",
        outcome.status,
        String::from_utf8_lossy(&text)
    );
    false
}

#[test]
fn a_limit_on_addresses_binds() {
    if !is_child("a_limit_on_addresses_binds", "") {
        return;
    }
    let before = getrlimit(Resource::As);
    let limit = status("VmSize") + 512 * MIB;
    setrlimit(
        Resource::As,
        Rlimit {
            current: Some(limit),
            maximum: before.maximum,
        },
    )
    .expect("a lower limit");
    let now = ask();
    let bound = now.limit().expect("a limit");
    assert_eq!((bound.kind, bound.bytes), (LimitKind::AddressSpace, limit));
    assert!(bound.available().abs_diff(512 * MIB) < 8 * MIB, "{bound:?}");
    let at_first = now.level();
    let mut host = Host::builder().build().expect("ordinary pages");
    let range = host.reserve(512 * MIB - 16 * MIB).expect("addresses");
    let now = ask();
    let bound = now.limit().expect("a limit");
    assert_eq!(bound.kind, LimitKind::AddressSpace);
    assert!(bound.available() < 17 * MIB, "{bound:?}");
    assert!(now.level() >= Level::High, "{now:?}");
    assert_eq!(now.cause(), Cause::Limit(LimitKind::AddressSpace));
    host.release(range);
    assert_eq!(ask().level(), at_first);
}

/// A cgroup with a limit, which is removed on drop.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, bytes: u64) -> Result<Self, String> {
        let now = pressure();
        let above = now.cgroup().ok_or("no cgroup counts this process's memory")?;
        let folder = above.join(format!("millpond-{name}-{}", std::process::id()));
        let said = |what: &str, error| format!("{what} {}: {error}", folder.display());
        fs::create_dir(&folder).map_err(|error| said("making", error))?;
        let group = Self(folder.clone());
        let file = ["memory.max", "memory.limit_in_bytes"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|path| path.exists())
            .ok_or_else(|| format!("{} has no limit to set", folder.display()))?;
        fs::write(file, bytes.to_string()).map_err(|error| said("limiting", error))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A child that has just ended is counted for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn the_limit_of_a_cgroup_binds_and_is_reported() {
    let test = "the_limit_of_a_cgroup_binds_and_is_reported";
    if std::env::var_os(CHILD).is_none() {
        match Group::new("limit", 96 * MIB) {
            Ok(group) => drop(is_child(test, group.0.to_str().expect("text"))),
            Err(why) => eprintln!("skipped: {why}"),
        }
        return;
    }
    let folder = PathBuf::from(std::env::var(CHILD).expect("a folder"));
    if let Err(error) = fs::write(folder.join("cgroup.procs"), "0") {
        return eprintln!("skipped: {} cannot be entered: {error}", folder.display());
    }
    inside(&folder);
}

/// Writes a number of MiB, with little memory.
fn fill(path: &Path, mib: usize) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let piece = vec![1; MIB as usize];
    (0..mib).try_for_each(|_| file.write_all(&piece))
}

/// Reads the whole file, with little memory.
fn drain(path: &Path) -> io::Result<u64> {
    io::copy(&mut fs::File::open(path)?, &mut io::sink())
}

/// Returns the microseconds in which some task of the machine waited for memory.
fn stalled() -> u64 {
    let now = pressure();
    let some = |stall: &&Stall| stall.scope == Scope::System && stall.kind == StallKind::Some;
    now.stalls()
        .iter()
        .find(some)
        .map_or(0, |stall| stall.total_micros)
}

#[test]
fn stalls_are_reported_as_they_happen() {
    let test = "stalls_are_reported_as_they_happen";
    if std::env::var_os(CHILD).is_none() {
        match Group::new("stalls", 24 * MIB) {
            Ok(group) => drop(is_child(test, group.0.to_str().expect("text"))),
            Err(why) => eprintln!("skipped: {why}"),
        }
        return;
    }
    let folder = PathBuf::from(std::env::var(CHILD).expect("a folder"));
    let at_least = Share::hundredths(10);
    let steps = Steps::new(at_least, at_least, Share::WHOLE).expect("steps");
    let never = Steps::new(Share::WHOLE, Share::WHOLE, Share::WHOLE).expect("steps");
    // The watch checks one time, and then only when it is woken.
    let watch = Watch::builder()
        .thresholds(
            Thresholds::default()
                .used(never)
                .some_stalled(steps)
                .all_stalled(never),
        )
        .interval(Duration::from_secs(3600))
        .start()
        .expect("a watch");
    let (sender, told) = std::sync::mpsc::sync_channel(8);
    let _subscription = watch.add(Turn::Tell, move |change| {
        let _ = sender.try_send(change.cause);
    });
    let start = Instant::now();
    let means = loop {
        match watch.means() {
            Some(means) => break means,
            None => assert!(start.elapsed() < Duration::from_secs(30), "never looked"),
        }
    };
    if means.trigger != Ok(Scope::System) {
        return eprintln!("skipped: the system tells of stalls by {:?}", means.trigger);
    }
    if watch.level() != Level::Low {
        return eprintln!("skipped: the machine stalls already");
    }
    if fs::write(folder.join("cgroup.procs"), "0").is_err() {
        return eprintln!("skipped: {} cannot be entered", folder.display());
    }
    let before = stalled();
    let path = std::env::temp_dir().join(format!("millpond-pages-{}", std::process::id()));
    let start = Instant::now();
    let cause = loop {
        // The cgroup may not have all of these pages, so the thread waits until some are reclaimed.
        let read = fill(&path, 64).and_then(|()| drain(&path));
        if let Ok(cause) = told.try_recv() {
            break Some(cause);
        }
        if read.is_err() || start.elapsed() > Duration::from_secs(10) {
            break told.try_recv().ok();
        }
    };
    let _ = fs::remove_file(&path);
    match cause {
        Some(cause) => assert!(
            matches!(
                cause,
                Cause::Trigger(Scope::System) | Cause::Stall(Scope::System, _)
            ),
            "{cause:?}"
        ),
        None => eprintln!(
            "skipped: {} microseconds of stalls were too few",
            stalled() - before
        ),
    }
}

fn inside(folder: &Path) {
    let now = ask();
    let bound = now.limit().expect("a limit");
    assert!(
        matches!(bound.kind, LimitKind::CgroupMax | LimitKind::CgroupV1),
        "{bound:?}"
    );
    assert_eq!((bound.bytes, bound.folder.as_deref()), (96 * MIB, Some(folder)));
    assert_eq!((now.cgroup(), now.level()), (Some(folder), Level::Low), "{now:?}");

    let (sender, told) = std::sync::mpsc::sync_channel(8);
    let watch = Watch::builder()
        .thresholds(deaf())
        .interval(Duration::from_millis(20))
        .calm(Duration::from_millis(100))
        .start()
        .expect("a watch");
    // A stall of the machine for another reason is reported too, whatever the limit.
    let stalled = Arc::new(AtomicBool::new(false));
    let by_stall = Arc::clone(&stalled);
    let _subscription = watch.add(Turn::Trim, move |change| {
        if matches!(change.cause, Cause::Trigger(_) | Cause::Stall(..)) {
            by_stall.store(true, Ordering::Relaxed);
        }
        let _ = sender.try_send(change.to);
    });
    let mut host = Host::builder().page_bytes(4096).build().expect("ordinary pages");
    let range = host.reserve(128 * MIB).expect("addresses");
    let mut at = 0;
    // The level must become high before the system kills the process.
    while watch.level() < Level::High {
        host.commit(&range, at, MIB, MIB).expect("memory");
        stamp(&host, range.address() + at, MIB, 1);
        at += MIB;
        let touched = Instant::now();
        while watch.level() < Level::High && touched.elapsed() < Duration::from_millis(25) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(at < 96 * MIB, "nobody said anything: {:?}", ask());
    }
    if at <= 64 * MIB && stalled.load(Ordering::Relaxed) {
        return eprintln!("skipped: the machine was stalling before the limit was near");
    }
    assert!(at > 64 * MIB, "too early: {:?}", watch.last());
    let first = told.recv_timeout(Duration::from_secs(10)).expect("a call");
    assert!(first >= Level::Medium);
    host.release(range);
    let mut last = first;
    while last != Level::Low {
        last = told.recv_timeout(Duration::from_secs(10)).expect("a call");
    }
}
