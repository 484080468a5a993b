//! Runs the benches and replays of the `millpond` command, and replays the same recordings with PyTorch's allocator.

use super::Session;
use super::child::Program;
use super::report::Step;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The recordings that are replayed.
const RECORDINGS: [&str; 2] = ["gnn_sage_sampled", "llama8b_fsdp_streams"];
const POLICIES: &str = "millpond,planned,torch-native,torch-expandable";

pub(super) const COMMAND: &str = "millpond";

fn millpond(session: &Session, name: &str, seconds: u64) -> Program {
    Program::new(session, COMMAND, name, seconds)
        .env("COLUMNS", "120")
        .env("NO_COLOR", "1")
}

/// Runs a bench, adds its output to the step, and returns the output.
fn bench(session: &Session, step: &mut Step, what: &str, more: &[&str], seconds: u64) -> Option<String> {
    if !session.folder.join(COMMAND).exists() {
        step.note(&format!(
            "the folder lacks {COMMAND}, so bench {what} was not run"
        ));
        return None;
    }
    let name = format!("bench-{what}");
    let program = millpond(session, &name, seconds)
        .args(["bench", what])
        .args(more.iter().copied());
    let ran = match program.run(session) {
        Ok(ran) => ran,
        Err(why) => {
            step.trouble(why);
            return None;
        }
    };
    if let Some(trouble) = ran.trouble() {
        step.trouble(format!("bench {what}: {trouble}"));
    }
    step.file(&format!("{name}.txt"), &ran.out);
    Some(ran.out)
}

pub(super) fn bench_alloc(session: &Session, step: &mut Step, seconds: u64) {
    let rounds: &[&str] = if session.quick { &["--rounds", "1"] } else { &[] };
    let Some(text) = bench(session, step, "alloc", rounds, seconds) else {
        return;
    };
    let pairs = rows(&text, "cuMemAllocAsync");
    let slowest = pairs
        .iter()
        .filter_map(|row| nanoseconds(row.get(1)?))
        .reduce(f64::max);
    step.check(
        "a hot pair takes at most 100 ns",
        slowest.is_some_and(|time| time <= 100.0),
        told(slowest, "ns, the slowest of the sizes"),
    );
    let least = pairs
        .iter()
        .filter_map(|row| number(row.last()?))
        .reduce(f64::min);
    step.check(
        "a hot pair is at least 10 times faster than cuMemAllocAsync",
        least.is_some_and(|ratio| ratio >= 10.0),
        told(least, "times, the least of the sizes"),
    );
    let loops = text
        .split_once("Unpooled took ")
        .and_then(|(_, rest)| number(rest));
    step.check(
        "a loop of 1 MiB buffers is more than 19.6 times faster with a pool",
        loops.is_some_and(|factor| factor > 19.6),
        told(loops, "times"),
    );
}

pub(super) fn bench_transfer(session: &Session, step: &mut Step, seconds: u64) {
    let more: &[&str] = if session.quick { &["--quick"] } else { &[] };
    let Some(text) = bench(session, step, "transfer", more, seconds) else {
        return;
    };
    let sizes = rows(&text, "pinned up");
    let largest: Vec<f64> = sizes
        .last()
        .map(|row| row.iter().skip(1).filter_map(|cell| number(cell)).collect())
        .unwrap_or_default();
    let link = text.split_once("The link: ").and_then(|(_, rest)| number(rest));
    let shares = match largest[..] {
        [up, staged_up, _, down, staged_down, ..] => {
            Some((up.min(down), (staged_up / up).min(staged_down / down)))
        }
        _ => None,
    };
    let of_link = link.zip(shares).map(|(link, (pinned, _))| 100.0 * pinned / link);
    step.check(
        "pinned copies reach at least 90 % of the speed of the link",
        of_link.is_some_and(|share| share >= 90.0),
        told(of_link, "% of the speed that the system reports for the link"),
    );
    let staged = shares.map(|(_, staged)| 100.0 * staged);
    step.check(
        "staged copies reach at least 90 % of the speed of pinned copies",
        staged.is_some_and(|share| share >= 90.0),
        told(staged, "%"),
    );
}

fn told(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "not printed".to_owned(), |value| format!("{value:.1} {unit}"))
}

/// Returns the cells of the rows below the heading that has this column, up to an empty line. At least two spaces separate columns.
fn rows<'a>(text: &'a str, column: &str) -> Vec<Vec<&'a str>> {
    let cells = |line: &'a str| -> Vec<&'a str> {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    };
    let below = text
        .lines()
        .skip_while(|line| !cells(line).contains(&column))
        .skip(1);
    below
        .take_while(|line| !line.trim().is_empty())
        .map(cells)
        .collect()
}

