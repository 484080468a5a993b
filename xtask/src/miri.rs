//! Runs tests under Miri.

use crate::shell::{Result, need_nightly, shell, works};
use xshell::cmd;

/// Tests of pools over the program's heap, with threads, of blocks and of the types that convert them to elements, and of tensors
/// that are exchanged with other libraries. Tests with the system's memory (`mmap`, `mremap`, `mlock`) or with forks are left
/// out, because Miri does not support them. It does not support `membarrier` either, so full fences replace it. Safe modules
/// are left out too, because some would take an hour.
const TESTS: &[(&str, &str)] = &[
    ("millpond-os", "map::tests::all_accesses"),
    (
        "millpond-pool",
        "pool::on_heap block:: buffer:: storage:: rental:: unpooled::",
    ),
    ("millpond-tensor", "tests:: dlpack:: workspace::"),
];
/// Tests of memory that several threads or other libraries own. One run tests one order of the threads and one choice of the values
/// that each thread reads, so these tests run under [`SEEDS`]. Tests of one thread would take twenty times as long and find no more.
const OWNERS: &[(&str, &str)] = &[
    ("millpond-pool", "block:: buffer::tests::the_last_owner"),
    ("millpond-tensor", "dlpack:: tests::of_many"),
];
const SEEDS: &str = "-Zmiri-many-seeds=0..20";
/// Safe code in which only Miri finds wrong memory orderings, because real processors reorder less than they are allowed to.
const ORDERS: &[(&str, &str)] = &[("millpond-account", "session::ring")];

pub(crate) fn run() -> Result {
    let sh = &shell()?;
    need_nightly(sh)?;
    if !works("cargo", &["+nightly", "miri", "--version"]) {
        cmd!(sh, "rustup component add miri rust-src --toolchain nightly").run()?;
    }
    // The engine stores addresses as integers, which are converted to pointers where they are used. A pool's shared part is
    // never freed, so Miri would report it as a leak. The sources of these tests check that all memory is returned.
    let flags = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks";
    let seeds = format!("{flags} {SEEDS}");
    for (crates, flags) in [(TESTS, flags), (OWNERS, seeds.as_str()), (ORDERS, flags)] {
        for (package, names) in crates {
            let names = names.split(' ');
            // A separate folder, because different flags rebuild everything.
            cmd!(
                sh,
                "cargo +nightly miri test --lib --all-features --target-dir target/miri -p {package} -- {names...}"
            )
            .env("MIRIFLAGS", flags)
            .run()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{files, root};
    use std::path::Path;

    /// Returns whether a folder of sources has a module or a test that the filter selects.
    fn selects(sources: &Path, filter: &str) -> bool {
        let sh = shell().unwrap();
        let (modules, name) = filter.rsplit_once("::").unwrap();
        let top = modules.split("::").next().unwrap();
        let mut of = vec![sources.join(top).with_extension("rs")];
        of.extend(files(&sh, &sources.join(top), "rs").unwrap_or_default());
        of.iter().any(|file| {
            let is_module = file.ends_with(format!("{top}/{name}.rs"));
            let has_test = || {
                sh.read_file(file)
                    .is_ok_and(|text| text.contains(&format!("fn {name}")))
            };
            is_module || has_test()
        })
    }

    /// A filter that selects nothing would turn off a check without a message.
    #[test]
    fn every_filter_selects_a_test() {
        for (package, filters) in [TESTS, OWNERS, ORDERS].concat() {
            let sources = root().join("crates").join(package).join("src");
            for filter in filters.split(' ') {
                assert!(selects(&sources, filter), "{package}: {filter}");
            }
        }
        assert!(!selects(
            &root().join("crates/millpond-os/src"),
            "map::tests::bytes"
        ));
    }
}
