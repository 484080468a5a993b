//! Measures the cost of recording for the recorded program: time of its threads, bytes of the file, and events that did not
//! fit.
//!
//! The first part measures pairs of an allocation and its free that use only the thread's cache: without a recording, with one,
//! and with a recorded stack of some depth for each allocation. All three run in turn within each round, in the thread's own
//! processor time. The second part repeats the calls of a recorded program, at a fixed rate and at full speed. It divides the
//! sizes, because only their sequence matters to the file.

use crate::measure::{Clock, Samples, Timer, in_turn};
use crate::scratch::Scratch;
use crate::{Op, Program, Table};
use millpond::engine::display_size;
use millpond::{
    Pool, Recorder,
    record::{RecordReport, RecordStacks},
};
use std::error::Error;
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of pairs in a round.
const PAIRS: u32 = 20_000;
/// The number of single pairs before a round.
const NOW_AND_THEN: u32 = 100;
/// The number of frames between the benchmark and the allocations whose stacks are recorded.
const DEPTH: u32 = 20;
/// The rate in events per second that must be recorded without a loss.
const RATE: u32 = 5_000_000;
/// The divisor of the program's sizes, so that the host has room for a device's blocks.
const SMALLER: u64 = 1 << 10;

/// Runs `rounds` rounds, and repeats the calls of a recorded program for at least `events` events. Prints tables.
///
/// # Errors
/// Returns an error if there is no room for the file, or if the program cannot be read.
pub fn run(
    trace: Option<&Path>,
    rounds: usize,
    events: u64,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("bench").track(None).host()?;
    pairs(&pool, rounds.max(1), out)?;
    if let Some(path) = trace {
        program(&pool, &Program::read(path)?, events, out)?;
    }
    Ok(())
}

#[inline(never)]
fn at_depth(depth: u32, pool: &Pool, pairs: u32) {
    if depth > 0 {
        at_depth(black_box(depth - 1), pool, pairs);
        black_box(());
    } else {
        for _ in 0..pairs {
            drop(black_box(pool.alloc::<u8>(black_box(64))));
        }
    }
}

/// Returns processor nanoseconds of an event, and the report of the recording.
fn measure(
    pool: &Pool,
    stacks: Option<RecordStacks>,
    file: &Scratch,
) -> Result<(f64, RecordReport), Box<dyn Error>> {
    let builder = Recorder::builder().sums_every(None).ring_bytes(16 << 20);
    let recorder = match stacks {
        Some(stacks) => Some(builder.stacks(stacks).start(&file.0)?),
        None => None,
    };
    // The same number of pairs runs before the timer starts, so that one-time costs do not count. Some more pairs run at
    // intervals, so that the writing thread is active.
    at_depth(DEPTH, pool, PAIRS);
    for _ in 0..NOW_AND_THEN {
        std::thread::sleep(Duration::from_micros(50));
        at_depth(DEPTH, pool, 1);
    }
    let timer = Timer::start(Clock::Thread);
    at_depth(DEPTH, pool, PAIRS);
    let time = timer.nanoseconds() / f64::from(2 * PAIRS);
    let report = recorder.map_or(Ok(RecordReport::default()), Recorder::stop)?;
    Ok((time, report))
}

