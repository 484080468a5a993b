//! What the README shows is what the program prints. `MILLPOND_UPDATE=1 cargo test --release -p millpond-cli
//! --test readme` writes it anew.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Blocks of the README, and what prints them.
const PRINTED: [(&str, &[&str]); 2] = [
    (
        "replay",
        &["replay", "--quiet", "traces/llama1b_train_varlen.csv.zst"],
    ),
    (
        "report",
        &[
            "report",
            "--quiet",
            "--top",
            "5",
            "traces/llama8b_fsdp_streams.csv.zst",
        ],
    ),
];
const END: &str = "```\n<!-- end -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn printed(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(args)
        .env("COLUMNS", "100")
        .current_dir(root())
        .output()
        .expect("the binary runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The text without the one column that differs from run to run: host nanoseconds per event.
fn without_times(text: &str) -> Vec<String> {
    // Where that column ends, in the table that has it.
    let mut end = None;
    let mask = |line: &str| -> String {
        if line.contains("time")
            && let Some((before, _)) = line.split_once("event")
        {
            end = Some(before.chars().count() + "event".len());
        } else if line.is_empty() {
            end = None;
        }
        let in_column = |at: usize| end.is_some_and(|end| (end.saturating_sub(6)..end).contains(&at));
        line.chars()
            .enumerate()
            .map(|(at, c)| {
                if in_column(at) && c.is_ascii_digit() {
                    ' '
                } else {
                    c
                }
            })
            .collect()
    };
    text.lines().map(mask).collect()
}

#[test]
fn the_readme_shows_what_is_printed() {
    let path = root().join("README.md");
    for (name, args) in PRINTED {
        let begin = format!("<!-- printed: {name} -->\n```text\n");
        let readme = std::fs::read_to_string(&path).expect("README.md");
        let (before, rest) = readme.split_once(&begin).expect("the README has the block");
        let (shown, after) = rest.split_once(END).expect("the printed block ends");
        let printed = printed(args);
        if std::env::var_os("MILLPOND_UPDATE").is_some() {
            std::fs::write(&path, format!("{before}{begin}{printed}{END}{after}"))
                .expect("README.md is writable");
            continue;
        }
        assert_eq!(
            without_times(shown),
            without_times(&printed),
            "{name}: run with MILLPOND_UPDATE=1 to renew the README"
        );
    }
}
