//! Measures the time of the engine for a call, and compares it with other allocators in one run.
//!
//! `speed FOLDER [--rounds N] [--policy NAME]... [WORD]...`: for each recording, every contender runs the whole program once a
//! round, in turn, and the thread's processor time is divided by the number of calls. The output contains the median round, the
//! spread, and the ratio to the offset-allocator crate. `speed --live N...` does the same with programs that hold N random
//! blocks.

use millpond_bench::{CpuClock, OffsetAllocator, Op, Program, Ranges, Table, Trees, find, print};
use millpond_engine::{Block, Engine, Request, Settings, Simulated, Stream, policies};
use std::error::Error;
use std::num::NonZeroU32;
use std::path::Path;

/// A policy in an engine over a simulated device.
struct Pool {
    engine: Engine<Simulated>,
    slots: Vec<Option<Block>>,
}

impl Ranges for Pool {
    #[inline]
    fn allocate(&mut self, slot: u32, stream: u32, bytes: u64) {
        self.slots[slot as usize] = self.engine.allocate(Request::new(bytes, Stream(stream))).ok();
    }

    #[inline]
    fn free(&mut self, slot: u32) {
        if let Some(block) = self.slots[slot as usize].take() {
            self.engine.free(block, &[]);
        }
    }
}

/// Returns the nanoseconds for each call of the program.
fn time<R: Ranges>(mut ranges: R, ops: &[Op]) -> f64 {
    let clock = CpuClock::start();
    for op in ops {
        match *op {
            Op::Alloc { slot, stream, bytes } => ranges.allocate(slot, stream, bytes),
            Op::Free { slot } => ranges.free(slot),
        }
    }
    clock.nanoseconds() / ops.len() as f64
}

fn pool(policy: &str, slots: usize) -> Result<Pool, Box<dyn Error>> {
    let mut pool = Pool {
        engine: Engine::new(policies::build(policy, &Settings::default())?, Simulated::new()),
        slots: Vec::new(),
    };
    pool.slots.resize_with(slots, || None);
    // This prepares as much as the offset-allocator gets. Otherwise the records would be created during the measurement.
    pool.engine.expect_blocks(OffsetAllocator::blocks(slots));
    Ok(pool)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (mut folder, mut words, mut live) = (None, Vec::new(), Vec::new());
    let (mut named, mut rounds) = (Vec::new(), 7);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse::<usize>()?.max(1),
            "--policy" => named.push(value()?),
            "--live" => live.push(value()?.parse::<NonZeroU32>()?),
            _ if folder.is_none() => folder = Some(argument),
            _ => words.push(argument),
        }
    }
    if words.is_empty() {
        words = ["serve_contbatch", "gpt2m", "varlen", "rmm_1MiB", "rmm_64MiB"]
            .map(str::to_owned)
            .to_vec();
    }
    let paths = match folder {
        Some(folder) => find(Path::new(&folder), &words)?,
        None if live.is_empty() => return Err("give the folder of the recordings, or --live N".into()),
        None => Vec::new(),
    };
    if named.is_empty() {
        named = policies::names().map(str::to_owned).collect();
    }
    let mut table = Table::new(&[
        "trace",
        "allocator",
        "ns/call",
        "min",
        "max",
        "of offset-allocator",
    ]);
    let recorded = paths.iter().map(|path| Program::read(path));
    let random = live.into_iter().map(|live| Ok(Program::random(live)));
    for program in recorded.chain(random) {
        let program = program?;
        let mut names = vec!["offset-allocator".to_owned(), "best fit, two trees".to_owned()];
        names.extend(named.iter().cloned());
        let mut rows: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
        for _ in 0..rounds {
            rows[0].push(time(OffsetAllocator::new(program.slots), &program.ops));
            rows[1].push(time(Trees::new(program.slots), &program.ops));
            for (policy, row) in named.iter().zip(&mut rows[2..]) {
                row.push(time(pool(policy, program.slots)?, &program.ops));
            }
        }
        for row in &mut rows {
            row.sort_by(f64::total_cmp);
        }
        let first = rows[0][rounds / 2];
        for (name, row) in names.into_iter().zip(&rows) {
            let median = row[rounds / 2];
            let figures = [median, row[0], row[rounds - 1]].map(|ns| format!("{ns:.1}"));
            let mut cells = vec![program.name.clone(), name];
            cells.extend(figures);
            cells.push(format!("{:.2}", median / first));
            table.row(cells);
        }
    }
    print(&table)?;
    Ok(())
}
