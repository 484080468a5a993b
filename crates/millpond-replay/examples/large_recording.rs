//! Measures how long the analysis of a large recording takes, and how much memory. Writes a recording with
//! the given number of rows, analyses it, and prints a table:
//!
//! ```text
//! cargo run --release -p millpond-replay --features recording --example large_recording -- 10000000
//! ```
//!
//! With a second argument, it only writes the recording to the file of that name.

use millpond_replay::analysis::{By, Lines, Moment, TimelineOptions, Window, at, report_with_timeline};
use millpond_trace::ReadOptions;
use millpond_trace::history::History;
use millpond_trace::recording::{Kind, Row, Writer};
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Blocks that live at once.
const LIVE: usize = 200_000;
/// The number of different tags, and of different stacks.
const NAMES: u64 = 2_000;

/// A file that is removed when the program ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let rows = std::env::args()
        .nth(1)
        .map_or(Ok(10_000_000), |text| text.parse())?;
    if let Some(kept) = std::env::args().nth(2) {
        return write(Path::new(&kept), rows);
    }
    let file = Scratch(std::env::temp_dir().join(format!("millpond-large-{}.mpr", std::process::id())));
    let start = Instant::now();
    write(&file.0, rows)?;
    let bytes = std::fs::metadata(&file.0)?.len();
    println!(
        "{:<28}{:>8.2} s   {:>6.1} MiB on disk",
        "written",
        start.elapsed().as_secs_f64(),
        mib(bytes)
    );
    let before = most_resident();
    look(&file.0)?;
    let after = most_resident();
    println!(
        "memory: {:.0} MiB at most, {:.0} MiB of it before the first look",
        mib(after),
        mib(before)
    );
    Ok(())
}

fn look(path: &Path) -> Result<(), Box<dyn Error>> {
    let history = timed("opened", || History::open(path, &ReadOptions::default()))?;
    let symbols = &history.definitions;
    for tenths in [1, 3, 5, 7, 10] {
        let time = history.duration / 10 * tenths;
        timed(&format!("live at {tenths}/10"), || history.live_at(time))?;
        let moment = Moment::Time(time);
        timed("held then, by group", || {
            at(&history, symbols, Lines::Told, Window::ALL, moment, 5)
        })?;
    }
    let options = TimelineOptions {
        by: By::Tag,
        columns: 1000,
        bands: 8,
    };
    let (told, _) = timed("report", || {
        report_with_timeline(&history, symbols, Window::ALL, 5, &options)
    })?;
    println!(
        "{} rows, {} blocks at the peak, {} steps, {} findings",
        history.len,
        told.summary.peak.sum.blocks,
        told.steps.map_or(0, |known| known.steps.len()),
        told.findings.len()
    );
    Ok(())
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (start, before) = (Instant::now(), on_processor());
    let result = work();
    println!(
        "{what:<28}{:>8.2} s   {:>6.2} s of it on the processor",
        start.elapsed().as_secs_f64(),
        on_processor() - before
    );
    result
}

/// Returns the seconds that this thread has run on a processor, if the system reports them. The rest of the
/// elapsed time went to other processes and threads.
fn on_processor() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = told.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// Writes allocations and frees of random blocks, with a keyframe every million rows.
fn write(path: &Path, rows: u64) -> Result<(), Box<dyn Error>> {
    let mut writer = Writer::new(BufWriter::new(File::create(path)?), &[])?;
    for number in 1..=NAMES as u32 {
        let tag = Row {
            tag: number,
            ..Row::new(Kind::DefineTag, 0)
        };
        writer.say(&tag, Some(&format!("part {number} of the program")), None)?;
        let stack = Row {
            stack: number,
            ..Row::new(Kind::DefineStack, 0)
        };
        writer.say(
            &stack,
            None,
            Some(&[0x40_0000 + u64::from(number) * 64, 0x40_0000]),
        )?;
    }
    let pool = Row {
        pool: 1,
        ..Row::new(Kind::DefinePool, 0)
    };
    writer.say(&pool, Some("cuda\nmain"), Some(&[0]))?;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (mut live, mut id): (Vec<Row>, u64) = (Vec::with_capacity(LIVE), 0);
    for at in 0..rows {
        let time = at * 100;
        if live.len() >= LIVE || live.len() > LIVE / 2 && draw(2) == 0 {
            let row = live.swap_remove(draw(live.len() as u64) as usize);
            writer.push(&Row {
                kind: Kind::Free,
                time,
                ..row
            })?;
        } else {
            id += 1;
            let name = 1 + draw(NAMES) as u32;
            let bytes = 256 << draw(12);
            let row = Row {
                id,
                address: 0x7000_0000_0000 + draw(1 << 30) * 256,
                requested: bytes - draw(200),
                bytes,
                pool: 1,
                thread: 1 + draw(8) as u32,
                tag: name,
                stack: name,
                ..Row::new(Kind::Alloc, time)
            };
            writer.push(&row)?;
            live.push(row);
        }
        if at % 1_000_000 == 999_999 {
            writer.push(&Row {
                bytes: live.len() as u64,
                ..Row::new(Kind::Keyframe, time)
            })?;
            for row in &live {
                writer.push(&Row {
                    kind: Kind::Live,
                    ..*row
                })?;
            }
        }
    }
    writer.finish(rows * 100)?;
    Ok(())
}

/// Returns the most memory that this process has had, if the system reports it.
fn most_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
