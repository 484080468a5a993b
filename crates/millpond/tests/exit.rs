//! The report of a process about its pools when it ends. Each case runs this program as a child process.

#![cfg(target_os = "linux")]

#[path = "support/child.rs"]
mod child;

use millpond::limits::{Limits, LimitsError};
use millpond::{
    Buffer, Ledger, Pool, Tracking,
    ledger::{LeakReport, Stack},
};
use std::collections::HashSet;
use std::process::Command;
use std::sync::Mutex;

/// Returns the child's standard error.
fn said(name: &str, conf: Option<&str>) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", name]);
    match conf {
        Some(conf) => command.env("MILLPOND_CONF", conf),
        None => command.env_remove("MILLPOND_CONF"),
    };
    let output = child::ends(&mut command).output().expect("a child");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    error
}

#[test]
fn live_blocks_are_reported_once_at_exit_in_debug_builds() {
    let error = said("alone_holds_blocks", None);
    if !cfg!(debug_assertions) {
        assert_eq!(error, "", "never in a release unless asked for");
        return;
    }
    assert_eq!(error.matches("millpond:").count(), 1, "{error}");
    assert!(
        error.contains("pool 'weights of the test' had 12.0 KiB live in 3 blocks"),
        "{error}"
    );
    assert_eq!(error.matches(": rows").count(), 1, "{error}");
    assert!(
        error.contains("in 2 blocks: rows") && error.contains(", oldest "),
        "{error}"
    );
    assert!(
        error.contains("in 1 block: columns") && error.contains("thread "),
        "{error}"
    );
    assert!(
        error.contains("in addition, 1.00 MiB in 1 block leaked on purpose"),
        "{error}"
    );
    if cfg!(feature = "stacks") {
        assert!(
            error.contains("alone_holds_blocks (") && error.contains("tests/exit.rs:"),
            "{error}"
        );
    }
}

#[test]
fn the_report_can_be_requested_and_disabled() {
    assert_eq!(said("alone_holds_blocks", Some("leak-report:off")), "");
    let asked = said("alone_holds_blocks", Some("leak-report:on"));
    assert!(asked.contains("12.0 KiB live in 3 blocks"), "{asked}");
    assert_eq!(said("alone_holds_blocks", Some("track:off")), "", "no account");
}

#[test]
fn nothing_is_reported_if_no_block_is_live() {
    assert_eq!(said("alone_gives_everything_back", Some("leak-report:on")), "");
}

#[test]
fn a_child_of_a_fork_does_not_report_its_parents_blocks() {
    let error = said("alone_forks", Some("leak-report:on"));
    assert_eq!(error.matches("millpond:").count(), 1, "{error}");
}

#[test]
fn threads_may_still_be_running_at_exit() {
    let error = said("alone_ends_with_threads_at_work", Some("leak-report:on"));
    assert!(error.matches("millpond:").count() <= 1, "{error}");
}

static HELD: Mutex<Vec<Buffer<u8>>> = Mutex::new(Vec::new());

fn hold(pool: &Pool, bytes: usize) {
    let block = pool.alloc_zeroed::<u8>(bytes).expect("room");
    HELD.lock().expect("no panic").push(block);
}

#[test]
#[ignore = "holds blocks to the end"]
fn alone_holds_blocks() {
    let pool = Pool::builder()
        .name("weights of the test")
        .host()
        .expect("a pool");
    {
        let _scope = millpond::tag("rows");
        // Both calls have one call site, even if the loop is unrolled.
        for _ in 0..std::hint::black_box(2) {
            hold(&pool, 4096);
        }
    }
    let _scope = millpond::tag("columns");
    hold(&pool, 4000);
    let _ = pool.alloc_zeroed::<u8>(1 << 20).expect("room").leak();
    let gone = Pool::host().expect("a pool");
    drop(gone.alloc_zeroed::<u8>(100).expect("room"));
}

#[test]
#[ignore = "for a process of its own"]
fn alone_gives_everything_back() {
    let pool = Pool::host().expect("a pool");
    let held: Vec<_> = (1..100)
        .map(|n| pool.alloc_zeroed::<u8>(n * 99).expect("room"))
        .collect();
    let _ = pool.alloc_zeroed::<u8>(100).expect("room").leak();
    drop(held);
}

