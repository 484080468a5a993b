//! Tests the program `host` from outside: its children, its tables, and its errors for invalid arguments.

use std::process::{Command, Output};

fn host(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_host"));
    command
        .args(arguments.split_whitespace())
        .output()
        .expect("it was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_allocator_has_a_row_from_a_process_of_its_own() {
    let output = host("guda-hot w6:1KiB half --rounds 2");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let mut names = vec!["glibc", "gl-tuned", "millpond"];
    if cfg!(feature = "peers") {
        names.extend(["mimalloc", "jemalloc", "je-tuned", "snmalloc"]);
    } else {
        assert!(
            shown.contains("not built in: mimalloc, jemalloc, je-tuned, snmalloc"),
            "{shown}"
        );
    }
    for name in names {
        // Hot, cold, the zeroed round, the freed half, and its memory.
        let rows = shown
            .lines()
            .filter(|line| line.split_whitespace().take(2).any(|word| word == name));
        assert_eq!(rows.count(), 5, "{name} in\n{shown}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
}

#[test]
fn once_runs_one_workload_in_this_process() {
    let output = host("--once W1:64 --peer glibc");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.starts_with("time pair ") && shown.contains(" 20000 "),
        "{shown}"
    );
}

#[test]
fn invalid_arguments_are_errors_with_a_hint() {
    for (arguments, said) in [
        ("w7", "there is no workload 'w7'"),
        ("w1:64:a3", "there is no workload"),
        ("--peer tcmalloc", "mimalloc"),
        ("--rounds 0", "1 to 1000"),
        ("--rounds", "a value is required"),
        ("--fast", "unexpected argument '--fast'"),
        ("--once half --peer loop", "does not run"),
        ("--once w1:64 --peer gl-tuned", "MALLOC_MMAP_MAX_=0"),
    ] {
        let output = host(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(
            text(&output.stderr).contains(said),
            "{arguments}: {}",
            text(&output.stderr)
        );
    }
}
