//! The examples of the crate, which tests run or load.

use std::path::PathBuf;
use std::process::Command;

/// Returns the path of an example's file. Cargo builds the examples with all tests of the crate, and not with one test alone.
pub(crate) fn example(name: &str, file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a file");
    let built = test.ancestors().nth(2).expect("a folder above `deps`");
    let path = built.join("examples").join(file);
    if !path.exists() {
        let features = [
            ("cuda", cfg!(feature = "cuda")),
            ("derive", cfg!(feature = "derive")),
            ("dlpack", cfg!(feature = "dlpack")),
            ("half", cfg!(feature = "half")),
            ("stacks", cfg!(feature = "stacks")),
        ];
        let features = features.into_iter().filter(|(_, is_on)| *is_on);
        let features: Vec<&str> = features.map(|(name, _)| name).collect();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "millpond", "--example", name]);
        cargo.args(["--features", &features.join(",")]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let status = cargo.status().expect("cargo starts");
        assert!(status.success(), "{name} cannot be built");
    }
    path
}