#[test]
#[ignore = "for a process of its own"]
fn alone_forks() {
    let pool = Pool::host().expect("a pool");
    hold(&pool, 1000);
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made; the status is a local variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

#[test]
#[ignore = "for a process of its own"]
fn alone_ends_with_threads_at_work() {
    let pool = Pool::host().expect("a pool");
    for seed in 0..4usize {
        let pool = pool.clone();
        std::thread::spawn(move || {
            for round in 0.. {
                let bytes = (round * 7919 + seed) % 100_000 + 1;
                drop(pool.alloc_zeroed::<u8>(bytes));
            }
        });
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// This test runs with others in one process, because it only checks values.
#[test]
fn a_leak_check_reports_the_blocks_that_its_scope_left() {
    let pool = Pool::builder().track(None).host().expect("a pool");
    let before = pool.alloc_zeroed::<u8>(500).expect("room");
    let check = pool.leak_check();
    let outer = {
        let _scope = millpond::tag("left over");
        pool.alloc_zeroed::<u8>(2000).expect("room")
    };
    std::thread::scope(|scope| {
        scope.spawn(|| hold(&pool, 3000));
    });
    drop(before);
    let inner = pool.leak_check();
    drop(pool.alloc_zeroed::<u8>(10).expect("room"));
    assert!(inner.finish().is_empty());
    let report = check.finish();
    assert_eq!((report.blocks, report.groups[0].tag.name()), (1, "left over"));
    assert!(
        pool.ledger()
            .is_some_and(|ledger| ledger.tracking() == Tracking::All)
    );
    drop(outer);
    HELD.lock().expect("no panic").clear();
}

/// Small sizes, which the pool serves first and then the thread's cache, and a size that no cache keeps.
const SIZES: [usize; 4] = [64, 64, 64, 4 << 20];

/// Returns the number of different stacks, compared by their addresses.
fn stacks<'a>(of: impl Iterator<Item = Option<&'a Stack>>) -> usize {
    of.map(|stack| stack.map(Stack::addresses))
        .collect::<HashSet<_>>()
        .len()
}

#[test]
fn blocks_of_one_line_are_one_group_on_any_path_through_the_library() {
    let pool = Pool::builder().track(None).host().expect("a pool");
    pool.track(Some(Ledger::builder(Tracking::All).stacks(true)));
    let scope = Limits::new().leaked(0).pool(&pool).enter().expect("a scope");
    let mut held = Vec::new();
    for bytes in std::hint::black_box(SIZES) {
        held.push(pool.alloc_zeroed::<u8>(bytes).expect("room"));
    }
    let other = pool.alloc_zeroed::<u8>(64).expect("room");
    let leaks = pool.ledger().expect("an account").leaks();
    let of_one_line = leaks.iter().take(SIZES.len()).map(|leak| leak.stack());
    let ways = stacks(of_one_line);
    let groups = |report: &LeakReport| {
        let groups = report.groups.iter();
        groups.map(|group| group.blocks).collect::<Vec<_>>()
    };
    let report = pool.leak_report().expect("an account");
    let Err(LimitsError::Exceeded(exceeded)) = scope.end() else {
        panic!("blocks are held");
    };
    let at_peak = exceeded.usage.at_peak();
    if cfg!(feature = "stacks") {
        assert!(ways > 1, "the library took one way to all of them: {report}");
        assert_eq!(groups(&report), [4, 1], "{report}");
        assert_eq!(groups(&exceeded.usage.leaked), [4, 1], "{exceeded}");
        assert_eq!(groups(&at_peak), [4, 1], "{at_peak}");
        assert_eq!(
            report.bytes,
            leaks.iter().map(|leak| leak.bytes as u64).sum::<u64>()
        );
    } else {
        assert_eq!((ways, groups(&report)), (1, vec![5]), "{report}");
    }
    drop((held, other));
}

#[test]
fn a_dropped_leak_check_reports_to_standard_error() {
    let error = said("alone_checks", None);
    assert!(
        error.contains("at the end of a leak check, pool 'checked' had 2.00 KiB live in 1 block"),
        "{error}"
    );
}

#[test]
#[ignore = "for a process of its own"]
fn alone_checks() {
    let pool = Pool::builder()
        .name("checked")
        .leak_report(false)
        .host()
        .expect("a pool");
    let check = pool.leak_check();
    hold(&pool, 2048);
    drop(check);
}
