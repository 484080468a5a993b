//! Locked memory and its limit. There is only one test, because a process has one count of locked memory.

#![cfg(target_os = "linux")]

mod support;

use millpond::engine::{Source, SourceError};
use millpond::{
    Host, Pinned,
    source::{is_pinned, pinned_bytes},
};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::without_provenance;
use support::memory::{is_stamped, stamp};
use support::process::{has_flag, status};

const PAGE: u64 = 16 << 10;
const CHILD: &str = "MILLPOND_TEST_CHILD";

fn source() -> Pinned {
    Host::builder()
        .page_bytes(PAGE)
        .build_pinned()
        .expect("any system can try")
}

fn pinned(address: u64) -> bool {
    is_pinned(without_provenance::<u8>(address as usize))
}

#[test]
fn locked_memory_is_counted_found_and_limited() {
    if std::env::var_os(CHILD).is_some() {
        return the_limit_names_itself();
    }
    let mut trial = source();
    match trial.take(64 * PAGE) {
        Ok(segment) => trial.give(segment),
        Err(error) => return eprintln!("skipped: {error}"),
    }
    committed_pages_are_locked();
    pages_that_stay_after_a_move_are_locked();
    each_mapping_of_a_page_is_locked();
    a_dropped_source_pins_nothing();
    // Root may lock any amount, so the limit has no effect.
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.env(CHILD, "1").args([
        "--exact",
        "locked_memory_is_counted_found_and_limited",
        "--nocapture",
    ]);
    if rustix::process::geteuid().is_root() {
        child.uid(65534).gid(65534);
    }
    match child.current_dir("/").status() {
        Ok(status) => assert!(status.success()),
        Err(error) => eprintln!("skipped, this test cannot be run by nobody: {error}"),
    }
}

fn committed_pages_are_locked() {
    let before = status("VmLck");
    let mut source = source();
    let range = source.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    assert!(!pinned(at));
    source.commit(&range, 0, 4 * PAGE, PAGE).expect("locked");
    assert!(has_flag(at, 4 * PAGE, "lo") && !has_flag(at, 5 * PAGE, "lo"));
    let seen = std::thread::spawn(move || (pinned(at), pinned(at + 4 * PAGE - 1), pinned(at + 4 * PAGE)));
    assert_eq!(seen.join().expect("a thread"), (true, true, false));
    assert_eq!(status("VmLck") - before, 4 * PAGE);
    assert_eq!(pinned_bytes(), 4 * PAGE);
    source.decommit(&range, PAGE, PAGE);
    assert!(pinned(at) && !pinned(at + PAGE) && pinned(at + 2 * PAGE));
    assert_eq!(status("VmLck") - before, 3 * PAGE);
    let segment = source.take(100).expect("locked");
    assert!(pinned(segment.address() + 99) && !pinned(segment.address() + 100));
    source.give(segment);
    source.release(range);
    assert_eq!((status("VmLck"), pinned_bytes()), (before, 0));
    let local = 5u8;
    assert!(!is_pinned(&local) && !is_pinned(std::ptr::null::<u8>()));
}

fn pages_that_stay_after_a_move_are_locked() {
    let before = status("VmLck");
    let mut source = source();
    let range = source.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    source.commit(&range, 0, 6 * PAGE, PAGE).expect("locked");
    stamp(&source, at + 2 * PAGE, 2 * PAGE, 9);
    source
        .move_pages((&range, 2 * PAGE), (&range, 20 * PAGE), 2 * PAGE)
        .expect("moves");
    assert!(is_stamped(&source, at + 20 * PAGE, 2 * PAGE, 9));
    assert!(has_flag(at, 2 * PAGE, "lo") && has_flag(at + 4 * PAGE, 2 * PAGE, "lo"));
    assert!(has_flag(at + 20 * PAGE, 2 * PAGE, "lo"));
    assert!(pinned(at + 20 * PAGE) && !pinned(at + 2 * PAGE) && pinned(at + 4 * PAGE));
    assert_eq!(status("VmLck") - before, 6 * PAGE);
    source.decommit(&range, 0, 2 * PAGE);
    source.decommit(&range, 4 * PAGE, 2 * PAGE);
    source.decommit(&range, 20 * PAGE, 2 * PAGE);
    assert_eq!(status("VmLck"), before);
    source.release(range);
}

