//! Records programs and reads their files.

mod snapshots;

use millpond::{
    Buffer, Pool, Recorder, mark,
    record::{RecordError, RecordReport, RecordStacks, Snapshots},
    step, tag,
};
use millpond_trace::history::{Flow, History};
use millpond_trace::recording::{End, Gauge, Kind, Row};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Makes these tests run one after the other, because a process has one recording at a time. The files also contain
/// other tests' pools.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // Other tests cause failed requests.
    Snapshots::never_on_out_of_memory();
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("millpond-recorder-{}-{name}.mpr", std::process::id())))
    }

    fn read(&self) -> History {
        History::open(&self.0, &millpond_trace::ReadOptions::default()).expect("a recording")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the number of the pool with a name.
fn number(history: &History, name: &str) -> u32 {
    let pools = history.definitions.pools();
    let found = pools.iter().find(|(_, pool)| pool.name == name);
    found.expect("it is defined").0
}

/// Returns all rows of one pool.
fn rows(history: &History, pool: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    let walked = history.walk(|row, _| {
        if row.pool == pool {
            rows.push(*row);
        }
        Flow::On
    });
    walked.expect("the file is there");
    rows
}

fn named(name: &str) -> Pool {
    Pool::builder().name(name).track(None).host().expect("addresses")
}

#[test]
fn a_recording_holds_all_events_of_a_program() {
    let _alone = alone();
    let file = Scratch::new("does");
    let before = named("made before");
    let recorder = Recorder::start(&file.0).expect("a file");
    // A name with two lines becomes one line in the file, because the policy follows it.
    let later = Pool::builder().name("made\nlater").policy("bfc").track(None);
    let later = later.host().expect("addresses");
    let (mut kept, mut sum) = (Vec::new(), 0);
    for (round, pool) in [&before, &later].into_iter().cycle().take(100).enumerate() {
        let _scope = tag(if round % 3 == 0 { "third" } else { "rest" });
        let bytes = 100 * (round + 1);
        let block = pool.alloc_zeroed::<u8>(bytes).expect("room");
        if round % 2 == 0 {
            sum += bytes as u64;
            kept.push(block);
        }
        step(round as u64);
    }
    mark("half");
    let requested = [&before, &later].map(|pool| pool.stats().requested.current);
    drop(kept);
    let report = recorder.stop().expect("it is written");
    assert!(report.events >= 301 && report.lost == 0, "{report:?}");
    assert_eq!(report.bytes, std::fs::metadata(&file.0).expect("a file").len());

    let history = file.read();
    assert_eq!((history.end.clone(), history.lost), (Some(End::Closed), 0));
    let (mut half, mut steps) = (None, Vec::new());
    let walked = history.walk(|row, text| {
        match row.kind {
            Kind::Mark if text == Some("half") => half = Some(row.time),
            Kind::Step => steps.push(row.bytes),
            _ => {}
        }
        Flow::On
    });
    walked.expect("the file is there");
    assert_eq!(steps, (0..100).collect::<Vec<u64>>());
    let live = history
        .live_at(half.expect("the mark"))
        .expect("the file is there");
    let pools = ["made before", "made later"].map(|name| number(&history, name));
    let policies = pools.map(|pool| history.definitions.pool(pool).expect("defined").policy.as_str());
    assert_eq!(policies, ["millpond", "bfc"]);
    let live_in = |pool: u32| {
        live.blocks()
            .filter(|row| row.pool == pool)
            .map(|row| row.requested)
            .sum::<u64>()
    };
    assert_eq!(pools.map(live_in), requested);
    assert_eq!(requested.iter().sum::<u64>(), sum);
    let all: Vec<Row> = pools.iter().flat_map(|pool| rows(&history, *pool)).collect();
    let of = |kind| all.iter().filter(move |row| row.kind == kind);
    assert_eq!((of(Kind::Alloc).count(), of(Kind::Free).count()), (100, 100));
    for row in of(Kind::Free) {
        let of = of(Kind::Alloc)
            .find(|other| other.id == row.id)
            .expect("its allocation");
        assert!(
            of.time <= row.time && (of.requested, of.bytes, of.tag) == (row.requested, row.bytes, row.tag)
        );
    }
    let third = of(Kind::Alloc)
        .filter(|row| history.definitions.tag(row.tag) == "third")
        .count();
    assert_eq!(third, 34);
}

/// Blocks move between threads and reuse one address again and again. Every free matches its own allocation.
#[test]
fn events_of_several_threads_are_in_one_order() {
    let _alone = alone();
    let file = Scratch::new("threads");
    let recorder = Recorder::start(&file.0).expect("a file");
    let pool = named("shared");
    let (to, from) = std::sync::mpsc::sync_channel(4);
    let many = if cfg!(miri) { 50 } else { 20_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..many {
                let block = pool.alloc_zeroed::<u8>(1 + round % 9).expect("room");
                to.send(block).expect("somebody takes it");
            }
            drop(to);
        });
        scope.spawn(|| {
            let mut held = None;
            for block in from {
                let _before = held.replace(block);
                drop(pool.alloc_zeroed::<u8>(3).expect("room"));
            }
        });
    });
    let report = recorder.stop().expect("it is written");
    assert_eq!(report.lost, 0);
    let history = file.read();
    let rows = rows(&history, number(&history, "shared"));
    let (mut at, mut live) = (std::collections::HashMap::new(), 0);
    for row in &rows {
        match row.kind {
            Kind::Alloc => {
                live += 1;
                assert_eq!(at.insert(row.id, (row.requested, row.address)), None);
            }
            Kind::Free => {
                live -= 1;
                let (requested, _) = at.remove(&row.id).expect("its allocation came before");
                assert_eq!(requested, row.requested);
                assert_ne!(row.thread, 0, "no block was found in another one's place");
            }
            _ => {}
        }
    }
    assert_eq!((live, at.len()), (0, 0));
}

