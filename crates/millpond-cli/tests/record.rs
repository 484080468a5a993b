//! Tests `millpond record` with a client of the CUDA driver on the emulated driver.
#![cfg(target_os = "linux")]

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{command, folder};

/// Returns a folder with the emulated driver and the client, or `None` with a message if there is no C compiler.
fn place(name: &str) -> Option<PathBuf> {
    let place = folder(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../millpond-intercept/tests/client.c");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-g", "-O1", "-o"])
        .arg(place.join("client"))
        .arg(source);
    let Ok(done) = compiler.args(["-ldl", "-lpthread"]).output() else {
        println!("skipped: there is no C compiler");
        return None;
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let driver = std::env::current_exe()
        .expect("a program")
        .with_file_name("libmillpond_cuda_emu.so");
    assert!(driver.exists(), "the emulated driver is not built");
    symlink(driver, place.join("libcuda.so.1")).expect("linked");
    Some(place)
}

fn run(place: &Path, arguments: &[&str]) -> Output {
    let mut command = command(arguments);
    command.current_dir(place).env("LD_LIBRARY_PATH", place);
    command.output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_program_runs_out_of_memory_where_the_replay_of_its_recording_does() {
    let Some(place) = place("record_limit") else {
        return;
    };
    let client = ["--", "./client", "dlsym", "steps"];
    let whole = run(&place, &[&["record", "-o", "whole.mpr"][..], &client].concat());
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(
        stderr(&whole).contains("by client, in 30 allocations."),
        "{}",
        stderr(&whole)
    );

    // The limits go from the program's peak to less than half of it.
    let mut failed = 0;
    for kib in [63_522, 63_521, 63_000, 60_000, 45_123, 20_000] {
        let limit = format!("{kib}KiB");
        let replay = run(
            &place,
            &["replay", "whole.mpr", "-p", "none", "--device", &limit, "--json"],
        );
        let report: Value = serde_json::from_slice(&replay.stdout).expect("JSON");
        let refused = &report["out_of_memory"]["request"]["bytes"];
        let limited = run(
            &place,
            &[&["record", "-o", "limited.mpr", "--limit", &limit][..], &client].concat(),
        );
        assert_eq!(
            limited.status.code(),
            Some(if refused.is_null() { 0 } else { 9 }),
            "{limit}"
        );
        let info = run(&place, &["replay", "limited.mpr", "-p", "none", "--json"]);
        let recorded: Value = serde_json::from_slice(&info.stdout).expect("JSON");
        let recorded = &recorded["out_of_memory"];
        assert_eq!(&recorded["request"]["bytes"], refused, "{limit}");
        assert_eq!(
            recorded["held_blocks"], report["out_of_memory"]["held_blocks"],
            "{limit}"
        );
        failed += u32::from(!refused.is_null());
        let told = format!("--limit {limit} refused 1 request");
        assert_eq!(
            stderr(&limited).contains(&told),
            !refused.is_null(),
            "{}",
            stderr(&limited)
        );
    }
    assert_eq!(failed, 5);
}

#[test]
fn recordings_have_names_and_owners() {
    let Some(place) = place("record_names") else {
        return;
    };
    let output = run(
        &place,
        &["record", "-o", "run.mpr", "--", "./client", "lookup", "kinds"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for (by, named) in [
        ("tag", "client"),
        ("site", "kinds (client.c:"),
        ("pool", "managed memory (managed:0)"),
    ] {
        let report = run(&place, &["report", "run.mpr", "--by", by]);
        let text = String::from_utf8_lossy(&report.stdout);
        assert!(text.contains(named), "{named}: {text}");
    }
    // Another recording is replaced, but no other file is.
    let again = run(
        &place,
        &[
            "record", "-q", "-o", "run.mpr", "--", "./client", "lookup", "kinds",
        ],
    );
    assert_eq!((again.status.code(), stderr(&again).as_str()), (Some(0), ""));
    std::fs::write(place.join("notes"), "a year of work").expect("written");
    let refused = run(&place, &["record", "-o", "notes", "--", "touch", "started"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(!place.join("started").exists());
}

#[test]
fn every_process_that_takes_memory_has_a_recording() {
    let Some(place) = place("record_processes") else {
        return;
    };
    // The shell allocates no memory, so the recording of its first program has the chosen name.
    let script = "./client dlsym kinds; ./client lookup kinds";
    let output = run(&place, &["record", "-o", "run.mpr", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let names = || {
        let entries = std::fs::read_dir(&place).expect("the folder");
        let names = entries.map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        });
        names.filter(|name| name.starts_with("run.")).collect::<Vec<_>>()
    };
    // The logs are gone.
    assert!(
        names().len() == 2 && names().iter().all(|name| name.ends_with(".mpr")),
        "{:?}",
        names()
    );
    assert!(place.join("run.mpr").exists());
}

#[test]
fn a_program_with_another_malloc_has_its_start_time_recorded() {
    let Some(place) = place("record_malloc") else {
        return;
    };
    // A library without functions takes the place of the malloc.
    std::fs::write(place.join("malloc.c"), "").expect("written");
    let built = Command::new("cc")
        .args(["-shared", "-o", "malloc.so", "malloc.c"])
        .current_dir(&place)
        .status();
    assert!(built.expect("a compiler").success());
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.expect("after 1970").as_nanos() as u64
    };
    let before = now();
    let program = env!("CARGO_BIN_EXE_millpond");
    let inner = ["--", program, "run", "--", "./client", "dlsym", "kinds"];
    let output = command(&[&["record"][..], &inner].concat())
        .current_dir(&place)
        .env("LD_LIBRARY_PATH", &place)
        .env("MILLPOND_MALLOC_LIB", place.join("malloc.so"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let options = millpond_trace::ReadOptions::default();
    let history = millpond_trace::history::History::open(&place.join("run.mpr"), &options);
    let start = history.expect("a recording").start().expect("it is recorded");
    assert!((before..now()).contains(&start), "{before}, {start}");
}

#[test]
fn the_command_returns_the_exit_code_of_the_program() {
    let place = folder("record_exit");
    let exit = |script: &str| {
        let output = run(&place, &["record", "--", "sh", "-c", script]);
        let errors = stderr(&output);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("nothing was recorded: no process of sh took memory"),
            "{errors}"
        );
        output.status.code()
    };
    assert_eq!(exit("exit 7"), Some(7));
    assert_eq!(exit("kill -9 $$"), Some(128 + 9));
    assert!(!place.join("run.mpr").exists());
    let missing = run(&place, &["record", "--", "./no-such-program"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr(&missing).contains("there is no program ./no-such-program"),
        "{}",
        stderr(&missing)
    );
    assert_eq!(std::fs::read_dir(&place).expect("the folder").count(), 0);
}

#[test]
fn a_program_without_a_loader_is_named_as_the_reason() {
    let place = folder("record_static");
    std::fs::write(place.join("static.c"), "int main(void) { return 3; }").expect("written");
    let built = Command::new("cc")
        .args(["-static", "-o", "static", "static.c"])
        .current_dir(&place)
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        println!("skipped: no program can be linked statically");
        return;
    }
    let output = run(&place, &["record", "--", "./static"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("./static is linked statically"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn signals_reach_the_program() {
    let place = folder("record_signal");
    let script = "trap 'echo stopped; exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut command = command(&["record", "--", "sh", "-c", script]);
    let mut child = command
        .current_dir(&place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("sent");
    assert_eq!(lines.next().expect("a line").expect("text"), "stopped");
    assert_eq!(child.wait().expect("ended").code(), Some(9));
}

#[test]
fn ignored_signals_stay_ignored() {
    let place = folder("record_ignored");
    let inner = "kill -HUP $$; kill -INT $$; echo alive; kill -TERM $$; echo still";
    let script = "trap '' HUP INT; exec \"$0\" record -- sh -c \"$1\"";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_millpond"), inner])
        .current_dir(&place)
        .output()
        .expect("started");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n");
    assert_eq!(output.status.code(), Some(128 + 15), "{}", stderr(&output));
}

#[test]
fn logs_are_kept_if_a_recording_cannot_be_written() {
    let Some(place) = place("record_kept") else {
        return;
    };
    // The name of the first recording is taken while the program runs.
    let script = "./client dlsym kinds; ./client lookup kinds; mkdir run.mpr; exit 5";
    let output = run(&place, &["record", "-o", "run.mpr", "--", "sh", "-c", script]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(errors.contains("cannot write run.mpr"), "{errors}");
    let kept = errors
        .lines()
        .find_map(|line| line.strip_prefix("millpond: the logs are kept in "));
    let (folder, command) = kept
        .and_then(|kept| kept.split_once("; `millpond "))
        .expect("the folder and the command are named");
    let logs = std::fs::read_dir(folder).expect("the folder");
    let logs: Vec<_> = logs.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(logs.len(), 2, "{logs:?}");
    assert!(
        logs.iter()
            .all(|path| path.extension().is_some_and(|end| end == "log")),
        "{logs:?}"
    );
    // The other process has its recording.
    assert!(errors.contains("The recording is run."), "{errors}");
    // The command that was named writes both recordings.
    let command = command.split_once('`').expect("the end of the command").0;
    let convert = || run(&place, &command.split(' ').collect::<Vec<_>>());
    let blocked = convert();
    assert_eq!(blocked.status.code(), Some(2), "{}", stderr(&blocked));
    std::fs::remove_dir(place.join("run.mpr")).expect("removed");
    let converted = convert();
    let errors = stderr(&converted);
    assert_eq!(converted.status.code(), Some(0), "{errors}");
    assert_eq!(errors.matches("client took at most").count(), 2, "{errors}");
    assert!(errors.contains("The recording is run.mpr:"), "{errors}");
    let report = run(&place, &["report", "run.mpr", "--by", "tag"]);
    assert!(
        String::from_utf8_lossy(&report.stdout).contains("client"),
        "{report:?}"
    );
}

#[test]
fn a_folder_without_logs_is_refused() {
    let place = folder("record_from");
    for (name, told) in [
        (".", "nothing was recorded: . has no log"),
        ("nowhere", "cannot read nowhere"),
    ] {
        let output = run(&place, &["record", "--from", name]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
    let both = run(&place, &["record", "--from", ".", "--", "true"]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
}

/// Writes a log of 1 GiB to the new file `path`. Its first and its last chunk have an allocation each.
fn write_long_log(path: &Path) {
    use millpond_intercept::format::{CHUNK, EVENT, HEADER, MAGIC, Memory, VERSION, first_word, kind};
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).expect("created");
    let write = |at: usize, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, at as u64).expect("written");
    };
    let alloc = |address: u64| {
        let first = first_word(kind::ALLOC, Memory::Device as u8, EVENT);
        [first, 1, address, 4096, 4096, 0, 7 << 32, 0, 0]
    };
    let skip = |words| [first_word(kind::SKIP, 0, CHUNK / 8 - words)];
    let header: [u64; HEADER] = [MAGIC, VERSION, 77, 1, 0, 0, 0, 0];
    write(0, &[&header[..], &alloc(4096), &skip(HEADER + EVENT)].concat());
    (1..1023).for_each(|chunk| write(chunk * CHUNK, &skip(0)));
    write(1023 * CHUNK, &alloc(8192));
}

#[test]
fn a_long_log_is_not_read_into_memory() {
    let place = folder("record_long");
    write_long_log(&place.join("long.log"));
    // The command may have 256 MiB of addresses.
    let script =
        "ulimit -v 262144; exec \"$0\" record -- sh -c 'mv long.log \"$MILLPOND_INTERCEPT/77.0.log\"'";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_millpond")])
        .current_dir(&place)
        .output()
        .expect("started");
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("in 2 allocations."), "{errors}");
}

#[test]
fn processes_without_a_log_are_counted() {
    let place = folder("record_without");
    let script = "cd \"$MILLPOND_INTERCEPT\" && : >10.0.log && : >10.1.log && : >11.0.log";
    let output = run(&place, &["record", "--", "sh", "-c", script]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let expected = "millpond: nothing was recorded: 2 processes could not write their logs";
    assert!(errors.starts_with(expected), "{errors}");
}

#[test]
fn the_library_is_stored_where_no_other_user_can_replace_it() {
    let Some(place) = place("record_private") else {
        return;
    };
    let home = place.join("home");
    std::fs::create_dir(&home).expect("a folder");
    let library = |output: &str| {
        let mut command = command(&["record", "-o", output, "--", "sh", "-c", "ls -l $LD_PRELOAD"]);
        command.current_dir(&place).env("HOME", &home);
        let output = command.env_remove("XDG_RUNTIME_DIR").output();
        String::from_utf8(output.expect("started").stdout).expect("text")
    };
    let beside = library("run.mpr");
    assert!(
        beside.starts_with("-r-x------") && beside.contains("/record_private/run.mpr."),
        "{beside}"
    );
    std::fs::create_dir(place.join("with space")).expect("a folder");
    let apart = library("with space/run.mpr");
    assert!(apart.contains("/home/.cache/millpond/record."), "{apart}");
    assert!(
        !std::fs::read_dir(home.join(".cache/millpond")).is_ok_and(|mut entries| entries.next().is_some())
    );
}

#[test]
fn the_error_names_a_missing_interpreter() {
    let place = folder("record_interpreter");
    std::fs::write(place.join("script"), "#!/no/such/shell -e\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.join("script"), mode).expect("set");
    let output = run(&place, &["record", "--", "./script"]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("./script is there, but its interpreter /no/such/shell is not"),
        "{errors}"
    );
}