fn each_mapping_of_a_page_is_locked() {
    let before = status("VmLck");
    let builder = Host::builder().page_bytes(PAGE).aliases(true);
    let mut source = builder.build_pinned().expect("any system can try");
    let range = source.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    source.commit(&range, 0, 4 * PAGE, PAGE).expect("locked");
    source
        .alias(&[(&range, 2 * PAGE, 2 * PAGE)], (&range, 20 * PAGE))
        .expect("locked");
    assert!(has_flag(at, 4 * PAGE, "lo") && has_flag(at + 20 * PAGE, 2 * PAGE, "lo"));
    assert!(pinned(at + 3 * PAGE) && pinned(at + 21 * PAGE));
    assert_eq!(
        (status("VmLck") - before, source.host().used_bytes()),
        (6 * PAGE, 4 * PAGE)
    );
    // Only the part that is a stale mapping ends.
    assert_eq!(source.unmap(at + PAGE, 2 * PAGE), 1);
    assert!(pinned(at + PAGE) && !pinned(at + 2 * PAGE) && pinned(at + 3 * PAGE) && pinned(at + 20 * PAGE));
    assert_eq!((status("VmLck") - before, pinned_bytes()), (5 * PAGE, 5 * PAGE));
    // The old mapping of the only page still exists when its range is released.
    let other = source.reserve(PAGE).expect("addresses");
    source.commit(&other, 0, PAGE, PAGE).expect("locked");
    source
        .alias(&[(&other, 0, PAGE)], (&range, 30 * PAGE))
        .expect("locked");
    let old = other.address();
    source.release(other);
    assert!(!pinned(old) && pinned(at + 30 * PAGE));
    drop(source);
    assert_eq!((status("VmLck"), pinned_bytes()), (before, 0));
}

fn a_dropped_source_pins_nothing() {
    let before = status("VmLck");
    let mut source = source();
    let range = source.reserve(8 * PAGE).expect("addresses");
    source.commit(&range, 0, 2 * PAGE, PAGE).expect("locked");
    let segment = source.take(PAGE).expect("locked");
    drop(source);
    assert!(!pinned(range.address()) && !pinned(segment.address()));
    assert_eq!((status("VmLck"), pinned_bytes()), (before, 0));
}

/// Runs in a child without the right to exceed the limit.
fn the_limit_names_itself() {
    let most = 16 * PAGE;
    let limit = rustix::process::Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).expect("a lower limit");
    let mut source = source();
    let range = source.reserve(64 * PAGE).expect("addresses");
    if source.take(32 * PAGE).is_ok() {
        return eprintln!("skipped: this process may lock what it likes");
    }
    source
        .commit(&range, 0, 10 * PAGE, PAGE)
        .expect("under the limit");
    let told = SourceError::Locked {
        requested: 8 * PAGE,
        locked: 10 * PAGE,
        limit: most,
    };
    assert!(
        told.is_out_of_memory() && told.to_string().contains("RLIMIT_MEMLOCK is 256 KiB"),
        "{told}"
    );
    assert_eq!(
        source.commit(&range, 10 * PAGE, 8 * PAGE, PAGE),
        Err(told.clone())
    );
    assert_eq!(source.take(8 * PAGE), Err(told));
    assert_eq!(
        (source.host().used_bytes(), pinned_bytes(), status("VmLck")),
        (10 * PAGE, 10 * PAGE, 10 * PAGE)
    );
    // At the limit, pages can still be moved.
    source
        .commit(&range, 10 * PAGE, 6 * PAGE, PAGE)
        .expect("to the byte");
    assert_eq!(
        source.move_pages((&range, 0), (&range, 30 * PAGE), 10 * PAGE),
        Ok(10)
    );
    assert_eq!(status("VmLck"), most);
    source.decommit(&range, 30 * PAGE, 10 * PAGE);
    let segment = source.take(10 * PAGE).expect("what was given back");
    source.give(segment);
}
