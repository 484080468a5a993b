//! Each example proves what it shows, and ends with an error if it cannot.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::Command;

/// Where cargo puts the examples, which it builds with all tests of the crate, and not with this one alone.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a file");
    let built = test.ancestors().nth(2).expect("a folder above `deps`");
    let path = built.join("examples").join(name);
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "millpond", "--example", name]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(
            cargo.status().expect("cargo starts").success(),
            "{name} cannot be built"
        );
    }
    path
}

fn run(name: &str) -> String {
    let output = Command::new(example(name))
        .env_remove("MILLPOND_CONF")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}{error}");
    said
}

#[test]
fn buffers_of_many_threads_all_come_back() {
    let said = run("many_threads");
    assert!(
        said.contains("80000 buffers") && said.contains("at nought: proven"),
        "{said}"
    );
}

#[test]
fn a_training_loop_is_steady_and_leaks_nothing() {
    let said = run("training_loop");
    assert!(
        said.contains("0 in all others") && said.contains("free of leaks: proven"),
        "{said}"
    );
}

#[test]
fn compaction_gives_holes_back_and_touches_nothing_that_lives() {
    let said = run("compaction");
    assert!(
        said.contains("0 buffers at another address, 0 with other contents") && said.contains("proven"),
        "{said}"
    );
}
