//! Each example proves its claims, and ends with an error if it cannot.
#![cfg(target_os = "linux")]

#[path = "support/example.rs"]
mod example;

use example::example;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(name: &str) -> String {
    run_with(name, &[])
}

fn run_with(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(example(name, name))
        .args(arguments)
        .env_remove("MILLPOND_CONF")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}{error}");
    said
}

#[test]
fn buffers_and_tensors_of_many_threads_are_all_returned() {
    let said = run("many_threads");
    assert!(
        said.contains("80000 buffers and 6004 tensors") && said.contains("at zero: proven"),
        "{said}"
    );
}

#[test]
fn a_training_loop_is_steady_and_leaks_nothing() {
    let said = run("training_loop");
    assert!(
        said.contains("0 in all others")
            && said.contains("compactions: 1 before the first step, 0 later")
            && said.contains("free of leaks: proven"),
        "{said}"
    );
}

#[test]
fn a_file_is_processed_in_less_memory_than_its_size() {
    let said = run("data_set");
    assert!(
        said.contains("96.0 MiB")
            && said.contains("yes  the sum matches the written data")
            && said.contains("yes  the process stayed within the budget"),
        "{said}"
    );
}

#[test]
fn compaction_frees_unused_memory_and_changes_no_live_block() {
    let said = run("compaction");
    assert!(
        said.contains("0 blocks at another address, 0 with other contents") && said.contains("proven"),
        "{said}"
    );
}

#[test]
fn a_monitored_program_compacts_its_memory() {
    let said = run("monitor");
    assert!(
        said.contains("compacting: ")
            && said.matches("warning: ").count() == 1
            && said.contains("yes  no live block moved"),
        "{said}"
    );
}

#[test]
fn a_scope_leaves_nothing_behind() {
    let said = run("scoped");
    assert!(
        said.contains("yes  the memory of that scope was freed too")
            && said.contains("yes  the default pool is in use again"),
        "{said}"
    );
}

#[test]
fn a_rented_buffer_is_exclusive_until_it_is_returned() {
    let said = run("rental");
    assert!(
        said.contains("yes  all but the first few of 4000 rents reused a buffer")
            && said.contains("yes  no tenant read the data of another")
            && said.contains("yes  all memory was freed"),
        "{said}"
    );
}

#[test]
fn batches_are_views_and_work_in_place_allocates_nothing() {
    let said = run("batches");
    assert!(
        said.contains("14 batches, the last with 16 rows")
            && said.contains("yes  nothing was allocated in place")
            && said.contains("yes  the data was not freed while batches existed"),
        "{said}"
    );
}

#[test]
fn a_network_learns_and_its_steps_allocate_nothing() {
    let said = run_with("network", &["--quick"]);
    assert!(
        said.contains("0 by the 281 others;")
            && said.contains("yes  the gradients match the loss")
            && said.contains("yes  the test digits are recognised"),
        "{said}"
    );
}

#[test]
fn images_are_processed_in_existing_memory() {
    let said = run("image_pipeline");
    assert!(
        said.contains("32 images of 8 sizes: 0 allocations")
            && said.contains("yes  every image matches that of a plain loop")
            && said.contains("yes  images that do not fit are refused"),
        "{said}"
    );
}

