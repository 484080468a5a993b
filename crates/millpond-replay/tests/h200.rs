//! Compares replays of a recording with runs of the recorded program on a real card.
//!
//! The program ran on an NVIDIA H200 with PyTorch 2.11, CUDA 13.0. `traces/README.md` describes it. The recording was made
//! with the native allocator and without a limit, and it ends after the step that holds most. The limits were set with
//! `torch.cuda.set_per_process_memory_fraction`.

use millpond_engine::{Engine, Settings, Simulated, TorchConf, policies};
use millpond_replay::{
    Device, Observer, Op, OpKind, Program, Run, Selection, Threads, Ticks, cards, run, smallest_device,
};
use millpond_trace::{ReadOptions, read};
use std::path::Path;

const PAGE: u64 = 2 << 20;

/// Peak reserved bytes without a limit.
const NATIVE_PEAK: u64 = 25_815_941_120;
const EXPANDABLE_PEAK: u64 = 14_170_456_064;

/// The smallest limit with which the native allocator finished. It reserved all of it.
const NATIVE_LIMIT: u64 = 14_044_626_944;
/// With one page less it ran out of memory, after this many allocations and retries.
const NATIVE_LESS: (usize, u64) = (6_423, 3);

/// A limit with which expandable segments finished, and the retries and the peak of that run.
const EXPANDABLE_LIMIT: u64 = 13_161_725_952;
const EXPANDABLE_LIMITED: (u64, u64) = (6, 13_142_851_584);
/// The mappings of that run, in order: the pool, the first page in its range, and the number of pages.
const EXPANDABLE_MAPPINGS: &str = include_str!("h200/limited_expandable.txt");

fn program() -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gpt_varlen_h200.csv.zst");
    let recording = read(&path, &ReadOptions::default()).expect("a recording of the repository");
    Program::new(&recording.traces[0], Selection::default()).expect("allocations")
}

/// Returns an H200 with `bytes` for the program.
fn h200(bytes: Option<u64>) -> Device {
    let card = cards().iter().find(|card| card.name == "h200");
    Device {
        bytes,
        total: card.map(|card| card.total),
        paged: true,
    }
}

fn on(program: &Program, policy: &str, device: Device) -> Run {
    let policy = policies::build(policy, &Settings::default()).expect("a policy");
    run(program, policy, device.source(), &mut ())
}

fn smallest(program: &Program, policy: &str, unlimited: &Run) -> u64 {
    let build = || policies::build(policy, &Settings::default()).expect("a policy");
    let found = smallest_device(
        program,
        unlimited,
        true,
        Ticks::NEVER,
        &Threads::default(),
        &build,
        &|_| {},
    );
    found.expect("it finishes somewhere").bytes
}

#[test]
fn the_native_allocator_needs_the_same_memory_as_on_the_card() {
    let program = program();
    let unlimited = on(&program, "torch-native", h200(None));
    assert_eq!(unlimited.stats.reserved.peak, NATIVE_PEAK);
    assert_eq!(smallest(&program, "torch-native", &unlimited), NATIVE_LIMIT);

    let limited = on(&program, "torch-native", h200(Some(NATIVE_LIMIT)));
    assert_eq!((limited.stop, limited.stats.reserved.peak), (None, NATIVE_LIMIT));

    let less = on(&program, "torch-native", h200(Some(NATIVE_LIMIT - PAGE)));
    let stop = less.stop.expect("it ran out of memory on the card");
    let before = program.ops[..stop.op].iter();
    let allocations = before.filter(|op| op.kind == OpKind::Alloc).count();
    assert_eq!((allocations, less.stats.stalls), NATIVE_LESS);
}

#[test]
fn expandable_segments_need_the_same_memory_as_on_the_card() {
    let program = program();
    let unlimited = on(&program, "torch-expandable", h200(None));
    assert_eq!(unlimited.stats.reserved.peak, EXPANDABLE_PEAK);
    // The limited run on the card never reserved more.
    assert_eq!(
        smallest(&program, "torch-expandable", &unlimited),
        EXPANDABLE_LIMITED.1
    );

    let limited = on(&program, "torch-expandable", h200(Some(EXPANDABLE_LIMITED.1)));
    assert_eq!(
        (limited.stop, limited.stats.reserved.peak),
        (None, EXPANDABLE_LIMITED.1)
    );
}

/// Writes the mappings of a replay in the form of [`EXPANDABLE_MAPPINGS`].
#[derive(Default)]
struct Mappings {
    ranges: Vec<u64>,
    lines: String,
}

impl Observer for Mappings {
    fn stepped(&mut self, _op: &Op, engine: &mut Engine<Simulated>) {
        for change in engine.source_mut().take_log() {
            // The first mapping of a pool is at the start of its range. The large pool is used first.
            let page = change.address / PAGE;
            let small = change.bytes == PAGE;
            if self.ranges.len() == usize::from(small) {
                self.ranges.push(page);
            }
            let (pool, base) = if small {
                ("small", self.ranges[1])
            } else {
                ("large", self.ranges[0])
            };
            let what = if change.mapped { "map" } else { "unmap" };
            let (first, pages) = (page - base, change.bytes / PAGE);
            self.lines += &format!("{what} {pool} {first} {pages}\n");
        }
    }
}

#[test]
fn expandable_segments_map_the_same_pages_as_on_the_card() {
    // The fraction and the size of the device are chosen so that their product is exact.
    let settings = Settings {
        torch: TorchConf::parse("per_process_memory_fraction:0.125").expect("settings"),
        ..Settings::default()
    };
    let device = h200(Some(8 * EXPANDABLE_LIMIT));
    let policy = policies::build("torch-expandable", &settings).expect("a policy");
    let mut mappings = Mappings::default();
    let limited = run(&program(), policy, device.source().with_log(), &mut mappings);
    assert_eq!(limited.stop, None);
    assert_eq!(
        (limited.stats.stalls, limited.stats.reserved.peak),
        EXPANDABLE_LIMITED
    );
    assert_eq!(mappings.lines, EXPANDABLE_MAPPINGS);
}
