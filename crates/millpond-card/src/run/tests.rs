//! Runs the library's test programs on the machine's driver.

use super::Session;
use super::child::{Ended, Program};
use super::programs::machine_library;
use super::report::Step;
use serde_json::json;

const TABLE: &str = "Test programs";
const FAILED: &str = "Tests that failed";
/// Seconds after which a test that prints nothing counts as hanging.
const SILENT: u64 = 30;
/// The largest number of runs of a program. After a test that ended the program, it runs again without the tests that already ran.
const AGAIN: usize = 4;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Passed,
    /// The reason that the test printed when it skipped itself.
    Skipped(String),
    Failed,
    Ignored,
    /// The test ended its program, or hung.
    Lost,
}

/// Runs a test program. If a test ends the program or hangs, the program runs again without the tests that already ran.
pub(super) fn run(session: &Session, step: &mut Step, name: &str, seconds: u64) {
    step.table(
        TABLE,
        &["program", "passed", "skipped", "failed", "lost", "seconds"],
    );
    let path = format!("tests/{name}");
    if !session.folder.join(&path).exists() {
        step.note(&format!(
            "the folder lacks the test program {name}, so it was not run"
        ));
        return;
    }
    let (mut all, mut taken): (Vec<(String, Ending)>, f64) = (Vec::new(), 0.0);
    for round in 0..AGAIN {
        let mut program = program(session, &path, &format!("{name}-{round}"), seconds)
            .args(["--test-threads=1", "--nocapture"])
            .quiet(SILENT);
        if !all.is_empty() {
            program = program.args(["--exact"]);
            for (test, _) in &all {
                program = program.args(["--skip", test]);
            }
        }
        let ran = match program.run(session) {
            Ok(ran) => ran,
            Err(why) => return step.trouble(why),
        };
        taken += ran.seconds;
        let found = read(&ran.out);
        let lost = found.iter().any(|(_, ending)| *ending == Ending::Lost);
        all.extend(found);
        match ran.ended {
            // A test program exits with 101 if tests failed.
            Ended::Code(0 | 101) if !lost => break,
            _ if lost => step.note(&format!(
                "{name}: {} ended its program ({:?})",
                all.last().map_or("a test", |(test, _)| test.as_str()),
                ran.ended
            )),
            ended => {
                step.trouble(format!("{name} ended without a result ({ended:?})"));
                break;
            }
        }
    }
    let count = |of: &dyn Fn(&Ending) -> bool| all.iter().filter(|(_, ending)| of(ending)).count();
    let failed = count(&|ending| *ending == Ending::Failed);
    let lost = count(&|ending| *ending == Ending::Lost);
    step.row(
        TABLE,
        vec![
            json!(name),
            json!(count(&|ending| *ending == Ending::Passed)),
            json!(count(&|ending| matches!(ending, Ending::Skipped(_)))),
            json!(failed),
            json!(lost),
            json!((taken * 10.0).round() / 10.0),
        ],
    );
    if failed + lost > 0 {
        step.table(FAILED, &["program", "test", "how"]);
        for (test, ending) in &all {
            if matches!(ending, Ending::Failed | Ending::Lost) {
                step.row(
                    FAILED,
                    vec![json!(name), json!(test), json!(format!("{ending:?}"))],
                );
            }
        }
        step.trouble(format!(
            "{name}: {failed} tests failed, {lost} ended their program; see {name}-*.out in logs.tar.gz"
        ));
    }
    let skipped: Vec<_> = all
        .iter()
        .filter_map(|(test, ending)| match ending {
            Ending::Skipped(why) => Some(json!({ "test": test, "why": why })),
            _ => None,
        })
        .collect();
    step.answer(&format!("skipped in {name}"), json!(skipped));
}

/// Prepares a test program that finds the driver as on a machine with a card. In a rehearsal it finds a driver without the emulator's own
/// functions, except those that the kernels of tests need.
fn program(session: &Session, path: &str, name: &str, seconds: u64) -> Program {
    let mut program = Program::new(session, path, name, seconds)
        .env("MILLPOND_TEST_CUDA", "real")
        .together();
    if let Some(folder) = session.driver_folder() {
        let bare = folder.join("bare");
        let folder = if bare.exists() { bare } else { folder.to_path_buf() };
        program = program.env("LD_LIBRARY_PATH", folder);
    }
    // The tests compare the results of kernels with those of the host, which sums in the same order. cuBLAS sums in another order, so it
    // is off. One test loads it from the path in `MILLPOND_TEST_CUBLAS`.
    program = program.env("MILLPOND_CUBLAS", "off");
    for (variable, library) in [
        ("MILLPOND_NVRTC", "libnvrtc.so"),
        ("MILLPOND_TEST_CUBLAS", "libcublas.so"),
    ] {
        if let Some(path) = machine_library(session, library) {
            program = program.env(variable, path);
        }
    }
    program
}

