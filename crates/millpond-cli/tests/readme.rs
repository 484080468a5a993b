//! The README and the book show what the program prints. `MILLPOND_UPDATE=1 cargo test --release -p millpond-cli --test readme`
//! writes their blocks anew.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A block of a page, and the arguments that print it.
struct Block {
    page: &'static str,
    name: &'static str,
    args: &'static [&'static str],
}

const PRINTED: [Block; 4] = [
    Block {
        page: "README.md",
        name: "replay",
        args: &["replay", "--quiet", "traces/llama1b_train_varlen.csv.zst"],
    },
    Block {
        page: "docs/out-of-memory.md",
        name: "replay on a device",
        args: &[
            "replay",
            "--quiet",
            "traces/gnn_sage_sampled.csv.zst",
            "--device",
            "1.22GiB",
        ],
    },
    Block {
        page: "docs/report.md",
        name: "replay of all policies",
        args: &[
            "replay",
            "--quiet",
            "--all",
            "--calls",
            "traces/llama1b_train_varlen.csv.zst",
        ],
    },
    Block {
        page: "docs/report.md",
        name: "report",
        args: &[
            "report",
            "--quiet",
            "--top",
            "5",
            "traces/llama8b_fsdp_streams.csv.zst",
        ],
    },
];

/// Blocks that other tests and `cargo xtask pictures` compare or write.
const ELSEWHERE: [&str; 3] = ["printed: out of memory", "printed: practice", "taken: top"];

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

/// Returns the text without the one column that differs from run to run: host nanoseconds per event.
fn without_times(text: &str) -> Vec<String> {
    // The end of that column, in the table that has it.
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
fn the_pages_show_the_printed_output() {
    for Block { page, name, args } in PRINTED {
        let path = root().join(page);
        let begin = format!("<!-- printed: {name} -->\n```text\n");
        let text = std::fs::read_to_string(&path).expect(page);
        let (before, rest) = text.split_once(&begin).expect("the page has the block");
        let (shown, after) = rest.split_once(END).expect("the printed block ends");
        let printed = printed(args);
        if std::env::var_os("MILLPOND_UPDATE").is_some() {
            std::fs::write(&path, format!("{before}{begin}{printed}{END}{after}"))
                .expect("the page is writable");
            continue;
        }
        assert_eq!(
            without_times(shown),
            without_times(&printed),
            "{name}: run with MILLPOND_UPDATE=1 to renew {page}"
        );
    }
}

#[test]
fn every_printed_block_of_the_pages_belongs_to_a_test() {
    for page in support::pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        let markers = text.lines().filter_map(|line| {
            let marker = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
            (marker != "end").then_some(marker)
        });
        for marker in markers {
            let is_ours = |block: &Block| {
                Some(block.name) == marker.strip_prefix("printed: ") && page.ends_with(block.page)
            };
            assert!(
                PRINTED.iter().any(is_ours) || ELSEWHERE.contains(&marker),
                "{}: no test compares {marker:?}",
                page.display()
            );
        }
    }
}

/// The commands above the blocks are the commands that print them.
#[test]
fn the_pages_name_the_command_of_each_block() {
    for Block { page, name, args } in PRINTED {
        let text = std::fs::read_to_string(root().join(page)).expect(page);
        let (before, _) = text
            .split_once(&format!("<!-- printed: {name} -->"))
            .expect("the page has the block");
        let command = before
            .lines()
            .rfind(|line| line.starts_with("$ "))
            .expect("a command");
        let has = |argument: &str| command.split(' ').any(|word| word == argument);
        let missing: Vec<_> = args
            .iter()
            .filter(|arg| **arg != "--quiet" && !has(arg))
            .collect();
        assert!(missing.is_empty(), "{page}: {command} lacks {missing:?}");
    }
}
