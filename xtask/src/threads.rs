//! Runs tests under the thread sanitizer.

use crate::shell::{Result, need_nightly, shell};
use xshell::cmd;

/// Tests of memory that several threads own. Unlike Miri, the sanitizer runs real threads and many more rounds.
///
/// The tests of the pool's fast path are left out. The fast path relies on fences, which the sanitizer does not support, so it would
/// report races that do not exist.
const TESTS: [(&str, &str); 3] = [
    ("millpond-account", "budget:: ledger::"),
    ("millpond-pool", "block:: buffer:: storage:: rental::"),
    ("millpond-tensor", "tests:: dlpack:: workspace::"),
];
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run() -> Result {
    let sh = &shell()?;
    need_nightly(sh)?;
    cmd!(sh, "rustup component add rust-src --toolchain nightly").run()?;
    // The standard library is built with the sanitizer too, because its reference counts and locks order the threads. rustix calls the
    // C library, which the sanitizer observes, and not the system directly.
    let flags = "-Zsanitizer=thread --cfg rustix_use_libc";
    for (package, names) in TESTS {
        let names = names.split(' ');
        cmd!(
            sh,
            "cargo +nightly test -Zbuild-std --lib --all-features --target-dir target/threads --target {TARGET} -p {package} -- {names...}"
        )
        .env("RUSTFLAGS", flags)
        .run()?;
    }
    Ok(())
}
