//! Runs C and C++ programs, and programs of the system, with the library as their allocator.

use millpond_trace::ReadOptions;
use millpond_trace::history::{Flow, History};
use millpond_trace::recording::{End, Kind, Row};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the library as Cargo has built it for these tests.
fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("a path");
    let folder = tests.parent().expect("a folder");
    let library = folder.join("libmillpond_malloc.so");
    assert!(library.exists(), "{} is built with the tests", library.display());
    library
}

/// Compiles a program of this folder. Returns `None` if there is no compiler.
fn compile(source: &str) -> Option<PathBuf> {
    let (compiler, standard) = if source.ends_with(".c") {
        ("cc", "-std=gnu11")
    } else {
        ("c++", "-std=c++17")
    };
    if Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("skipped: there is no `{compiler}`");
        return None;
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.replace('.', "_"));
    // Tests that run in parallel build the same program. A rename is atomic, so each test finds a complete program.
    let part = program.with_extension(std::process::id().to_string());
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let output = Command::new(compiler)
        .args(["-O1", "-Wall", "-Werror", "-pthread", standard, "-o"])
        .args([&part, &source])
        .arg("-ldl")
        .output()
        .expect("the compiler starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&part, &program).expect("renamed");
    Some(program)
}

/// Runs a program with the library, the settings and the arguments.
fn run(program: &Path, settings: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("MILLPOND_CONF", settings)
        .output()
        .expect("the program starts")
}

/// Asserts that a program succeeds and prints only `ok`.
fn assert_ok(program: &Path, settings: &str, arguments: &[&str]) {
    let output = run(program, settings, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        (
            output.status.code(),
            text(&output.stdout).as_str(),
            text(&output.stderr).as_str()
        ),
        (Some(0), "ok\n", ""),
        "{} with '{settings}'",
        program.display(),
    );
}

/// The settings that change how a pool works.
const SETTINGS: [&str; 6] = [
    "",
    "guard:on",
    "track:all",
    "track:one-in=100",
    "limit:4GiB",
    "trim-every:10ms",
];

#[test]
fn every_function_behaves_as_its_manual_page_says() {
    if let Some(program) = compile("family.c") {
        for settings in SETTINGS {
            // Every byte of a guarded block is written, which takes long for large alignments.
            let most: &[&str] = if settings == "guard:on" { &["65536"] } else { &[] };
            assert_ok(&program, settings, most);
        }
    }
}

#[test]
fn blocks_are_not_overwritten_with_threads_and_forks() {
    if let Some(program) = compile("threads.cpp") {
        SETTINGS
            .iter()
            .for_each(|settings| assert_ok(&program, settings, &[]));
    }
}

#[test]
fn threads_may_free_before_they_allocate() {
    let Some(program) = compile("free_first.c") else {
        return;
    };
    SETTINGS
        .iter()
        .for_each(|settings| assert_ok(&program, settings, &[]));
    record(&program, "first", &[]);
}

/// The smallest stack of a thread has 16 KiB. Without optimisation, the library needs more than that.
#[test]
fn threads_with_small_stacks_may_allocate() {
    let Some(program) = compile("small_stack.c") else {
        return;
    };
    let least: &[&str] = if cfg!(debug_assertions) { &["32768"] } else { &[] };
    SETTINGS
        .iter()
        .for_each(|settings| assert_ok(&program, settings, least));
    record(&program, "small-stack", least);
}

/// Runs a program that prints `ok`, and records the stacks of all blocks. Returns the recordings of its processes.
fn record(program: &Path, name: &str, arguments: &[&str]) -> Vec<History> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).expect("a folder");
    let output = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("MILLPOND_RECORD", folder.join("run.%p.mpr,stacks=all"))
        .output()
        .expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{output:?}");
    let files = std::fs::read_dir(&folder).expect("a folder").flatten();
    let open = |path: PathBuf| History::open(&path, &ReadOptions::default()).expect("a recording");
    files.map(|file| open(file.path())).collect()
}

