//! Tests the errors and help texts for features that are not in this build. The default build contains none of them.

mod support;

use support::{folder, run, small};

/// Runs the program, and returns whether it failed because the feature is not built. If so, checks the exit code, and that the error names
/// the command that installs the feature.
fn is_refused(feature: &str, args: &[&str]) -> bool {
    let (code, stdout, stderr) = run(args);
    let refused = stderr.contains("this build of millpond does not contain");
    if refused {
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}: {stderr}");
        let install = format!("cargo install --path crates/millpond-cli --features {feature}`");
        assert!(
            stderr.lines().count() == 1 && stderr.contains(&install),
            "{args:?}: {stderr}"
        );
    }
    refused
}

#[test]
fn a_part_that_is_not_built_names_the_command_that_installs_it() {
    let folder = folder("features");
    let file = small(&folder, "run.csv");
    let table = folder.join("run.parquet").display().to_string();
    let other = folder.join("run").display().to_string();
    let commands: &[(&str, bool, &[&str])] = &[
        ("bench", cfg!(feature = "bench"), &["bench"]),
        ("bench", cfg!(feature = "bench"), &["bench", "host", "--help"]),
        (
            "bench",
            cfg!(feature = "bench"),
            &["replay", &file, "--source", "host", "--device", "1G"],
        ),
        (
            "bench",
            cfg!(feature = "bench"),
            &["replay", &file, "--source", "cuda:9"],
        ),
        ("parquet", cfg!(feature = "parquet"), &["convert", &file, &table]),
        (
            "parquet",
            cfg!(feature = "parquet"),
            &["convert", &file, &other, "--to", "parquet"],
        ),
        ("top", cfg!(feature = "top"), &["top", "--help"]),
        ("top", cfg!(feature = "top"), &["top", "--json"]),
    ];
    for (feature, is_built, args) in commands {
        assert_eq!(is_refused(feature, args), !is_built, "{args:?}");
    }
}

#[test]
fn the_help_names_the_parts_that_are_not_built() {
    for (feature, is_built, args) in [
        ("bench", cfg!(feature = "bench"), ["--help", "--help"]),
        ("top", cfg!(feature = "top"), ["--help", "--help"]),
        ("bench", cfg!(feature = "bench"), ["replay", "--help"]),
        ("parquet", cfg!(feature = "parquet"), ["convert", "--help"]),
    ] {
        let (code, help, _) = run(&args);
        // The comparison ignores line breaks.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let says = help.contains(&format!(
            "not in this build: install it with `--features {feature}`"
        ));
        assert_eq!((code, says), (0, !is_built), "{args:?}: {help}");
    }
}
