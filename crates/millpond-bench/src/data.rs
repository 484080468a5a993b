//! Measures a pass through a file larger than its memory budget, compared with plain reads of the file and with the computation
//! alone.
//!
//! Writes a file whose words follow from their positions. Then measures in turn: `read` into one buffer of a chunk's size; a
//! checksum over one such buffer, once for each chunk; a pass that reads; and a pass that reads and checks. Prints medians,
//! ratios, and the growth of the process. Fails if a checksum is wrong, or if the process grows by more than the budget plus an
//! allowance.

use crate::Table;
use crate::measure::{Clock, Samples, Timer, in_turn};
use crate::scratch::Scratch;
use clap::Parser;
use millpond::engine::{display_size, parse_size};
use millpond::{DataSet, Pool};
use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The memory that a process may use in addition to the budget of a pass: stacks of its readers, tables, and partly used pages
/// of the pool.
const ALLOWANCE: u64 = 4 << 20;

/// Measures a pass through a file that is larger than its memory budget. Sizes are written as 4GiB or 256MiB.
#[derive(Debug, Parser)]
#[command(name = "data")]
struct Settings {
    /// Size of the file, a multiple of the size of a chunk
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = parse_size)]
    size: u64,

    /// Size of a chunk, a multiple of 64 bytes
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = parse_size)]
    chunk: u64,

    /// Memory budget of a pass
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_size)]
    budget: u64,

    /// Measure this many rounds and print medians
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = crate::at_least_one)]
    rounds: usize,

    /// Folder for the file [default: the system's folder for temporary files]
    #[arg(long = "in", value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Returns the word at a position of the file.
fn word(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at >> 7)
}

/// Eight parallel sums over every eighth word, rotated between chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Checksum([u64; 8]);

impl Checksum {
    fn add(&mut self, words: &[u64]) {
        let mut sums = self.0;
        for eight in words.as_chunks::<8>().0 {
            for (sum, word) in sums.iter_mut().zip(eight) {
                *sum = sum.wrapping_add(*word ^ (*word >> 29));
            }
        }
        self.0 = sums.map(|sum| sum.rotate_left(7));
    }
}

/// Writes the file. Returns it and its checksum by chunks.
fn write(settings: &Settings) -> Result<(Scratch, Checksum), Box<dyn Error>> {
    let written = Scratch::new(settings.folder.as_deref(), "data");
    let mut file = File::create(&written.0).map_err(|error| format!("{}: {error}", written.0.display()))?;
    let mut words = vec![0; settings.chunk as usize / 8];
    let mut sum = Checksum::default();
    for chunk in 0..settings.size / settings.chunk {
        let first = chunk * settings.chunk / 8;
        for (place, at) in words.iter_mut().zip(first..) {
            *place = word(at);
        }
        sum.add(&words);
        file.write_all(millpond::bytemuck::cast_slice(&words))?;
    }
    Ok((written, sum))
}

/// Returns the nanoseconds of plain reads.
fn plain(path: &Path, buffer: &mut [u64]) -> Result<f64, Box<dyn Error>> {
    let mut file = File::open(path)?;
    let timer = Timer::start(Clock::Wall);
    let bytes = millpond::bytemuck::cast_slice_mut::<u64, u8>(buffer);
    loop {
        let read = file.read(bytes)?;
        if read == 0 {
            break;
        }
        black_box(&bytes);
    }
    Ok(timer.nanoseconds())
}

/// Returns the nanoseconds of the checksum over one buffer.
fn compute(buffer: &[u64], times: u64) -> f64 {
    let timer = Timer::start(Clock::Wall);
    let mut sum = Checksum::default();
    for _ in 0..times {
        sum.add(black_box(buffer));
    }
    black_box(sum);
    timer.nanoseconds()
}

