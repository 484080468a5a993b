//! A program whose allocator is the pool. It ends when it runs out of memory, and leaves a snapshot.

use crate::limits::{data, limit};
use crate::parts;
use millpond::tag;
use millpond_trace::history::{Flow, History};
use millpond_trace::recording::{End, Gauge, Kind};
use rustix::process::Resource;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Allocates memory like a program that does not expect to run out of it.
fn take_for_ever() {
    let _scope = tag("hoard");
    let mut hoard: Vec<Vec<u8>> = Vec::new();
    loop {
        hoard.push(vec![1; 100_000 + hoard.len()]);
    }
}

#[test]
#[ignore = "a child of another test"]
fn hoards_up_to_a_limit_of_the_pool() {
    take_for_ever();
}

#[test]
#[ignore = "a child of another test"]
fn hoards_up_to_a_limit_of_the_system() {
    limit(Resource::Data, data() + (128 << 20));
    take_for_ever();
}

/// Runs a program that is aborted, and opens the file that it has left.
fn aborted(name: &str, settings: &str) {
    let folder = std::env::temp_dir().join(format!("millpond-global-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("oom-1.mpr");
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command
        .args(["--ignored", "--exact", "--nocapture", "--test-threads=1"])
        .arg(format!("snapshots::{name}"))
        .env("MILLPOND_CONF", settings)
        .env("MILLPOND_OOM_SNAPSHOT", folder.join("oom-%n.mpr"))
        .env_remove("MILLPOND_RECORD");
    let output = parts::ends(&mut command).output().expect("a child");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{error}");
    let named = format!("all blocks: millpond report {}", file.display());
    assert!(error.contains(&named), "{error}");
    whole(&file);
    std::fs::remove_dir_all(&folder).expect("a folder");
}

fn whole(file: &Path) {
    let history = History::open(file, &millpond_trace::ReadOptions::default()).expect("it opens");
    assert_eq!(history.end, Some(End::Closed));
    let live = history.live_at(u64::MAX).expect("it is there");
    let (mut hoard, mut all) = (0, 0);
    for row in live.blocks() {
        all += row.bytes;
        if history.definitions.tag(row.tag) == "hoard" && (100_000..200_000).contains(&row.requested) {
            hoard += row.bytes;
        }
    }
    let (mut refused, mut allocated) = (0, 0);
    let walked = history.walk(|row, _| {
        refused += u64::from(row.kind == Kind::Refused);
        if row.kind == Kind::Gauge && row.tag == Gauge::Allocated as u32 {
            allocated += row.bytes;
        }
        Flow::On
    });
    walked.expect("it is there");
    assert_eq!((refused, all), (1, allocated));
    assert!(hoard > 20 << 20 && hoard * 10 > all * 8, "{hoard} of {all}");
}

#[test]
fn a_snapshot_is_written_before_the_program_aborts() {
    aborted("hoards_up_to_a_limit_of_the_pool", "limit:48MiB,track:all");
    aborted("hoards_up_to_a_limit_of_the_system", "track:all");
}
