//! Recordings of programs that are killed, and of threads with more events than fit. The readable part is correct, and
//! losses are reported.

#![cfg(target_os = "linux")]

#[path = "support/child.rs"]
mod parts;

use millpond::{Pool, Recorder, Tracking, mark, record::RecordStacks, tag};
use millpond_trace::history::{Flow, History};
use millpond_trace::recording::{End, Gauge, Kind, Row};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PATH: &str = "MILLPOND_TEST_RECORDING";
const THREADS: u64 = 3;

/// A process has one recording at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("millpond-killed-{}-{name}.mpr", std::process::id())))
    }

    fn open(&self) -> History {
        History::open(&self.0, &millpond_trace::ReadOptions::default()).expect("it opens")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Pseudo-random numbers, which make every run a different program.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Allocates and frees under a tag of its own, and sometimes records a mark with its own count of held bytes.
fn work(pool: &Pool, number: u64) {
    let _scope = tag(&format!("thread {number}"));
    let mut random = Random(number + 1 + u64::from(std::process::id()));
    let mut held = Vec::new();
    let mut bytes = 0_u64;
    for round in 1_u64.. {
        if held.len() < 10 || held.len() < 300 && random.below(2) == 0 {
            let len = 1 + random.below(40_000) as usize;
            held.push(pool.alloc_zeroed::<u8>(len).expect("room"));
            bytes += len as u64;
        } else {
            let at = random.below(held.len() as u64) as usize;
            bytes -= held.swap_remove(at).len() as u64;
        }
        if round % 64 == 0 {
            mark(&format!("thread {number}: {bytes} in {}", held.len()));
        }
        // The rate is limited so that a busy machine can write the events.
        if round % 256 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
#[ignore = "a child of another test, which kills it"]
fn works_until_it_is_killed() {
    let path = std::env::var_os(PATH).expect("a path");
    let recorder = Recorder::builder()
        .stacks(RecordStacks::Bytes(256 << 10))
        .sums_every(Some(Duration::from_millis(5)))
        .start(Path::new(&path))
        .expect("a file");
    println!("\nrecorded");
    let pools = ["one", "two"].map(|name| {
        let builder = Pool::builder().name(name).track(None::<Tracking>);
        builder.host().expect("addresses")
    });
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let pool = &pools[number as usize % 2];
            scope.spawn(move || work(pool, number));
        }
    });
    drop(recorder);
}

/// The blocks of one thread, from the rows of a recording.
#[derive(Default)]
struct Held {
    blocks: HashMap<u64, u64>,
    bytes: u64,
}

/// Compares every mark with the rows before it. Returns the number of marks.
fn check(history: &History) -> u64 {
    let mut held: HashMap<String, Held> = HashMap::new();
    let mut marks = 0;
    let walked = history.walk(|row, text| {
        let of = history.definitions.tag(row.tag);
        match row.kind {
            Kind::Alloc if of.starts_with("thread ") => {
                let held = held.entry(of.to_owned()).or_default();
                assert_eq!(held.blocks.insert(row.id, row.requested), None);
                held.bytes += row.requested;
            }
            Kind::Free if of.starts_with("thread ") => {
                let held = held.get_mut(of).expect("it has allocated");
                assert_eq!(held.blocks.remove(&row.id), Some(row.requested));
                held.bytes -= row.requested;
            }
            Kind::Mark => {
                let (who, told) = text.and_then(|text| text.split_once(": ")).expect("its words");
                let held = held.get(who).expect("it has allocated");
                assert_eq!(
                    told,
                    format!("{} in {}", held.bytes, held.blocks.len()),
                    "of {who} at {}",
                    row.time
                );
                marks += 1;
            }
            _ => {}
        }
        Flow::On
    });
    walked.expect("what was there when it was opened");
    marks
}