/// Parses the number at the beginning of a text.
fn number(text: &str) -> Option<f64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Parses a time with its unit, and returns it in nanoseconds.
fn nanoseconds(text: &str) -> Option<f64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let by = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number(text)? * by)
}

pub(super) fn bench_driver(session: &Session, step: &mut Step, seconds: u64) {
    let rounds: &[&str] = if session.quick { &["--rounds", "1"] } else { &[] };
    bench(session, step, "driver", rounds, seconds);
}

pub(super) fn bench_kernels(session: &Session, step: &mut Step, seconds: u64) {
    let rounds: &[&str] = if session.quick { &["--rounds", "1"] } else { &[] };
    bench(session, step, "kernels", rounds, seconds);
}

const REPLAYS: &str = "Recordings on the device";

/// Replays recordings on the device. The replay writes the contents of every block and compares them. `torch-native` may reserve less on
/// the device than in the simulation, which takes the times at which other streams have ended their work from the recording.
pub(super) fn replays(session: &Session, step: &mut Step, seconds: u64) {
    step.table(
        REPLAYS,
        &[
            "recording",
            "policy",
            "peak, bytes",
            "simulated, bytes",
            "difference",
            "same calls",
            "blocks compared",
            "wrong",
            "driver, ms",
            "modelled, ms",
        ],
    );
    let mut wrong = 0;
    let mut compared = 0;
    let mut different = Vec::new();
    for name in &RECORDINGS[..if session.quick { 1 } else { 2 }] {
        let Some(path) = recording(session, name) else {
            step.note(&format!(
                "the folder lacks the recording {name}, so it was not replayed"
            ));
            continue;
        };
        let path = path.to_string_lossy();
        let program = millpond(session, &format!("replay-{name}"), seconds).args([
            "replay", &path, "--source", "cuda:0", "--check", "--json", "-p", POLICIES,
        ]);
        let ran = match program.run(session) {
            Ok(ran) => ran,
            Err(why) => return step.trouble(why),
        };
        if let Some(trouble) = ran.trouble() {
            step.trouble(format!("replay of {name}: {trouble}"));
        }
        let Ok(facts) = serde_json::from_str::<Value>(&ran.out) else {
            continue;
        };
        for run in facts["source"]["runs"].as_array().into_iter().flatten() {
            let check = &run["check"];
            wrong += check["wrong"].as_u64().unwrap_or(0);
            compared += check["blocks"].as_u64().unwrap_or(0);
            if run["difference_bytes"] != 0 {
                different.push(format!("{name} with {}", run["policy"]));
            }
            let of = |key: &str| run[key].clone();
            step.row(
                REPLAYS,
                vec![
                    json!(name),
                    of("policy"),
                    of("peak_reserved_bytes"),
                    of("simulated_peak_reserved_bytes"),
                    of("difference_bytes"),
                    of("same_calls"),
                    check["blocks"].clone(),
                    check["wrong"].clone(),
                    of("driver_ms"),
                    of("modelled_driver_ms"),
                ],
            );
        }
        step.answer(&format!("replay of {name}"), facts);
    }
    step.check(
        "every block keeps what was written into it",
        wrong == 0 && compared > 0,
        format!("{wrong} of {compared} blocks were wrong"),
    );
    step.check(
        "the device reserves as many bytes as the simulation",
        different.is_empty(),
        if different.is_empty() {
            "no difference".to_owned()
        } else {
            different.join(", ")
        },
    );
}

/// Returns whether the machine has PyTorch with a device, and notes its version.
pub(super) fn has_torch(session: &Session, step: &mut Step) -> bool {
    let asked = Program::new(session, "python3", "torch-version", 60)
        .args([
            "-c",
            "import torch; assert torch.cuda.is_available(); print(torch.__version__)",
        ])
        .run(session);
    let version = asked
        .ok()
        .filter(|ran| ran.trouble().is_none())
        .map(|ran| ran.out.trim().to_owned());
    match &version {
        Some(version) => step.note(&format!("PyTorch {version}")),
        None => step.note("this machine has no PyTorch with a device"),
    }
    version.is_some()
}

fn recording(session: &Session, name: &str) -> Option<PathBuf> {
    let path = session.folder.join("traces").join(format!("{name}.csv.zst"));
    path.exists().then_some(path)
}

const TORCH: &str = "PyTorch's allocator";