/// The bytes that the process of `forks.c` holds while it forks.
const BEFORE: u64 = 64 << 20;
/// The most bytes that a child of `forks.c` allocates itself. They are all that it can allocate during a measurement.
const OWN: u64 = 2 << 20;

/// Returns the number of allocations of 999 bytes in a recording, the number of their frees, and the bytes of blocks from before the
/// recording, in units of [`BEFORE`]. These bytes can be too few by the blocks that the program allocates during a measurement.
fn pairs(history: &History) -> (usize, usize, u64) {
    let (mut allocated, mut freed, mut pool) = (0, 0, 0);
    let walked = history.walk(|row, _| {
        if row.requested == 999 {
            allocated += usize::from(row.kind == Kind::Alloc);
            freed += usize::from(row.kind == Kind::Free);
            pool = row.pool;
        }
        Flow::On
    });
    walked.expect("the file is there");
    (allocated, freed, (history.allocated_before(pool) + OWN) / BEFORE)
}

#[test]
fn the_children_of_forks_are_recorded_if_the_process_has_one_thread() {
    let Some(program) = compile("forks.c") else {
        return;
    };
    let recorded = |name: &str, arguments: &[&str]| {
        let histories = record(&program, name, arguments);
        assert!(histories.iter().all(|history| history.lost == 0));
        let mut pairs: Vec<_> = histories.iter().map(pairs).collect();
        pairs.sort_unstable();
        pairs
    };
    let expected = [(1, 1, 0), (1000, 1000, 1), (2000, 2000, 1)];
    assert_eq!(recorded("forks", &[]), expected);
    assert_eq!(recorded("forks-threads", &["thread"]), [(1, 1, 0)]);
}

#[test]
fn a_recording_has_all_blocks_of_the_process_with_their_stacks() {
    let Some(program) = compile("threads.cpp") else {
        return;
    };
    let histories = record(&program, "recordings", &[]);
    // The children of the first forks are not recorded, because the process has several threads then.
    assert!((1..=15).contains(&histories.len()), "{}", histories.len());
    let mut most = 0;
    for history in histories {
        assert_eq!(history.lost, 0);
        let modules = history.definitions.modules().iter();
        let own = modules
            .filter(|module| module.path.ends_with("/libmillpond_malloc.so"))
            .map(|module| module.address..module.address + module.bytes)
            .next()
            .expect("the library");
        let (mut blocks, mut without_stack, mut with_own_frames) = (0, 0, 0);
        let walked = history.walk(|row, _| {
            if row.kind == Kind::Alloc {
                blocks += 1;
                let innermost = history.definitions.stack(row.stack).next();
                without_stack += u32::from(innermost.is_none());
                with_own_frames += u32::from(innermost.is_some_and(|address| own.contains(&address)));
            }
            Flow::On
        });
        walked.expect("the file is there");
        assert_eq!((without_stack, with_own_frames), (0, 0), "of {blocks}");
        most = most.max(blocks);
    }
    assert!(most > 100_000, "{most}");
}

#[test]
fn a_thread_may_ask_for_its_stack_while_it_is_recorded() {
    if let Some(program) = compile("own_stack.c") {
        record(&program, "own-stack", &[]);
    }
}

