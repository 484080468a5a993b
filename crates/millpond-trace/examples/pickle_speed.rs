//! Compares the time to read PyTorch snapshots with CPython's `pickle.load` on the same files, in one run.
//!
//! `cargo run --release -p millpond-trace --example pickle_speed -- FILE...`
//!
//! The time of this crate covers everything that [`millpond_trace::read`] does: opening the file, parsing, tags,
//! rebuilding the state backwards, and numbering events. The parsing time ends when the end of the file is read.
//! CPython's time covers opening the file and `pickle.load`, in a separate process that has imported everything before.
//! The time to free the result is not counted for either. The two alternate, so that the load of other programs affects
//! both. Each row shows the median and, in brackets, the minimum and the maximum.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Number of measurements of each side for each file.
const ROUNDS: usize = 21;

/// Loads the file named on each line and prints the seconds that it took.
const LOADER: &str = "
import gc, pickle, sys, time
if len(sys.argv) > 1:
    gc.disable()
print(sys.version.split()[0], flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    with open(line[:-1], 'rb') as file:
        snapshot = pickle.load(file)
    seconds = time.perf_counter() - start
    del snapshot
    print(seconds, flush=True)
";

fn main() {
    let mut python = Python::start(&[]);
    // CPython loads faster without its cycle collector. Few programs turn it off, but it makes the comparison stricter.
    let mut without_gc = Python::start(&["nogc"]);
    match &python {
        Some(python) => println!("CPython {}", python.version),
        None => println!("python3 is not installed: only this crate is timed"),
    }
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let mut ours = Vec::new();
        let mut parsing = Vec::new();
        let mut theirs = Vec::new();
        let mut theirs_without_gc = Vec::new();
        for _ in 0..ROUNDS {
            theirs.extend(python.as_mut().and_then(|python| python.load(&path)));
            theirs_without_gc.extend(without_gc.as_mut().and_then(|python| python.load(&path)));
            match read(&path) {
                Ok([seconds, until_asked]) => {
                    ours.push(seconds);
                    parsing.push(until_asked);
                }
                Err(error) => {
                    println!("{}: {error}", path.display());
                    break;
                }
            }
        }
        if ours.is_empty() {
            continue;
        }
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        println!("{} ({:.1} MB)", path.display(), bytes as f64 / 1e6);
        let ours = [
            row("millpond_trace::read", &mut ours, None),
            row("of it parsing", &mut parsing, None),
        ];
        row("pickle.load", &mut theirs, Some(ours));
        row("pickle.load, gc off", &mut theirs_without_gc, Some(ours));
    }
}

/// Returns the seconds for everything, and the seconds until the end of the file was read.
///
/// Does the same as [`millpond_trace::read`], on a file that records its reads.
fn read(path: &Path) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let start = Instant::now();
    let file = File::open(path)?;
    let total = file.metadata()?.len();
    let asked = Cell::new(start);
    let watched = Watched {
        file,
        left: total,
        asked: &asked,
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let options = millpond_trace::ReadOptions::default();
    let recording = millpond_trace::read_from(watched, &name, Some(total), &options)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(recording);
    Ok([seconds, (asked.get() - start).as_secs_f64()])
}

/// A file that records the time of the last read.
struct Watched<'a> {
    file: File,
    left: u64,
    asked: &'a Cell<Instant>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.asked.set(Instant::now());
        // The end is read in small pieces, so that little remains to be parsed after the last read.
        let most = if self.left > 64 << 10 {
            buffer.len()
        } else {
            4 << 10
        };
        let most = most.min(buffer.len());
        let got = self.file.read(&mut buffer[..most])?;
        self.left = self.left.saturating_sub(got as u64);
        Ok(got)
    }
}

/// Prints the row of one side. Returns its median.
fn row(name: &str, seconds: &mut [f64], against: Option<[f64; 2]>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (seconds.first(), seconds.last()) else {
        return 0.0;
    };
    let median = seconds[seconds.len() / 2];
    print!(
        "  {name:<22} {:>8.2} ms [{:.2}..{:.2}]",
        median * 1e3,
        least * 1e3,
        most * 1e3
    );
    match against {
        Some([ours, parsing]) => println!(
            "  {:.1} times ours, {:.1} times parsing",
            median / ours,
            median / parsing
        ),
        None => println!(),
    }
    median
}

/// A CPython process that waits for file names.
struct Python {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    version: String,
}

impl Python {
    fn start(options: &[&str]) -> Option<Self> {
        let mut child = Command::new("python3")
            .args(["-c", LOADER])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take()?);
        let mut version = String::new();
        output.read_line(&mut version).ok()?;
        Some(Self {
            child,
            input,
            output,
            version: version.trim().to_owned(),
        })
    }

    /// Returns the seconds to load a file, or `None` if CPython cannot load it.
    fn load(&mut self, path: &Path) -> Option<f64> {
        writeln!(self.input.as_mut()?, "{}", path.display()).ok()?;
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // The loop in Python ends without input.
        self.input = None;
        let _ = self.child.wait();
    }
}