/// Returns the anonymous memory of the process in bytes.
fn anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns a sentence about the growth of the process, or an error if it exceeds the limit.
fn within(grown: u64, budget: u64) -> Result<String, String> {
    let said = format!(
        "the process grew by {} during a pass: {:.0} % of its budget",
        display_size(grown),
        100.0 * grown as f64 / budget.max(1) as f64
    );
    if grown <= budget.saturating_add(ALLOWANCE) {
        return Ok(said);
    }
    Err(format!(
        "{said}, which is more than the budget plus an allowance of {}",
        display_size(ALLOWANCE)
    ))
}

/// Runs the measurement and prints the tables. `arguments` are those of the program with this name.
///
/// # Errors
/// Returns an error if the arguments are invalid, memory or files are not available, or the sides disagree.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let settings: Settings = crate::parse("data", arguments);
    if settings.chunk == 0
        || !settings.chunk.is_multiple_of(64)
        || !settings.size.is_multiple_of(settings.chunk)
    {
        return Err(
            "--chunk must be a multiple of 64 bytes above 0, and --size a multiple of --chunk".into(),
        );
    }
    let (written, expected) = write(&settings)?;
    let chunks = settings.size / settings.chunk;
    let words = settings.chunk as usize / 8;
    let data = DataSet::<u64>::open(&written.0)?;
    let pool = Pool::host()?;
    // The buffer is written, so that it belongs to the process's memory before the measurement.
    let mut buffer = vec![1u64; words];
    let (before, mut most) = (anonymous(), 0);
    let pass = || data.pass().rows(words).budget(settings.budget).pool(&pool);
    let names = [
        "plain reads, one buffer",
        "checksum, one buffer",
        "pass",
        "pass with checksum",
    ];
    let times = in_turn::<4, Box<dyn Error>>(settings.rounds, |side| match side {
        0 => plain(&written.0, &mut buffer),
        1 => Ok(compute(&buffer, chunks)),
        2 => {
            let passed = pass().for_each(|chunk| {
                black_box(chunk.first());
            })?;
            Ok(passed.elapsed.as_nanos() as f64)
        }
        _ => {
            let mut sum = Checksum::default();
            let checked = pass().for_each(|chunk| {
                sum.add(chunk);
                if chunk.number() % 64 == 15 {
                    most = most.max(anonymous());
                }
            })?;
            match sum == expected {
                true => Ok(checked.elapsed.as_nanos() as f64),
                false => Err("the checksum of a pass differs from the checksum of the written file".into()),
            }
        }
    })?;
    println!(
        "A file of {} in chunks of {}, budget {}; medians of {} interleaved rounds",
        display_size(settings.size),
        display_size(settings.chunk),
        display_size(settings.budget),
        settings.rounds
    );
    let mut table = Table::new(&[
        "",
        "GB/s",
        "min",
        "max",
        "rate / plain reads",
        "time / slower of first two",
    ]);
    let [read, computed, ..] = times.each_ref().map(Samples::median);
    for (name, times) in names.into_iter().zip(&times) {
        let rate = |nanoseconds: f64| format!("{:.2}", settings.size as f64 / nanoseconds);
        let spread = times.spread();
        table.row([
            name.to_owned(),
            rate(spread.median),
            rate(spread.most),
            rate(spread.least),
            format!("{:.2}", read / spread.median),
            format!("{:.2}", spread.median / read.max(computed)),
        ]);
    }
    print!("{table}");
    println!(
        "{}\nthe pool reserved at most {} and made {} allocations in {} passes",
        within(most.saturating_sub(before), settings.budget)?,
        display_size(pool.stats().reserved.peak),
        pool.stats().allocations,
        2 * (settings.rounds + 1)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_the_budget_and_the_allowance_is_an_error() {
        let said = within(3 << 20, 256 << 20).expect("less than the budget");
        assert_eq!(
            said,
            "the process grew by 3.00 MiB during a pass: 1 % of its budget"
        );
        assert!(within((256 << 20) + ALLOWANCE, 256 << 20).is_ok());
        let error = within((256 << 20) + ALLOWANCE + 1, 256 << 20).expect_err("a byte too many");
        assert!(
            error.contains("260 MiB")
                && error.ends_with("which is more than the budget plus an allowance of 4.00 MiB"),
            "{error}"
        );
    }
}
