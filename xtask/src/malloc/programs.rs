//! Programs that run once and end.

use super::measure::{self, Sample};
use super::{Program, Run, Setup, find};
use crate::shell::{Result, root};
use std::path::PathBuf;
use std::process::Command;
use xshell::cmd;

pub(super) const PROGRAMS: [Program; 6] = [
    Program {
        name: "threads",
        about: "a C++ program in which four threads make strings, vectors and maps, and free those of other threads",
        prepare: threads,
    },
    Program {
        name: "sqlite",
        about: "SQLite's shell fills, sorts, updates and joins tables in memory",
        prepare: sqlite,
    },
    Program {
        name: "git",
        about: "`git repack -adf`, `fsck`, `cat-file` of all objects and `log -p` in a clone of this repository",
        prepare: git,
    },
    Program {
        name: "python",
        about: "CPython without its own allocator makes, serialises and frees objects",
        prepare: python,
    },
    Program {
        name: "cpython-tests",
        about: "some of CPython's own tests without its own allocator",
        prepare: python_tests,
    },
    Program {
        name: "rocksdb",
        about: "RocksDB's `db_bench` writes, overwrites, reads and compacts, and `ldb` prints all keys",
        prepare: rocksdb,
    },
];

/// CPython's tests that run anywhere within seconds.
const PYTHON_TESTS: [&str; 11] = [
    "test_bytes",
    "test_collections",
    "test_dict",
    "test_functools",
    "test_generators",
    "test_list",
    "test_memoryview",
    "test_re",
    "test_sqlite3",
    "test_struct",
    "test_xml_etree",
];

fn threads(setup: &Setup<'_>) -> Result<Run> {
    let (source, program) = (setup.sources.join("threads.cpp"), setup.folder.join("threads"));
    let (sh, compiler) = (setup.sh, find("c++")?);
    cmd!(sh, "{compiler} -O2 -pthread {source} -o {program}").run()?;
    Ok(commands(setup, move || vec![Command::new(&program)]))
}

fn sqlite(setup: &Setup<'_>) -> Result<Run> {
    let (program, script) = (find("sqlite3")?, setup.sources.join("script.sql"));
    Ok(commands(setup, move || {
        let mut command = Command::new(&program);
        command
            .args(["-batch", "-bail", ":memory:"])
            .arg(format!(".read '{}'", script.display()));
        vec![command]
    }))
}

fn git(setup: &Setup<'_>) -> Result<Run> {
    let (program, clone, from) = (find("git")?, setup.folder.join("repository.git"), root());
    let sh = setup.sh;
    sh.remove_path(&clone)?;
    cmd!(sh, "{program} clone --quiet --mirror --no-local {from} {clone}").run()?;
    Ok(commands(setup, move || {
        [
            "repack -adfq --threads=2",
            "fsck --no-progress",
            "cat-file --batch-all-objects --batch-check",
            "log -p --stat -n 300",
        ]
        .map(|arguments| {
            let mut command = Command::new(&program);
            command.arg("-C").arg(&clone).args(arguments.split(' '));
            command
        })
        .into()
    }))
}

fn python(setup: &Setup<'_>) -> Result<Run> {
    let (python, script) = (interpreter(setup, "json")?, setup.sources.join("objects.py"));
    Ok(commands(setup, move || {
        let mut command = Command::new(&python);
        command.arg(&script).env("PYTHONMALLOC", "malloc");
        vec![command]
    }))
}

fn python_tests(setup: &Setup<'_>) -> Result<Run> {
    let (python, folder) = (interpreter(setup, "test.test_dict")?, setup.folder.clone());
    let errors = setup.folder.join("errors");
    Ok(Run::alone(move |allocator| {
        let mut command = Command::new(&python);
        command
            .current_dir(&folder)
            .args(["-m", "test", "-q"])
            .args(PYTHON_TESTS)
            .env("PYTHONMALLOC", "malloc");
        // The output contains times. The tests compare their results themselves.
        let sample = measure::commands(allocator, vec![command], &errors)?;
        Ok(Sample { output: 0, ..sample })
    }))
}

/// Returns the interpreter itself, which may be hidden behind a script. Fails if it lacks a module.
pub(super) fn interpreter(setup: &Setup<'_>, module: &str) -> Result<PathBuf> {
    let (sh, python) = (setup.sh, &setup.wanted.python);
    let found = cmd!(sh, "{python} -c")
        .arg(format!("import sys, {module}; print(sys.executable)"))
        .quiet()
        .ignore_stderr()
        .read();
    found
        .map(PathBuf::from)
        .map_err(|_| format!("{} does not run or has no module {module}", python.display()).into())
}

fn rocksdb(setup: &Setup<'_>) -> Result<Run> {
    let (bench, ldb) = (find("db_bench")?, find("ldb")?);
    let (errors, data, sh) = (
        setup.folder.join("errors"),
        setup.temporary.join("rocksdb"),
        setup.sh.clone(),
    );
    Ok(Run::alone(move |allocator| {
        sh.remove_path(&data)?;
        let mut command = Command::new(&bench);
        command.arg(format!("--db={}", data.display())).args([
            "--benchmarks=fillrandom,overwrite,readrandom,compact,readseq",
            "--num=200000",
            "--value_size=200",
            "--seed=1",
        ]);
        // The output contains times. The keys and values do not depend on them.
        let worked = measure::commands(allocator, vec![command], &errors)?;
        let mut command = Command::new(&ldb);
        command
            .arg(format!("--db={}", data.display()))
            .args(["dump", "--hex"]);
        let dumped = measure::commands(allocator, vec![command], &errors)?;
        Ok(Sample {
            time: worked.time + dumped.time,
            cpu: worked.cpu + dumped.cpu,
            peak: worked.peak.max(dumped.peak),
            output: dumped.output,
        })
    }))
}

/// Runs commands that print the same under every allocator.
fn commands(setup: &Setup<'_>, commands: impl Fn() -> Vec<Command> + 'static) -> Run {
    let errors = setup.folder.join("errors");
    Run::alone(move |allocator| measure::commands(allocator, commands(), &errors))
}
