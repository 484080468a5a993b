//! Random calls from several threads, with wrong arguments among them, under the address sanitizer.

mod support;

use std::process::Command;
use support::{command, compile, folder, install, is_installed, package, run};

/// The calls that the test makes, and the seed of the random numbers.
const CALLS: &str = "100000";
const SEED: &str = "1";

#[test]
fn random_calls_return_codes_and_cause_no_memory_error() {
    if !is_installed("cc", "--version") {
        return;
    }
    let prefix = folder("random");
    install(&prefix);
    let source = package().join("tests/programs/random.c");
    // The sanitizer is not installed with every compiler.
    let probe = prefix.join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").expect("written");
    let sanitized = Command::new("cc")
        .args(["-fsanitize=address", "-o"])
        .args([&prefix.join("probe"), &probe])
        .output()
        .is_ok_and(|done| done.status.success());
    let mut flags = vec!["-std=c11", "-D_GNU_SOURCE", "-O1"];
    match sanitized {
        true => flags.extend(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
        false => println!("skipped: this compiler has no address sanitizer, so the calls run without it"),
    }
    let program = compile("cc", &prefix, &source, &flags);
    let printed = run(command(&program, &prefix).args([CALLS, SEED, "device"]));
    println!("{printed}");
    let blocks = printed.lines().find_map(|line| line.strip_prefix("blocks: "));
    let blocks = blocks.expect("the numbers of blocks").split(", ");
    let numbers = blocks.map(|kind| kind.split(' ').next().and_then(|number| number.parse().ok()));
    assert!(
        numbers
            .into_iter()
            .all(|number| number.is_some_and(|number: u64| number > 1000)),
        "too few blocks: {printed}"
    );
    for code in [
        "OK",
        "INVALID_ARGUMENT",
        "INVALID_HANDLE",
        "INVALID_POINTER",
        "OUT_OF_MEMORY",
        "TOO_LARGE",
    ] {
        let none = format!("MILLPOND_{code}: 0\n");
        assert!(!printed.contains(&none), "no call returned {code}: {printed}");
    }
}
