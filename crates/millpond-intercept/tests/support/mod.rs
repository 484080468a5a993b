//! Runs a client of the CUDA driver with the preloaded library, on the emulated driver.
#![allow(dead_code, reason = "each test file uses a part")]

use millpond_intercept::{LIBRARY, Log, Summary, unpack, variable, write};
use millpond_trace::ReadOptions;
use millpond_trace::history::{Definitions, History, Live};
use millpond_trace::recording::{Kind, Row};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

/// A folder with the emulated driver, the clients and the library.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
}

/// Returns the folder. The first call builds the clients. Prints a message and returns `None` if there is no C compiler.
pub(crate) fn place() -> Option<&'static Place> {
    static PLACE: OnceLock<Option<Place>> = OnceLock::new();
    PLACE.get_or_init(build).as_ref()
}

fn build() -> Option<Place> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: there is no C compiler");
        return None;
    }
    let test = env::current_exe().expect("the path of this test");
    // Tests may run in parallel in separate processes, so they must not share a folder. libtest names the thread of a test after the test.
    let program = test.file_name().expect("a file").to_string_lossy();
    let thread = std::thread::current();
    let test_name = thread.name().unwrap_or("main").replace("::", "-");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{program}-{test_name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("driver")).expect("a folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        let driver = test.with_file_name("libmillpond_cuda_emu.so");
        assert!(driver.exists(), "the emulated driver is not built");
        symlink(driver, folder.join("driver").join(name)).expect("linked");
    }
    unpack(&folder).expect("the library");
    let compile = |source: &str, name: &str, arguments: &[&str]| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let mut compiler = Command::new("cc");
        compiler
            .args(["-g", "-O1", "-Wall", "-o"])
            .arg(folder.join(name))
            .arg(&source)
            .args(arguments);
        let done = compiler
            .args(["-ldl", "-lpthread"])
            .output()
            .expect("the compiler starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    compile("client.c", "client", &[]);
    let libraries = format!("-L{}", folder.join("driver").display());
    compile(
        "client.c",
        "linked",
        &["-DLINKED", &libraries, "-Wl,--no-as-needed", "-lcuda"],
    );
    compile(
        "early.c",
        "driver/libearly.so",
        &["-shared", "-fPIC", &libraries, "-lcuda"],
    );
    let linked = ["-DPROGRAM", &libraries, "-Wl,--no-as-needed", "-learly", "-lcuda"];
    compile("early.c", "early", &linked);
    fs::create_dir(folder.join("empty")).expect("a folder");
    compile("empty_driver.c", "empty/libcuda.so.1", &["-shared", "-fPIC"]);
    Some(Place { folder })
}

/// The recordings of a run, and its output.
pub(crate) struct Run {
    pub(crate) output: Output,
    pub(crate) processes: Vec<Process>,
}

/// The recording of a process.
pub(crate) struct Process {
    pub(crate) process: u32,
    pub(crate) summary: Summary,
    pub(crate) rows: Vec<Row>,
    pub(crate) definitions: Definitions,
    pub(crate) path: PathBuf,
}

impl Place {
    /// Runs the client that looks up functions in this way. `name` is the name of a new folder for the run.
    pub(crate) fn run(&self, name: &str, way: &str, scenario: &str, settings: &[(&str, &str)]) -> Run {
        let program = self
            .folder
            .join(if way == "linked" { "linked" } else { "client" });
        let mut command = Command::new(program);
        command.args([way, scenario]);
        self.record(name, command, settings)
    }

    /// Runs a command with the library.
    pub(crate) fn record(&self, name: &str, mut command: Command, settings: &[(&str, &str)]) -> Run {
        let logs = self.folder.join(name);
        fs::create_dir(&logs).expect("a folder");
        // A test may name another driver.
        if !settings.iter().any(|(name, _)| *name == "LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", self.folder.join("driver"));
        }
        command
            .env("LD_PRELOAD", self.folder.join(LIBRARY))
            .env(variable::FOLDER, &logs)
            .envs(settings.iter().copied());
        let output = command.output().expect("the client starts");
        let mut processes = Vec::new();
        for entry in fs::read_dir(&logs).expect("the folder") {
            let path = entry.expect("an entry").path();
            let log = Log::open(&path).expect("a log");
            let (bytes, summary) = write(&log, Vec::new()).expect("written");
            let path = path.with_extension("mpr");
            fs::write(&path, bytes).expect("written");
            let history = History::open(&path, &ReadOptions::default()).expect("a recording");
            let mut rows = Vec::new();
            history
                .walk(|row, _| {
                    rows.push(*row);
                    millpond_trace::history::Flow::On
                })
                .expect("read");
            processes.push(Process {
                process: log.process,
                summary,
                rows,
                definitions: history.definitions,
                path,
            });
        }
        processes.sort_by(|a, b| a.path.cmp(&b.path));
        Run { output, processes }
    }
}

impl Run {
    /// Returns the recording of the only process.
    pub(crate) fn only(&self) -> &Process {
        let errors = String::from_utf8_lossy(&self.output.stderr);
        assert_eq!(self.processes.len(), 1, "{errors}");
        &self.processes[0]
    }

    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub(crate) fn succeeded(&self) -> &Self {
        let errors = String::from_utf8_lossy(&self.output.stderr);
        assert!(self.output.status.success(), "{:?} {errors}", self.output.status);
        self
    }
}

impl Process {
    /// Returns the kind of memory, the pool and the requested bytes of each row of a kind.
    pub(crate) fn blocks(&self, kind: Kind) -> Vec<(String, String, u64)> {
        let rows = self.rows.iter().filter(|row| row.kind == kind);
        rows.map(|row| {
            let pool = self.definitions.pool(row.pool).expect("defined");
            (pool.memory.clone(), pool.name.clone(), row.requested)
        })
        .collect()
    }

    /// Returns the requested bytes of the blocks that are live at the end.
    pub(crate) fn left(&self) -> Vec<u64> {
        let mut live = Live::default();
        for row in &self.rows {
            live.note(row);
        }
        let mut left: Vec<u64> = live.blocks().map(|row| row.requested).collect();
        left.sort_unstable();
        left
    }
}
