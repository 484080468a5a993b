//! Tests `millpond run`: the environment of the program, its exit code, and the errors before it starts.

mod support;

use std::path::PathBuf;
use support::command;

/// Returns a library that can be preloaded without an effect: the C library that this test has loaded already.
fn library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc.so") || path.contains("/libc-"));
    PathBuf::from(path.expect("a C library"))
}

/// Runs a shell. Returns its exit code, stdout and stderr.
fn shell(options: &[&str], script: &str) -> (i32, String, String) {
    let arguments = [&["run"], options, &["--", "sh", "-c", script]].concat();
    let output = command(&arguments)
        .env("MILLPOND_MALLOC_LIB", library())
        .env("MILLPOND_CONF", "trim-every:2s")
        .env("LD_PRELOAD", "libm.so.6")
        .env_remove("MILLPOND_RECORD")
        .output()
        .expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code().expect("no signal"),
        text(output.stdout),
        text(output.stderr),
    )
}

const PRINT: &str =
    "echo $LD_PRELOAD; echo $MILLPOND_CONF; echo $MILLPOND_RECORD; echo $MILLPOND_MALLOC; exit 7";

#[test]
fn the_program_gets_the_library_and_the_settings() {
    let library = library().canonicalize().expect("a library");
    let preloaded = format!("{}:libm.so.6", library.display());
    let here = std::env::current_dir().expect("a directory");
    let (code, stdout, stderr) = shell(&[], PRINT);
    assert_eq!((code, stderr.as_str()), (7, ""));
    assert_eq!(stdout, format!("{preloaded}\ntrim-every:2s\n\nrefusals\n"));

    let options = ["--limit", "2GiB", "--stats", "--record", "run.%p.mpr"];
    let (_, stdout, _) = shell(&options, PRINT);
    assert_eq!(
        stdout,
        format!(
            "{preloaded}\ntrim-every:2s,limit:2147483648\n{}/run.%p.mpr,stacks=512K\nrefusals,stats\n",
            here.display()
        )
    );

    let options = [
        "--conf",
        "track:all",
        "--record",
        "run.mpr",
        "--stacks",
        "all",
        "--ring",
        "1M",
    ];
    // Without %p, only the program itself is recorded.
    let (_, stdout, _) = shell(&options, &format!("echo $$; {PRINT}"));
    let (process, stdout) = stdout.split_once('\n').expect("the process ID of the shell");
    assert_eq!(
        stdout.replace(&format!("pid={process}"), "pid=PID"),
        format!(
            "{preloaded}\ntrack:all\n{}/run.mpr,stacks=all,ring=1048576,pid=PID\nrefusals\n",
            here.display()
        )
    );
}

#[test]
fn errors_are_reported_before_the_program_starts() {
    for (options, program, told) in [
        (&["--conf", "limt:1GiB"][..], "true", "unknown setting 'limt'"),
        (&["--record", "a,b.mpr"], "true", "a path without a comma"),
        (&["--record", "a.mpr", "--ring", "1X"], "true", "--ring"),
        (&["--record", "/nowhere/run.%p.mpr"], "true", "/nowhere/run."),
        (&["--record", "/dev/null"], "true", "/dev/null"),
        (&["--record", "Cargo.toml"], "true", "Cargo.toml"),
        (&[], "no-such-program", "there is no program no-such-program"),
    ] {
        let arguments = [&["run"], options, &["--", program]].concat();
        let output = command(&arguments)
            .env("MILLPOND_MALLOC_LIB", library())
            .env_remove("MILLPOND_CONF")
            .output()
            .expect("the program starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{options:?}: {stderr}");
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{stderr}");
    }
    let missing = command(&["run", "--", "true"])
        .env("MILLPOND_MALLOC_LIB", "/nowhere/lib.so")
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8(missing.stderr).expect("UTF-8");
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr.contains("/nowhere/lib.so") && stderr.lines().count() == 1,
        "{stderr}"
    );
    let (code, _, stderr) = support::run(&["run"]);
    assert!(code == 2 && stderr.contains("PROGRAM"), "{stderr}");
}