fn pairs(pool: &Pool, rounds: usize, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let file = Scratch::new(None, "pairs.mpr");
    let ways = [
        ("no recording", None),
        ("recorded", Some(RecordStacks::Never)),
        ("recorded, stacks", Some(RecordStacks::Always)),
    ];
    let mut lost = [0; 3];
    let times = in_turn::<3, Box<dyn Error>>(rounds, |way| {
        let (time, report) = measure(pool, ways[way].1, &file)?;
        lost[way] += report.lost;
        Ok(time)
    })?;
    writeln!(
        out,
        "Pairs of 64 B, medians of {rounds} interleaved rounds. An event is an allocation or a free.\n\
         A stack has at least {DEPTH} frames.\n"
    )?;
    let mut table = Table::new(&["", "ns/event", "min", "max", "over no recording", "lost"]);
    let without = times[0].median();
    for (at, spread) in times.iter().map(Samples::spread).enumerate() {
        let more = match at {
            0 => String::new(),
            _ => format!("{:.1} ns", spread.median - without),
        };
        let [median, least, most] =
            [spread.median, spread.least, spread.most].map(|time| format!("{time:.1}"));
        table.row([
            ways[at].0.to_owned(),
            median,
            least,
            most,
            more,
            lost[at].to_string(),
        ]);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

/// The result of repeating a program's calls.
struct Enacted {
    events: u64,
    seconds_told: f64,
    seconds_written: f64,
    report: RecordReport,
    bytes: u64,
}

/// Repeats a program's calls while they are recorded, at full speed or at `rate` events per second.
fn enact(pool: &Pool, program: &Program, events: u64, rate: Option<u32>) -> Result<Enacted, Box<dyn Error>> {
    let file = Scratch::new(None, "program.mpr");
    let mut slots: Vec<_> = std::iter::repeat_with(|| None).take(program.slots).collect();
    let recorder = Recorder::start(&file.0)?;
    let start = Instant::now();
    let mut pace = rate.map(|rate| Pace::new(start, rate));
    let mut done = 0;
    while done < events {
        for op in &program.ops {
            match *op {
                Op::Alloc { slot, bytes, .. } => {
                    let bytes = usize::try_from((bytes / SMALLER).max(1))?;
                    slots[slot as usize] = Some(pool.alloc::<u8>(bytes)?);
                }
                Op::Free { slot } => slots[slot as usize] = None,
            }
            if let Some(pace) = &mut pace {
                pace.step();
            }
        }
        // Frees the blocks that the program leaves at its end.
        slots.iter_mut().for_each(|slot| *slot = None);
        done += 2 * program.allocations;
    }
    let seconds_told = start.elapsed().as_secs_f64();
    let report = recorder.stop()?;
    Ok(Enacted {
        events: done,
        seconds_told,
        seconds_written: start.elapsed().as_secs_f64(),
        report,
        bytes: std::fs::metadata(&file.0)?.len(),
    })
}

/// Limits a loop to a number of turns per second, in slices of a millisecond.
struct Pace {
    start: Instant,
    rate: u32,
    turns: u64,
    until_look: u32,
}

impl Pace {
    fn new(start: Instant, rate: u32) -> Self {
        Self {
            start,
            rate,
            turns: 0,
            until_look: 0,
        }
    }

    #[inline]
    fn step(&mut self) {
        self.turns += 1;
        if self.until_look > 0 {
            self.until_look -= 1;
            return;
        }
        self.until_look = self.rate / 1000;
        let due = Duration::from_secs_f64(self.turns as f64 / f64::from(self.rate));
        while self.start.elapsed() < due {
            std::hint::spin_loop();
        }
    }
}

fn program(pool: &Pool, program: &Program, events: u64, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    writeln!(
        out,
        "{}: one thread repeats its calls, and another thread writes the recording\n",
        program.name
    )?;
    let ways = [("at 5 M events/s", Some(RATE)), ("at full speed", None)];
    let heads = ["", "events", "made/s", "written/s", "lost", "file", "bytes/event"];
    let mut table = Table::new(&heads);
    for (name, rate) in ways {
        let enacted = enact(pool, program, events, rate)?;
        let written = enacted.events.saturating_sub(enacted.report.lost);
        let millions = |events: u64, seconds: f64| format!("{:.2} M", events as f64 / seconds / 1e6);
        table.row([
            name.to_owned(),
            enacted.events.to_string(),
            millions(enacted.events, enacted.seconds_told),
            millions(written, enacted.seconds_written),
            enacted.report.lost.to_string(),
            display_size(enacted.bytes).to_string(),
            format!("{:.2}", enacted.bytes as f64 / written.max(1) as f64),
        ]);
    }
    writeln!(out, "{table}")?;
    Ok(())
}