/// The recorder's thread enlarges its table of thread locals while it allocates. The C library calls `realloc` for that.
#[test]
fn a_program_that_loads_many_libraries_with_thread_locals_is_recorded() {
    let Some(program) = compile("libraries.c") else {
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/thread_local.c");
    let libraries: Vec<String> = (0..40)
        .map(|number| {
            let library = folder.join(format!("thread_local_{number}.so"));
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .args([&library, &source])
                .status()
                .expect("the compiler starts");
            assert!(built.success());
            library.display().to_string()
        })
        .collect();
    let arguments: Vec<&str> = libraries.iter().map(String::as_str).collect();
    let histories = record(&program, "libraries", &arguments);
    assert!(count(&histories[0], |row| row.kind == Kind::Alloc) >= 41_000);
}

#[test]
fn a_daemon_is_recorded_and_its_files_and_signals_are_its_own() {
    let Some(program) = compile("daemon.c") else {
        return;
    };
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("daemon.log");
    let histories = record(&program, "daemon", &[&log.display().to_string()]);
    let [history] = &*histories else {
        panic!("{} recordings", histories.len());
    };
    assert_eq!(history.lost, 0);
    let [allocated, freed] = [Kind::Alloc, Kind::Free].map(|kind| count(history, |row| row.kind == kind));
    assert!(allocated >= 40_000 && freed >= 40_000, "{allocated}, {freed}");
}

#[test]
fn a_burst_is_recorded_completely_and_a_small_ring_reports_lost_events() {
    let Some(program) = compile("burst.c") else { return };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("burst.mpr");
    let errors = |settings: &str| {
        let output = Command::new(&program)
            .env("LD_PRELOAD", library())
            .env("MILLPOND_RECORD", format!("{}{settings}", path.display()))
            .output()
            .expect("the program starts");
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(errors(""), "");
    // A thread waits if all stacks are recorded, also at a free.
    assert_eq!(errors(",stacks=all,ring=1M"), "");
    let lost = errors(",ring=8K");
    assert!(
        lost.contains("events are not in the recording") && lost.contains("ring=256M"),
        "{lost}"
    );
}

#[test]
fn malloc_returns_null_at_the_limit_and_the_program_continues() {
    let Some(program) = compile("limit.c") else { return };
    let output = run(&program, "limit:64MiB", &[]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "64 MiB, then ENOMEM, then 64 MiB\n"
    );
}

/// Returns the number of rows that are as described.
fn count(history: &History, is_counted: impl Fn(&Row) -> bool) -> u64 {
    let mut count = 0;
    let walked = history.walk(|row, _| {
        count += u64::from(is_counted(row));
        Flow::On
    });
    walked.expect("the file is there");
    count
}

#[test]
fn the_recording_of_a_process_is_complete_however_it_ends() {
    let Some(program) = compile("ends.c") else { return };
    let aborted = (None, Some(6));
    for (how, end) in [
        ("return", (Some(3), None)),
        ("_exit", (Some(3), None)),
        ("_Exit", (Some(3), None)),
        ("quick_exit", (Some(3), None)),
        ("handler", (Some(3), None)),
        ("vfork", (Some(3), None)),
        ("abort", aborted),
        ("ignored", aborted),
        ("last-thread", (Some(0), None)),
    ] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ends-{how}.mpr"));
        let output = Command::new(&program)
            .arg(how)
            .env("LD_PRELOAD", library())
            .env("MILLPOND_RECORD", &path)
            .output()
            .expect("the program starts");
        assert_eq!((output.status.code(), output.status.signal()), end, "{how}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said == "ok\n", how == "last-thread", "{how}: exit handlers run");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{how}");
        let history = History::open(&path, &ReadOptions::default()).expect("a recording");
        let allocated = count(&history, |row| row.kind == Kind::Alloc && row.requested == 999);
        assert_eq!(allocated, 1000, "{how}");
        assert_eq!(history.end, Some(End::Closed), "{how}: the recording is complete");
    }
    // The thread that returns memory does not keep the process alive either.
    assert_ok(&program, "trim-every:100ms", &["last-thread"]);
}

/// The recorder needs memory itself. If the process has a limit on addresses, the recorder must leave enough to the program.
#[test]
fn a_recorded_program_with_a_limit_on_addresses_gets_its_memory_and_continues() {
    let Some(program) = compile("until_null.c") else {
        return;
    };
    for (limit, bytes, is_complete) in [
        // With 60,000 KiB, this library without optimisation leaves less than the half to the pool.
        (64_000, 4_096, true),
        (200_000, 64, false),
        (200_000, 4_096, true),
        (200_000, 1_000_000, true),
        (1_000_000, 64, false),
    ] {
        let what = format!("blocks of {bytes} bytes with a limit of {limit} KiB");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("limit-{limit}-{bytes}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let recording = folder.join("run.mpr");
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit -v {limit} && exec \"$0\" {bytes}")])
            .arg(&program)
            .env("LD_PRELOAD", library())
            .env("MILLPOND_RECORD", &recording)
            .env("MILLPOND_MALLOC", "refusals")
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{what}: {output:?}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let got: u64 = text(output.stdout).trim().parse().expect("a number");
        // The pool has half of the addresses, unless the libraries need more than the other half.
        let most = limit / 1024 / 2;
        assert!((most * 2 / 3..=most).contains(&got), "{what}: {got} MiB");
        let said = text(output.stderr);
        assert!(said.contains("(ulimit -v)"), "{what}: {said}");
        let history = History::open(&recording, &ReadOptions::default()).expect("a recording");
        let allocated = count(&history, |row| row.kind == Kind::Alloc && row.requested == bytes);
        if is_complete {
            assert!(
                allocated >= (got << 20) / bytes,
                "{what}: {allocated} of {got} MiB"
            );
            assert!(
                count(&history, |row| row.kind == Kind::Refused
                    && row.requested == bytes)
                    > 0,
                "{what}"
            );
        } else {
            assert!(allocated > 100, "{what}: {allocated}");
            assert!(
                said.contains("no memory is left for the next rows"),
                "{what}: {said}"
            );
        }
    }
}

