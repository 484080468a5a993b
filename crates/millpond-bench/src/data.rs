//! Measures a pass through a file larger than its memory budget, compared with plain reads of the file and with the computation
//! alone.
//!
//! Writes a file whose words follow from their positions. Then measures in turn: `read` into one buffer of a chunk's size; a
//! checksum over one such buffer, once for each chunk; a pass that reads; and a pass that reads and checks. Prints medians,
//! ratios, and the growth of the process. Fails if a checksum is wrong, or if the process grows by more than the budget plus an
//! allowance.

use crate::Table;
use millpond::{DataSet, Pool};
use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const HELP: &str = "data [--size BYTES] [--chunk BYTES] [--budget BYTES] [--rounds N] [--in FOLDER]
sizes as 4GiB, 256MiB; FOLDER is where the file is written, the system's folder for temporary files unless said otherwise";

/// The memory that a process may use in addition to the budget of a pass: stacks of its readers, tables, and partly used pages
/// of the pool.
const ALLOWANCE: u64 = 4 << 20;

struct Settings {
    size: u64,
    chunk: u64,
    budget: u64,
    rounds: usize,
    folder: PathBuf,
}

impl Settings {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut settings = Self {
            size: 4 << 30,
            chunk: 1 << 20,
            budget: 256 << 20,
            rounds: 7,
            folder: std::env::temp_dir(),
        };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .ok_or_else(|| format!("{name} has no value\n{HELP}"))?;
            let size = || millpond::engine::parse_size(&value).map_err(|error| format!("{name}: {error}"));
            match name.as_str() {
                "--size" => settings.size = size()?,
                "--chunk" => settings.chunk = size()?,
                "--budget" => settings.budget = size()?,
                "--rounds" => settings.rounds = value.parse::<usize>()?.max(1),
                "--in" => settings.folder = value.into(),
                _ => return Err(format!("there is no {name}\n{HELP}").into()),
            }
        }
        if settings.chunk == 0
            || !settings.chunk.is_multiple_of(64)
            || !settings.size.is_multiple_of(settings.chunk)
        {
            return Err("--chunk is a multiple of 64 bytes, and --size one of --chunk".into());
        }
        Ok(settings)
    }
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

/// A file that is removed when this is dropped.
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes the file. Returns it and its checksum by chunks.
fn write(settings: &Settings) -> Result<(Written, Checksum), Box<dyn Error>> {
    let path = settings
        .folder
        .join(format!("millpond-data-{}", std::process::id()));
    let written = Written(path.clone());
    let mut file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
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

/// Returns the seconds of plain reads.
fn plain(path: &Path, buffer: &mut [u64]) -> Result<f64, Box<dyn Error>> {
    let mut file = File::open(path)?;
    let began = Instant::now();
    let bytes = millpond::bytemuck::cast_slice_mut::<u64, u8>(buffer);
    loop {
        let read = file.read(bytes)?;
        if read == 0 {
            break;
        }
        black_box(&bytes);
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Returns the seconds of the checksum over one buffer.
fn compute(buffer: &[u64], times: u64) -> f64 {
    let began = Instant::now();
    let mut sum = Checksum::default();
    for _ in 0..times {
        sum.add(black_box(buffer));
    }
    black_box(sum);
    began.elapsed().as_secs_f64()
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
    let size = millpond::engine::display_size;
    let said = format!(
        "the process grew by {} while it passed: {:.0} % of its budget",
        size(grown),
        100.0 * grown as f64 / budget.max(1) as f64
    );
    if grown <= budget.saturating_add(ALLOWANCE) {
        return Ok(said);
    }
    Err(format!(
        "{said}, more than that and {} beside it",
        size(ALLOWANCE)
    ))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the measurement and prints the tables. `arguments` are those of the program with this name.
///
/// # Errors
/// Returns an error if the arguments are invalid, memory or files are not available, or the sides disagree.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(arguments)?;
    let size = millpond::engine::display_size;
    let (written, expected) = write(&settings)?;
    let chunks = settings.size / settings.chunk;
    let words = settings.chunk as usize / 8;
    let data = DataSet::<u64>::open(&written.0)?;
    let pool = Pool::host()?;
    // The buffer is written, so that it belongs to the process's memory before the measurement.
    let mut buffer = vec![1u64; words];
    let mut times: [Vec<f64>; 4] = Default::default();
    let (before, mut most) = (anonymous(), 0);
    for round in 0..=settings.rounds {
        let pass = || data.pass().rows(words).budget(settings.budget).pool(&pool);
        let read = plain(&written.0, &mut buffer)?;
        let computed = compute(&buffer, chunks);
        let passed = pass().for_each(|chunk| {
            black_box(chunk.first());
        })?;
        let mut sum = Checksum::default();
        let checked = pass().for_each(|chunk| {
            sum.add(chunk);
            if chunk.number() % 64 == 15 {
                most = most.max(anonymous());
            }
        })?;
        if sum != expected {
            return Err(format!("round {round}: the checksum is not what was written").into());
        }
        // The first round brings the file into the system's cache.
        if round > 0 {
            let seconds = [
                read,
                computed,
                passed.elapsed.as_secs_f64(),
                checked.elapsed.as_secs_f64(),
            ];
            for (times, seconds) in times.iter_mut().zip(seconds) {
                times.push(seconds);
            }
        }
    }
    let spread = times.clone().map(|mut times| {
        let mid = median(&mut times);
        (
            mid,
            times.first().copied().unwrap_or(mid),
            times.last().copied().unwrap_or(mid),
        )
    });
    let [(read, ..), (computed, ..), ..] = spread;
    println!(
        "{} in chunks of {}, a budget of {}; {} rounds in turn, medians",
        size(settings.size),
        size(settings.chunk),
        size(settings.budget),
        settings.rounds
    );
    let mut table = Table::new(&["", "GB/s", "min", "max", "of plain reads", "of the slower alone"]);
    let names = [
        "plain reads, one buffer",
        "checksum, one buffer",
        "pass",
        "pass with checksum",
    ];
    for (name, (mid, least, greatest)) in names.into_iter().zip(spread) {
        let rate = |seconds: f64| format!("{:.2}", settings.size as f64 / 1e9 / seconds);
        let slower = read.max(computed);
        table.row(vec![
            name.to_owned(),
            rate(mid),
            rate(greatest),
            rate(least),
            format!("{:.2} the rate", read / mid),
            format!("{:.2} the time", mid / slower),
        ]);
    }
    print!("{table}");
    println!(
        "{}\npool: at most {} reserved, {} allocations in {} passes",
        within(most.saturating_sub(before), settings.budget)?,
        size(pool.stats().reserved.peak),
        pool.stats().allocations,
        2 * (settings.rounds + 1)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_grows_beyond_its_budget_is_told() {
        let said = within(3 << 20, 256 << 20).expect("less than the budget");
        assert_eq!(
            said,
            "the process grew by 3.00 MiB while it passed: 1 % of its budget"
        );
        assert!(within((256 << 20) + ALLOWANCE, 256 << 20).is_ok());
        let error = within((256 << 20) + ALLOWANCE + 1, 256 << 20).expect_err("a byte too many");
        assert!(
            error.contains("260 MiB") && error.ends_with("more than that and 4.00 MiB beside it"),
            "{error}"
        );
    }
}
