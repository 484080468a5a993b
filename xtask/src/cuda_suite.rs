//! Runs and counts cudarc's own tests on the emulated CUDA driver, as a client that does not know the emulator.

use crate::global::copy::{Allocator, copy, fetch, version};
use crate::shell::{Result, emulated_driver, root, shell, target};
use std::path::Path;
use xshell::{Shell, cmd};

/// Tests that cannot pass on a driver that does not run device code, as prefixes of their names, with the reasons.
const CANNOT: &[(&str, &str)] = &[
    (
        "driver::safe::core::tests::test_default_pinned_host_reads_are_faster_than_write_combined",
        "compares the speed of write-combined memory, which the host does not have",
    ),
    ("driver::safe::launch::tests::", KERNEL),
    (
        "driver::safe::unified_memory::tests::test_unified_memory_global",
        KERNEL,
    ),
    (
        "driver::safe::unified_memory::tests::test_unified_memory_host",
        KERNEL,
    ),
    (
        "driver::safe::unified_memory::tests::test_unified_memory_single_stream",
        KERNEL,
    ),
    ("nvrtc::", "needs NVRTC: cargo xtask ptx --check installs it"),
];

const KERNEL: &str = "compiles a kernel with NVRTC and runs it";

/// Tests that must run alone, or that need two devices.
const ALONE: &[&str] = &[
    "driver::safe::core::tests::test_post_alloc_memory",
    "driver::result::tests::peer_transfer_contexts",
    "driver::result::tests::re_associate_context_for_memory_op",
];

const FEATURES: &str = "std,driver,nvrtc,fallback-dynamic-loading,cuda-12080,f16";

pub(crate) fn run() -> Result {
    let sh = &shell()?;
    crate::ptx::offer();
    let folder = target().join("cuda-suite");
    let sources = fetch(sh, &root().join("xtask/cuda/fetch"), &folder)?;
    let source = sources.join("cudarc");
    let version = version(sh, &source)?;
    let place = copy(sh, &source, &folder, Allocator::System)?.place;
    let driver = emulated_driver(sh)?;
    sh.change_dir(&place);
    // cudarc compares the real times of copies. The modelled link is so slow that the machine's own speed does not matter.
    let paced = "devices:1,streams:threads,link:0.1,pace:on";
    let mut results = tests(sh, &folder, &driver, paced, &[])?;
    for name in ALONE {
        let options = ["--exact", name, "--ignored"];
        let alone = tests(sh, &folder, &driver, "devices:2,streams:threads", &options)?;
        results.retain(|(test, _)| test != name);
        results.extend(alone);
    }
    report(&version, &results)
}

/// Runs tests of the library and returns the result of each.
fn tests(
    sh: &Shell,
    folder: &Path,
    driver: &Path,
    options: &str,
    more: &[&str],
) -> Result<Vec<(String, Ended)>> {
    let nvrtc = crate::ptx::installed().and_then(|library| Some(library.parent()?.to_path_buf()));
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let path = std::iter::once(driver.to_path_buf()).chain(nvrtc);
    let path = std::env::join_paths(path.chain(std::env::split_paths(&others)))?;
    let build = folder.join("build");
    println!("MILLPOND_CUDA_EMU={options}");
    let output = cmd!(
        sh,
        "cargo test --lib --no-default-features --features {FEATURES} --target-dir {build} -- {more...}"
    )
    .env("MILLPOND_CUDA_EMU", options)
    .env("LD_LIBRARY_PATH", path)
    .ignore_status()
    .output()?;
    let results = read(&String::from_utf8_lossy(&output.stdout));
    if results.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cudarc's tests did not run:\n{}", said.trim_end()).into());
    }
    Ok(results)
}

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed,
    Ignored,
}

/// Reads lines such as `test driver::safe::tests::name ... ok`.
fn read(text: &str) -> Vec<(String, Ended)> {
    let line = |line: &str| {
        let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        let name = name.strip_suffix(" - should panic").unwrap_or(name);
        let ended = match end {
            "ok" => Ended::Passed,
            "FAILED" => Ended::Failed,
            end if end.starts_with("ignored") => Ended::Ignored,
            _ => return None,
        };
        Some((name.to_owned(), ended))
    };
    text.lines().filter_map(line).collect()
}

fn reason(name: &str) -> Option<&'static str> {
    let cannot = CANNOT.iter().find(|(begin, _)| name.starts_with(begin));
    cannot.map(|(_, why)| *why)
}

fn report(version: &str, results: &[(String, Ended)]) -> Result {
    let count = |ended| results.iter().filter(|(_, end)| *end == ended).count();
    let (passed, failed, ignored) = (count(Ended::Passed), count(Ended::Failed), count(Ended::Ignored));
    println!(
        "\ncudarc {version} on the emulated driver: {passed} passed, {failed} failed, {ignored} not run"
    );
    let mut unexplained = Vec::new();
    for (name, ended) in results.iter().filter(|(_, end)| *end != Ended::Passed) {
        let why = reason(name).unwrap_or("unexplained");
        println!("  {name}: {why}");
        if *ended == Ended::Failed && reason(name).is_none() {
            unexplained.push(name.as_str());
        }
    }
    match (passed, unexplained.as_slice()) {
        (0, _) => Err("no test passed: the emulator was not found, or does not work".into()),
        (_, []) => Ok(()),
        (_, names) => Err(format!("failed for no known reason: {}", names.join(", ")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_failures_explained() {
        let text = "running 3 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest nvrtc::d ... FAILED\n\
            test e ... ignored, must be alone\ntest result: FAILED. 2 passed; 1 failed\n";
        let results = read(text);
        let expected = [
            ("a::b", Ended::Passed),
            ("c", Ended::Passed),
            ("nvrtc::d", Ended::Failed),
            ("e", Ended::Ignored),
        ];
        assert_eq!(results, expected.map(|(name, ended)| (name.to_owned(), ended)));
        assert!(report("1", &results).is_ok());
        assert!(report("1", &[results, vec![("f".to_owned(), Ended::Failed)]].concat()).is_err());
        assert!(report("1", &[]).is_err());
    }
}
