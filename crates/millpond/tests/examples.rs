//! Every example runs to its end and finds what it says it shows.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The examples were built beside this test, unless it was asked for alone.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let folder = own.parent().and_then(Path::parent).expect("a target folder");
    let program = folder.join("examples").join(name);
    assert!(
        program.exists(),
        "{name} was not built: `cargo build -p millpond --examples` does it, or `cargo test -p millpond`"
    );
    program
}

#[test]
fn all_of_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("examples")
        .filter_map(|file| file.expect("a file").file_name().into_string().ok())
        .filter_map(|file| file.strip_suffix(".rs").map(str::to_owned))
        .collect();
    names.sort();
    for proves in ["monitor", "scoped"] {
        assert!(names.iter().any(|name| name == proves), "{names:?}");
    }
    for name in names {
        let output = Command::new(built(&name)).output().expect("it starts");
        let told = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {told}\n{failed}");
        assert!(!told.contains("\nNO "), "{name}: {told}");
    }
}

#[test]
fn what_the_environment_says_changes_no_proof() {
    for name in ["monitor", "scoped"] {
        let output = Command::new(built(name))
            .env("MILLPOND_CONF", "limit:3GiB,prewarm:[1MiB*8],trim-at-pressure:1%")
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{name}: {output:?}");
    }
}