/// Replays the same recordings with PyTorch's own allocator, if the machine has PyTorch with a device.
pub(super) fn torch(session: &Session, step: &mut Step, seconds: u64) {
    let script = session.folder.join("torch_replay.py");
    if !script.exists() || !session.folder.join(COMMAND).exists() {
        return step.note("the folder lacks millpond or torch_replay.py, so PyTorch did not run");
    }
    let script = script.to_string_lossy();
    if !has_torch(session, step) {
        return;
    }
    step.table(
        TORCH,
        &[
            "recording",
            "settings",
            "peak reserved, bytes",
            "peak allocated, bytes",
            "ms of host time",
        ],
    );
    for name in &RECORDINGS[..if session.quick { 1 } else { 2 }] {
        let Some(path) = recording(session, name) else {
            continue;
        };
        let csv = session.work.join(format!("{name}.csv"));
        let (path, csv) = (path.to_string_lossy(), csv.to_string_lossy());
        let converted = millpond(session, &format!("convert-{name}"), seconds)
            .args(["convert", &path, &csv])
            .run(session);
        match converted.map(|ran| ran.trouble()) {
            Ok(None) => {}
            Ok(Some(why)) | Err(why) => return step.trouble(format!("convert: {why}")),
        }
        for settings in ["", "expandable_segments:True"] {
            let ran = Program::new(session, "python3", &format!("torch-{name}"), seconds)
                .args([script.as_ref(), csv.as_ref()])
                .env("PYTORCH_CUDA_ALLOC_CONF", settings)
                .env("PYTORCH_ALLOC_CONF", settings)
                .run(session);
            let ran = match ran {
                Ok(ran) => ran,
                Err(why) => return step.trouble(why),
            };
            match (ran.trouble(), serde_json::from_str::<Value>(&ran.out)) {
                (None, Ok(facts)) => step.row(
                    TORCH,
                    vec![
                        json!(name),
                        json!(if settings.is_empty() { "default" } else { settings }),
                        facts["peak_reserved"].clone(),
                        facts["peak_allocated"].clone(),
                        facts["ms"].clone(),
                    ],
                ),
                (trouble, _) => step.trouble(format!("PyTorch: {}", trouble.unwrap_or(ran.out))),
            }
        }
        let _ = std::fs::remove_file(Path::new(csv.as_ref()));
    }
}

/// Returns a CUDA library from the folder, from the machine's toolkit, or from its Python packages. If there are several versions, it
/// is the newest one that the driver supports.
pub(super) fn machine_library(session: &Session, name: &str) -> Option<PathBuf> {
    let mut folders = vec![session.folder.join("lib"), PathBuf::from("/usr/local/cuda/lib64")];
    let asked = Program::new(session, "python3", "python-folders", 20)
        .args(["-c", "import sys; print('\\n'.join(sys.path))"])
        .run(session);
    let packages = asked.map(|ran| ran.out).unwrap_or_default();
    for package in packages.lines().map(|line| Path::new(line).join("nvidia")) {
        let libraries = std::fs::read_dir(package).into_iter().flatten().flatten();
        folders.extend(libraries.map(|library| library.path().join("lib")));
    }
    let files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|file| file.path());
    let mut found: Vec<(u64, PathBuf)> = files
        .filter_map(|path| Some((major(&path.file_name()?.to_string_lossy(), name)?, path)))
        // The output of a newer library does not load with this driver.
        .filter(|(major, _)| *major <= session.cuda / 1000)
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

/// Returns the major version in the name of a library's file, such as 12 for `libnvrtc.so.12` and `libnvrtc.so.12.1.105`.
fn major(file: &str, name: &str) -> Option<u64> {
    let version = file.strip_prefix(name)?.strip_prefix('.')?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_version_of_a_library_is_in_its_name() {
        assert_eq!(major("libnvrtc.so.12", "libnvrtc.so"), Some(12));
        assert_eq!(major("libnvrtc.so.13.0.88", "libnvrtc.so"), Some(13));
        assert_eq!(major("libnvrtc-builtins.so.12.1", "libnvrtc.so"), None);
        assert_eq!(major("libnvrtc.so", "libnvrtc.so"), None);
    }

    #[test]
    fn figures_are_read_from_what_a_bench_prints() {
        let text = "cuda:0, medians of 9 rounds\n\nHot pairs\n\nsize     pool   two  cuMemAlloc            ratio  cuMemAllocAsync           ratio\n\
            4 KiB    56ns  90ns       2.1us  37.5 (30 to 40)            900ns  16.1 (15 to 18)\n16 MiB  1.2us  90ns       2.1us  37.5 (30 to 40)            900ns  9.50 (9 to 18)\n\nafter\n";
        let pairs = rows(text, "cuMemAllocAsync");
        assert_eq!(pairs.len(), 2);
        assert_eq!(nanoseconds(pairs[0][1]), Some(56.0));
        assert_eq!(nanoseconds(pairs[1][1]), Some(1200.0));
        assert_eq!(pairs[1].last().and_then(|cell| number(cell)), Some(9.5));
        assert_eq!(number("19.7 times"), Some(19.7));
        assert_eq!(number("-"), None);
        assert!(rows(text, "no such column").is_empty());
    }
}