/// Events that do not fit are counted, and the pools' own sums are still correct.
#[test]
fn lost_events_are_counted_and_totals_stay_exact() {
    let _alone = alone();
    let file = Scratch::new("lost");
    let recorder = Recorder::builder().ring_bytes(0).start(&file.0).expect("a file");
    let pool = named("fast");
    let many = 50_000;
    for round in 0..many {
        drop(pool.alloc_zeroed::<u8>(1 + round % 100).expect("room"));
    }
    let kept = pool.alloc_zeroed::<u8>(1000).expect("room");
    let report = recorder.stop().expect("it is written");
    assert!(report.lost > 0, "{report:?}");
    let history = file.read();
    assert_eq!(history.lost, report.lost);
    let rows = rows(&history, number(&history, "fast"));
    let last = |gauge: Gauge| {
        let of = rows
            .iter()
            .filter(|row| row.kind == Kind::Gauge && row.tag == gauge as u32);
        of.map(|row| row.bytes).next_back()
    };
    assert_eq!(last(Gauge::Requested), Some(1000));
    assert_eq!(last(Gauge::Allocations), Some(many as u64 + 1));
    let told = rows
        .iter()
        .filter(|row| matches!(row.kind, Kind::Alloc | Kind::Free))
        .count() as u64;
    assert!(told + report.lost > 2 * many as u64, "{told} and {}", report.lost);
    drop(kept);
}

#[test]
fn events_after_the_locals_of_a_thread_are_destroyed_are_recorded() {
    thread_local! {
        static KEPT: RefCell<Vec<Buffer<u8>>> = const { RefCell::new(Vec::new()) };
    }
    let _alone = alone();
    let file = Scratch::new("ended");
    let recorder = Recorder::start(&file.0).expect("a file");
    let pool = named("ended");
    let run = || {
        // Locals are destroyed in reverse order of their first use. So this one is destroyed after the recorder's.
        KEPT.with_borrow_mut(|kept| kept.reserve(100));
        for _ in 0..100 {
            let block = pool.alloc_zeroed::<u8>(10).expect("room");
            KEPT.with_borrow_mut(|kept| kept.push(block));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(run).join().expect("no panic");
        }
    });
    let report = recorder.stop().expect("it is written");
    assert_eq!(report.lost, 0, "{report:?}");
    let history = file.read();
    let rows = rows(&history, number(&history, "ended"));
    let threads = |kind| {
        let of_kind = rows.iter().filter(move |row| row.kind == kind);
        of_kind.map(|row| row.thread).collect::<Vec<_>>()
    };
    assert_eq!(threads(Kind::Alloc).len(), 300);
    assert_eq!(threads(Kind::Free), threads(Kind::Alloc));
}

