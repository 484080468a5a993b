//! Programs that run out of memory, and invalid settings.

use crate::{POOL, Stamped, child, stats};
use millpond::profiler;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) fn limit(resource: Resource, bytes: u64) {
    let before = getrlimit(resource);
    let lower = Rlimit {
        current: Some(bytes),
        maximum: before.maximum,
    };
    setrlimit(resource, lower).expect("a lower limit");
}

/// Returns the bytes of this process that count against `RLIMIT_DATA`.
pub(crate) fn data() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kib: u64 = line
        .expect("VmData")
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .expect("a number");
    kib << 10
}

/// Allocates blocks of a size until the first failure. Returns the blocks.
fn take_all(bytes: usize, most: usize) -> Vec<Vec<u8>> {
    let mut held = Vec::new();
    held.try_reserve_exact(most).expect("room for the list");
    take_more(&mut held, bytes);
    held
}

/// Allocates blocks into a list that has room.
fn take_more(held: &mut Vec<Vec<u8>>, bytes: usize) {
    while held.len() < held.capacity() {
        let mut block = Vec::new();
        if block.try_reserve_exact(bytes).is_err() {
            break;
        }
        block.resize(bytes, 7);
        held.push(block);
    }
}

/// Runs out of memory with blocks of several sizes, and continues.
fn run_out(least: usize) {
    for bytes in [4 << 20, 100_000, 40_000, 2000, 64] {
        let most = 2 << 20;
        let held = take_all(bytes, most);
        let count = held.len();
        let intact = held.iter().all(|block| block.iter().all(|byte| *byte == 7));
        // A message needs memory.
        drop(held);
        assert!(intact);
        assert!(count * bytes >= least && count < most, "{count} of {bytes}");
        Stamped::new(least / 2, 1).check();
    }
    assert!(stats().refusals >= 5, "{:?}", stats());
    POOL.pool().expect("a pool").trim();
    Stamped::new(least / 2, 1).check();
}

#[test]
#[ignore = "a child of another test"]
fn runs_out_of_data() {
    limit(Resource::Data, data() + (96 << 20));
    run_out(16 << 20);
}

#[test]
#[ignore = "a child of another test"]
fn makes_blocks_smaller_where_there_is_no_more() {
    limit(Resource::Data, data() + (96 << 20));
    let larger = |n: u8| {
        let mut block = Vec::with_capacity(100_000);
        block.resize(40 * usize::from(n) + 1, n);
        block
    };
    let mut blocks: Vec<Vec<u8>> = (0..100).map(larger).collect();
    let mut smaller: Vec<Box<[u8]>> = Vec::with_capacity(blocks.len());
    let mut held = Vec::with_capacity(1 << 20);
    while let Some(block) = blocks.pop() {
        for bytes in [1 << 20, 100_000, 40_000, 2000, 64] {
            take_more(&mut held, bytes);
        }
        // The standard library aborts if this reallocation fails.
        smaller.push(block.into_boxed_slice());
    }
    let is_full = held.len() == held.capacity();
    drop(held);
    assert!(!is_full);
    for (block, n) in smaller.iter().zip((0..100u8).rev()) {
        assert_eq!(block.len(), 40 * usize::from(n) + 1);
        assert!(block.iter().all(|byte| *byte == n));
    }
}