#[test]
fn examples_pass_with_any_settings_in_the_environment() {
    for name in ["monitor", "scoped", "rental", "image_pipeline"] {
        let output = Command::new(example(name, name))
            .env("MILLPOND_CONF", "limit:3GiB,prewarm:[1MiB*8],trim-at-pressure:1%")
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

#[test]
fn a_planted_leak_is_found_by_tag_size_and_place() {
    let said = run("leak_hunt");
    assert!(said.contains("found by tag and size: proven"), "{said}");
    if cfg!(feature = "stacks") {
        // With line tables only, the name of a function that was inlined has no path.
        let places = ["leak_hunt::attention", "attention"];
        let is_found = |place| said.contains(&format!("found by place: proven, in {place}\n"));
        assert!(places.into_iter().any(is_found), "{said}");
    }
}

#[test]
fn an_observed_program_prints_the_observations_of_its_monitor() {
    let said = run_with("live", &["1"]);
    for line in ["weights", "activations", "budget job/step", "resident"] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn examples_without_proofs_run_to_the_end() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).expect("examples");
    let names = files.filter_map(|file| file.expect("a file").file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter_map(|file| file.strip_suffix(".rs").map(str::to_owned))
        .collect();
    let proven = [
        "many_threads",
        "training_loop",
        "compaction",
        "monitor",
        "live",
        "scoped",
        "rental",
        "leak_hunt",
        "guarded",
        "batches",
        "data_set",
        "particles",
        "image_pipeline",
        // This library for Python has a test of its own.
        "numpy",
    ];
    let all = names.len();
    names.retain(|name| !proven.contains(&name.as_str()));
    assert_eq!(names.len() + proven.len(), all, "{names:?}");
    for name in names {
        run(&name);
    }
}

#[cfg(feature = "derive")]
#[test]
fn particles_are_equal_as_structures_and_as_arrays() {
    let said = run("particles");
    assert!(
        said.contains("lost after moves") && said.contains("yes  all memory was freed"),
        "{said}"
    );
}

#[test]
fn a_signal_handler_reports_the_owner_of_the_block() {
    let said = run("guarded");
    assert!(said.contains("every wrong access was found: proven"), "{said}");
}

const BEGIN: &str = "<!-- printed: practice -->\n```text\n";
const END: &str = "```\n<!-- end -->";

/// `MILLPOND_UPDATE=1 cargo test --release -p millpond --test examples` rewrites the table.
#[test]
fn the_practice_page_shows_the_printed_table() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/practice.md");
    let page = std::fs::read_to_string(&path).expect("docs/practice.md");
    let (before, rest) = page.split_once(BEGIN).expect("it has a printed block");
    let (shown, after) = rest.split_once(END).expect("the printed block ends");
    if std::env::var_os("MILLPOND_UPDATE").is_some() {
        let release = !cfg!(debug_assertions);
        assert!(release, "figures are of a release");
        let printed = run_with("practice", &[]);
        std::fs::write(&path, format!("{before}{BEGIN}{printed}{END}{after}")).expect("it is writable");
        return;
    }
    // Each practice can be run, and appears on the page, in the table and in the text. Times differ.
    let ran = run_with("practice", &["--quick"]);
    for name in run_with("practice", &["--names"]).lines() {
        for text in [&ran, shown] {
            assert!(
                text.lines().any(|line| line.starts_with(name)),
                "run with MILLPOND_UPDATE=1: {name}"
            );
        }
        assert!(
            before.contains(&format!("**{name}**")) || after.contains(&format!("**{name}**")),
            "{name}"
        );
    }
    assert_eq!(
        shown.lines().count(),
        ran.lines().count(),
        "run with MILLPOND_UPDATE=1"
    );
}

/// Returns the names in a piece of code.
fn names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|name| name.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// The documentation tests compile the calls that `src/book.rs` lists, so that every name on the page exists.
#[test]
fn every_call_on_the_page_for_newcomers_is_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let page = read(root.join("../../docs/coming-from.md"));
    let compiled = read(root.join("src/book.rs"));
    let compiled: std::collections::HashSet<&str> = names(&compiled).collect();
    // Names that the page uses for the reader's own values, and words of the command and its settings.
    let own = [
        "bytes", "count", "f", "graph", "i", "max", "n", "ptr", "queue", "set", "shape", "size", "template",
        "work", "x", "y",
    ];
    let mut calls = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let ours = row.trim_end_matches('|').rsplit(" | ").next().unwrap_or_default();
        for code in ours.split('`').skip(1).step_by(2) {
            // The code is a command, an environment variable, or a setting.
            if code.starts_with("millpond ")
                || code.starts_with("MILLPOND_")
                || code.contains('-') && !code.contains('(')
            {
                continue;
            }
            calls += 1;
            let text = code.split('"').step_by(2).collect::<String>();
            for name in names(&text) {
                assert!(
                    compiled.contains(name) || own.contains(&name),
                    "{name} in `{code}` is not in src/book.rs, which compiles the calls of the page"
                );
            }
        }
    }
    assert!(calls > 120, "the page has more calls: {calls}");
}