#[test]
fn threads_that_record_every_stack_wait_for_space() {
    let _alone = alone();
    let file = Scratch::new("waits");
    let builder = Recorder::builder().ring_bytes(0).stacks(RecordStacks::Always);
    let recorder = builder.start(&file.0).expect("a file");
    let pool = named("waits");
    for _ in 0..10_000 {
        drop(pool.alloc_zeroed::<u8>(10).expect("room"));
    }
    let report = recorder.stop().expect("it is written");
    assert_eq!(report.lost, 0, "{report:?}");
    let history = file.read();
    let rows = rows(&history, number(&history, "waits"));
    let mut blocks = rows.iter().filter(|row| row.kind == Kind::Alloc);
    assert_eq!(blocks.clone().count(), 10_000);
    assert!(blocks.all(|row| row.stack != 0));
}

#[test]
fn stacks_and_their_modules_are_recorded() {
    let _alone = alone();
    let file = Scratch::new("stacks");
    let recorder = Recorder::builder()
        .stacks(RecordStacks::Always)
        .start(&file.0)
        .expect("a file");
    let pool = named("with stacks");
    for _ in std::hint::black_box(0..3) {
        drop(pool.alloc_zeroed::<u8>(10).expect("room"));
    }
    recorder.stop().expect("it is written");
    let history = file.read();
    let rows = rows(&history, number(&history, "with stacks"));
    let stacks: Vec<u32> = rows
        .iter()
        .filter(|row| row.kind == Kind::Alloc)
        .map(|row| row.stack)
        .collect();
    // The first allocation takes another path through the pool than those that find its block again.
    assert!(
        stacks.len() == 3 && stacks[0] != 0 && stacks[1] == stacks[2],
        "{stacks:?}"
    );
    let addresses: Vec<u64> = history.definitions.stack(stacks[0]).collect();
    let here = stacks_and_their_modules_are_recorded as fn() as usize as u64;
    let near = |address: &&u64| (here..here + 4096).contains(*address);
    assert!(
        addresses.iter().any(|address| near(&address)),
        "{here:#x} in {addresses:x?}"
    );
    let modules = history.definitions.modules();
    assert!(
        modules
            .iter()
            .any(|module| (module.address..module.address + module.bytes).contains(&here))
    );
}

/// Blocks without a stack take a shorter path than those with one, and are counted equally.
#[test]
fn stacks_are_sampled_by_bytes() {
    let _alone = alone();
    let file = Scratch::new("sampled");
    let pool = named("sampled");
    for _ in 0..2 {
        let recorder = Recorder::builder()
            .stacks(RecordStacks::Bytes(1000))
            .start(&file.0)
            .expect("a file");
        for _ in 0..10_000 {
            drop(pool.alloc_zeroed::<u8>(100).expect("room"));
        }
        let large = pool.alloc_zeroed::<u8>(1000).expect("room");
        recorder.stop().expect("it is written");
        drop(large);
        let history = file.read();
        let rows = rows(&history, number(&history, "sampled"));
        let (small, large): (Vec<&Row>, Vec<&Row>) = rows
            .iter()
            .filter(|row| row.kind == Kind::Alloc)
            .partition(|row| row.requested == 100);
        assert_eq!((small.len(), large.len()), (10_000, 1));
        assert_ne!(large[0].stack, 0);
        // A block has a stack with the probability of 0.095, so 952 are expected, with a standard deviation of 29. The seed is not
        // fixed, so the test allows seven deviations.
        let with = small.iter().filter(|row| row.stack != 0).count();
        assert!(with.abs_diff(952) < 7 * 29, "{with} stacks");
        assert_eq!(history.bytes_per_stack(), Some(1000));
        let represented: f64 = small.iter().map(|row| history.represents(row)).sum();
        assert!((represented - 10_000.0).abs() < 7.0 * 310.0, "{represented}");
        assert_eq!(history.represents(large[0]), 1.0);
        assert_eq!(rows.iter().filter(|row| row.kind == Kind::Free).count(), 10_000);
    }
}

#[test]
fn a_second_recording_is_refused() {
    let _alone = alone();
    let (file, other) = (Scratch::new("one"), Scratch::new("other"));
    let recorder = Recorder::start(&file.0).expect("a file");
    let refused = Recorder::start(&other.0).expect_err("there is one");
    assert!(
        matches!(&refused, RecordError::Recording { path } if *path == file.0),
        "{refused}"
    );
    drop(recorder);
    let nowhere = std::env::temp_dir().join("millpond-no-such-folder/a.mpr");
    let refused = Recorder::start(&nowhere).expect_err("no folder").to_string();
    assert!(refused.contains("millpond-no-such-folder"), "{refused}");
    let report = Recorder::start(&other.0)
        .expect("a file")
        .stop()
        .expect("it is written");
    assert_ne!(report, RecordReport::default());
    mark("nobody listens");
}