/// Reads the output of tests that ran one after the other, with their own output in between.
fn read(text: &str) -> Vec<(String, Ending)> {
    let mut all: Vec<(String, Ending)> = Vec::new();
    let mut open: Option<(String, Option<String>)> = None;
    for line in text.lines() {
        // A test that runs itself in another process prints that process's output.
        let again = |name: &str| open.as_ref().is_some_and(|(open, _)| open == name);
        if let Some((name, rest)) = begins(line).filter(|(name, _)| !again(name)) {
            if let Some((lost, _)) = open.take() {
                all.push((lost, Ending::Lost));
            }
            open = Some((name.to_owned(), None));
            said(rest, &mut open, &mut all);
        } else {
            said(line, &mut open, &mut all);
        }
    }
    if let Some((lost, _)) = open {
        all.push((lost, Ending::Lost));
    }
    all
}

/// Returns the name of the test that begins on this line, and the rest of the line.
fn begins(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    (!name.contains(' ')).then_some((name, rest))
}

/// Processes a line of a test's output, which may be the test's result.
fn said(text: &str, open: &mut Option<(String, Option<String>)>, all: &mut Vec<(String, Ending)>) {
    let Some((name, skipped)) = open else { return };
    if let Some((_, why)) = text.split_once("skipped: ") {
        *skipped = Some(why.trim_end_matches("ok").to_owned());
    }
    // The last output of a test may lack a line break, so that the result follows on the same line.
    let ending = if text.ends_with("FAILED") {
        Ending::Failed
    } else if text == "ignored" || text.starts_with("ignored, ") {
        Ending::Ignored
    } else if text == "ok" {
        skipped.take().map_or(Ending::Passed, Ending::Skipped)
    } else {
        return;
    };
    all.push((std::mem::take(name), ending));
    *open = None;
}

/// Runs the churn test, which allocates and frees blocks on eight streams, under compute-sanitizer if the machine has it.
pub(super) fn churn(session: &Session, step: &mut Step, seconds: u64) {
    const CHURN: &str = "churn::blocks_keep_their_contents_on_eight_streams";
    let path = "tests/cuda_pool";
    if !session.folder.join(path).exists() {
        return step.note("the folder lacks the test program cuda_pool, so the churn test was not run");
    }
    let sanitizer = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"]
        .into_iter()
        .find(|tool| {
            Program::new(session, tool, "sanitizer-version", 10)
                .args(["--version"])
                .run(session)
                .is_ok()
        });
    let test = session.folder.join(path);
    let test = test.to_string_lossy();
    let arguments = [CHURN, "--exact", "--nocapture", "--test-threads=1"];
    let rounds = if session.quick { "20" } else { "2000" };
    let program = match sanitizer {
        Some(tool) => program(session, tool, "churn", seconds)
            .args([
                "--tool",
                "memcheck",
                "--target-processes",
                "all",
                "--error-exitcode",
                "9",
                &test,
            ])
            .args(arguments),
        None => {
            step.note("this machine lacks compute-sanitizer, so the churn test ran without it");
            program(session, path, "churn", seconds).args(arguments)
        }
    };
    // `MILLPOND_TEST_OF_CUDA` makes the test run in this process and not in a child process, so that the output has the sanitizer's
    // summary.
    let program = program
        .env("MILLPOND_CHURN_ROUNDS", rounds)
        .env("MILLPOND_TEST_OF_CUDA", CHURN);
    match program.run(session) {
        Ok(ran) => {
            let passed = read(&ran.out).iter().any(|(_, ending)| *ending == Ending::Passed);
            let summary = ran.out.lines().find(|line| line.contains("ERROR SUMMARY"));
            step.check(
                "churn on eight streams reads what it wrote, and the sanitizer finds nothing",
                passed && ran.ended == Ended::Code(0),
                format!(
                    "{rounds} rounds in {:.1} s; {}",
                    ran.seconds,
                    summary.map_or("no sanitizer", |line| line.trim_start_matches(['=', ' ']))
                ),
            );
            if !passed {
                step.trouble(format!(
                    "the churn test ended with {:?}; see churn.out in logs.tar.gz",
                    ran.ended
                ));
            }
        }
        Err(why) => step.trouble(why),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_results_of_tests_are_found_in_their_output() {
        let text = "running 5 tests\ntest a::b ... ok\ntest c ... skipped: on the emulated driver only\nok\n\
            test d ... some output\nmore\nok\ntest e ... \nthread 'e' panicked at x.rs:1:1:\nno\nFAILED\n\
            test f ... ignored, it takes an hour\ntest h ... \nrunning 1 test\ntest h ... FAILED\nFAILED\n\
            test g ... output, and then\n";
        let expected = [
            ("a::b", Ending::Passed),
            ("c", Ending::Skipped("on the emulated driver only".to_owned())),
            ("d", Ending::Passed),
            ("e", Ending::Failed),
            ("f", Ending::Ignored),
            ("h", Ending::Failed),
            ("g", Ending::Lost),
        ];
        let expected = expected.map(|(name, ending)| (name.to_owned(), ending));
        assert_eq!(read(text), expected);
    }
}