/// A program that is killed at any moment leaves a file that opens. The marks of each of its threads agree with the
/// rows before them, and the file shows that it is truncated.
#[test]
fn the_readable_part_of_a_killed_programs_recording_is_correct() {
    let mut random = Random(u64::from(std::process::id()));
    let (mut marks, mut most) = (0, 0);
    for round in 0..20 {
        let file = Scratch::new(&format!("round-{round}"));
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command
            .args(["--ignored", "--exact", "--nocapture", "works_until_it_is_killed"])
            .env(PATH, &file.0)
            .env_remove("MILLPOND_RECORD")
            .stdout(Stdio::piped());
        let mut child = parts::ends(&mut command).spawn().expect("a child");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let begun = out.lines().map_while(Result::ok).any(|line| line == "recorded");
        assert!(begun, "it has begun");
        std::thread::sleep(Duration::from_millis(random.below(900)));
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        let history = file.open();
        let bytes = std::fs::metadata(&file.0).expect("a file").len();
        assert!(
            matches!(history.end, Some(End::Cut { bytes: read }) if read <= bytes),
            "{:?} of {bytes}",
            history.end
        );
        assert_eq!(history.lost, 0, "there was room for all");
        let found = check(&history);
        (marks, most) = (marks + found, most.max(found));
    }
    assert!(most > 20 && marks > 100, "{marks} marks, {most} in one file");
}

/// Several threads produce more events than fit. The sum of rows and losses is the number of all events, and allocated
/// bytes are exact. Frees are only counted: if the allocation was lost, the file has the bytes of the previous block at that
/// address.
#[test]
fn dropped_events_are_counted_to_the_byte() {
    let _alone = alone();
    let file = Scratch::new("lost");
    let recorder = Recorder::builder()
        .ring_bytes(0)
        .sums_every(Some(Duration::from_millis(2)))
        .start(&file.0)
        .expect("a file");
    let pool = Pool::builder().name("fast").track(None::<Tracking>);
    let pool = pool.host().expect("addresses");
    let [allocated, freed, events] = [const { AtomicU64::new(0) }; 3];
    let kept: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (pool, allocated, freed, events) = (&pool, &allocated, &freed, &events);
                scope.spawn(move || {
                    let mut random = Random(number);
                    for _ in 0..30_000 {
                        let len = 1 + random.below(1000);
                        drop(pool.alloc_zeroed::<u8>(len as usize).expect("room"));
                        allocated.fetch_add(len, Ordering::Relaxed);
                        freed.fetch_add(len, Ordering::Relaxed);
                        events.fetch_add(2, Ordering::Relaxed);
                    }
                    allocated.fetch_add(777, Ordering::Relaxed);
                    events.fetch_add(1, Ordering::Relaxed);
                    pool.alloc_zeroed::<u8>(777).expect("room")
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let report = recorder.stop().expect("it is written");
    let history = file.open();
    assert_eq!(history.end, Some(End::Closed));
    assert!(report.lost > 0 && history.lost == report.lost, "{report:?}");
    let pools = history.definitions.pools();
    let number = pools
        .iter()
        .find(|(_, pool)| pool.name == "fast")
        .expect("it is defined")
        .0;
    let [mut told_allocated, mut told] = [0; 2];
    let mut gauges: HashMap<u32, u64> = HashMap::new();
    let walked = history.walk(|row: &Row, _| {
        let of_pool = row.pool == number;
        match row.kind {
            Kind::Alloc if of_pool => {
                told_allocated += row.requested;
                told += 1;
            }
            // A block that was replaced by another one at its address has a free without a thread.
            Kind::Free if of_pool && row.thread != 0 => told += 1,
            Kind::Lost => {
                told_allocated += row.requested;
                told += row.id;
            }
            Kind::Gauge if of_pool => drop(gauges.insert(row.tag, row.bytes)),
            _ => {}
        }
        Flow::On
    });
    walked.expect("the file is there");
    let [allocated, freed, events] = [allocated, freed, events].map(AtomicU64::into_inner);
    assert_eq!(told_allocated, allocated);
    // Events of the pool's source may have been lost as well.
    assert!((events..events + 100).contains(&told), "{told} of {events}");
    assert_eq!(gauges.get(&(Gauge::Requested as u32)), Some(&(allocated - freed)));
    let expected = THREADS * 30_001;
    assert_eq!(gauges.get(&(Gauge::Allocations as u32)), Some(&expected));
    drop(kept);
}