#[test]
#[ignore = "a child of another test"]
fn is_watched_from_beside() {
    let asked = || stats().allocations;
    let sleeps = || sleeps_of("millpond-monito").unwrap_or(0);
    // The monitor starts on a thread of its own, before or after this function.
    let began = Instant::now();
    while sleeps() < 10 {
        assert!(began.elapsed().as_secs() < 60, "{} samples", sleeps());
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = sleeps();
    while sleeps() < before + 10 {
        let asked_before = asked();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(asked(), asked_before, "in {} samples", sleeps() - before);
        assert!(began.elapsed().as_secs() < 60, "{} samples", sleeps() - before);
    }
}

/// Returns how often a thread of this process has slept, or `None` if there is no such thread.
fn sleeps_of(thread: &str) -> Option<u64> {
    let read = |task: &Path, file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let task = tasks
        .map(|task| task.path())
        .find(|task| read(task, "comm").trim_end() == thread)?;
    let status = read(&task, "status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Some(line.expect("a count").trim().parse().expect("a number"))
}

#[test]
#[ignore = "a child of another test"]
fn runs_out_of_its_share() {
    let most = stats().reserved.peak + (1 << 20);
    run_out(8 << 20);
    assert!(
        stats().reserved.peak >= most && stats().reserved.peak < 96 << 20,
        "{:?}",
        stats()
    );
}

#[test]
#[ignore = "a child of another test"]
fn has_few_addresses() {
    assert_eq!(getrlimit(Resource::As).current, Some(1 << 30));
    let threads: Vec<_> = (0..8)
        .map(|n| std::thread::spawn(move || Stamped::new(8 << 20, n).check()))
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    let held = take_all(1 << 20, 4096);
    assert!(held.len() > 200 && held.len() < 1024, "{}", held.len());
}

#[test]
fn a_program_survives_running_out_of_memory() {
    child("limits::runs_out_of_data", |_| {});
    child("limits::makes_blocks_smaller_where_there_is_no_more", |_| {});
    // An observer does not end it either.
    child("limits::runs_out_of_data", |command| {
        command.env("MILLPOND_MONITOR", "1,interval=10ms");
    });
    let total = rustix::system::sysinfo();
    let total = total.totalram as u64 * u64::from(total.mem_unit);
    let share = f64::from(64 << 20) / total as f64;
    child("limits::runs_out_of_its_share", |command| {
        command.env("MILLPOND_CONF", format!("memory-fraction:{share:.6}"));
    });
}

#[test]
fn a_monitor_allocates_nothing_from_the_programs_pool() {
    child("limits::is_watched_from_beside", |command| {
        command.env("MILLPOND_MONITOR", "1,interval=10ms");
    });
}

#[test]
fn a_program_runs_with_few_addresses() {
    child("limits::has_few_addresses", |command| {
        // SAFETY: the child only sets a limit of its own.
        unsafe {
            command.pre_exec(|| {
                limit(Resource::As, 1 << 30);
                Ok(())
            })
        };
    });
}

#[test]
#[ignore = "a child of another test"]
fn is_profiled_with_few_addresses() {
    let held = Stamped::new(4 << 20, 1);
    profiler().enable();
    let more = Stamped::new(64 << 20, 2);
    profiler().disable();
    let most = Stamped::new(16 << 20, 3);
    [held, more, most].iter().for_each(Stamped::check);
}

/// A small part of the address space is for the tables of pools. The figures of the profiler must not fill it, because pools without room
/// for tables do not grow.
#[test]
fn a_program_with_few_addresses_can_be_profiled() {
    child("limits::is_profiled_with_few_addresses", |command| {
        // SAFETY: the child only sets a limit of its own.
        unsafe {
            command.pre_exec(|| {
                limit(Resource::As, 320 << 20);
                Ok(())
            })
        };
    });
}

#[test]
#[ignore = "a child of another test"]
fn is_badly_configured() {
    let error = POOL.configuration_error().expect("an error").to_string();
    assert!(error.contains("hande"), "{error}");
    Stamped::new(10 << 20, 1).check();
}

#[test]
#[ignore = "a child of another test"]
fn is_well_configured() {
    assert!(POOL.configuration_error().is_none());
}

/// Returns the names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the system tells");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.expect("an entry").path().join("comm")).unwrap_or_default()
    };
    tasks.map(|task| name(task).trim().to_owned()).collect()
}

#[test]
#[ignore = "a child of another test"]
fn is_told_its_limit() {
    let pool = POOL.pool().expect("made");
    assert_eq!(pool.limit(), Some(700 << 20));
    let held = take_all(1 << 20, 4096);
    assert!(held.len() > 600 && held.len() <= 700, "{}", held.len());
    assert!(
        !threads().iter().any(|name| name == "millpond-keeper"),
        "{:?}",
        threads()
    );
}

#[test]
#[ignore = "a child of another test"]
fn is_told_to_give_back() {
    // The system keeps 15 letters of a name.
    assert!(
        threads().iter().any(|name| name == "millpond-keeper"),
        "{:?}",
        threads()
    );
    drop(Stamped::new(32 << 20, 1));
    let held = stats().reserved.current;
    let wait = Instant::now();
    while stats().reserved.current + (16 << 20) > held {
        assert!(wait.elapsed().as_secs() < 60, "{:?}", stats());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_limit_in_the_environment_replaces_the_default() {
    child("limits::is_told_its_limit", |command| {
        command.env("MILLPOND_CONF", "limit:700MiB");
        // SAFETY: the child only sets a limit of its own.
        unsafe {
            command.pre_exec(|| {
                limit(Resource::As, 1 << 30);
                Ok(())
            })
        };
    });
    child("limits::is_told_to_give_back", |command| {
        command.env("MILLPOND_CONF", "trim-every:20ms,decay:2");
    });
}

#[test]
fn invalid_settings_are_reported_once() {
    let told = child("limits::is_badly_configured", |command| {
        command.env("MILLPOND_CONF", "hande:4MiB");
    });
    let told = String::from_utf8(told.stderr).expect("text");
    assert_eq!(told.matches("MILLPOND_CONF").count(), 1, "{told}");
    let silent = child("limits::is_well_configured", |command| {
        command.env("MILLPOND_CONF", "handle:4MiB");
    });
    assert_eq!(String::from_utf8(silent.stderr).expect("text"), "");
}