#[test]
fn reports_are_printed_if_they_are_requested() {
    let Some(program) = compile("limit.c") else { return };
    let told = |reports: &str| {
        let output = Command::new(&program)
            .env("LD_PRELOAD", library())
            .env("MILLPOND_CONF", "limit:64MiB")
            .env("MILLPOND_MALLOC", reports)
            .output()
            .expect("the program starts");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let refused = told("refusals");
    assert!(
        refused.starts_with("millpond: malloc returns null: out of memory: 1.00 MiB requested"),
        "{refused}"
    );
    assert_eq!(refused.matches("malloc returns null").count(), 1, "{refused}");
    let stats = told("stats");
    assert!(
        stats.contains(" allocations, ") && stats.contains("2 refused"),
        "{stats}"
    );
    assert!(
        stats.lines().count() == 1 && stats.contains("limit_c ("),
        "{stats}"
    );
    assert_eq!(told(""), "");
    assert!(told("stat").contains("no report 'stat'"));
}

#[test]
fn an_invalid_pointer_aborts_the_program_with_a_message() {
    let Some(program) = compile("wrong.c") else { return };
    for function in ["free", "realloc", "malloc_usable_size"] {
        let output = run(&program, "", &[function]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let expected = format!("millpond: {function}(0x");
        assert!(
            output.status.code().is_none() && stderr.starts_with(&expected) && stderr.lines().count() == 1,
            "{output:?}"
        );
    }
    // Addresses inside blocks, and larger blocks that are freed twice.
    for how in ["inside", "unaligned", "large-twice"] {
        let output = run(&program, "", &[how]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code().is_none() && stderr.starts_with("millpond: free(0x"),
            "{how}: {output:?}"
        );
    }
    // A guarded pool knows the blocks that were freed. The program goes on.
    let output = run(&program, "guard:on", &["twice"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("freed"), "{output:?}");
}

#[test]
fn invalid_settings_are_reported_one_time_and_the_program_runs() {
    let output = run(Path::new("/bin/echo"), "limt:1GiB", &["hello"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("limt") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn system_programs_print_the_same_with_and_without_the_library() {
    for (program, arguments) in [
        (
            "sh",
            &["-c", "for i in 1 2 3; do echo $i | tr 1-3 a-c; done | sort -r"][..],
        ),
        ("git", &["-C", env!("CARGO_MANIFEST_DIR"), "log", "-p", "-3"]),
        ("sort", &["-R", "--random-source=/etc/passwd", "/etc/services"]),
        (
            "python3",
            &[
                "-c",
                "import json, threading; t = threading.Thread(target=lambda: print(json.dumps(list(range(1000))))); t.start(); t.join()",
            ],
        ),
    ] {
        let Ok(plain) = Command::new(program).args(arguments).output() else {
            eprintln!("skipped: there is no `{program}`");
            continue;
        };
        let ours = run(Path::new(program), "", arguments);
        assert_eq!(ours, plain, "{program}");
    }
}
