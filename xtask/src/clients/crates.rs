//! Clients that are Rust crates. Their versions are in `xtask/clients/fetch/Cargo.toml`.

use super::Places;
use super::results::{Results, libtest};
use crate::global::copy::{Allocator, copy, fetch, version};
use crate::shell::{Result, root};
use xshell::{Shell, cmd};

/// A crate with tests.
pub(super) struct Crate {
    pub(super) name: &'static str,
    /// The arguments of `cargo test`.
    arguments: &'static [&'static str],
    /// The options of the emulated driver.
    driver: &'static str,
    /// Tests that must run alone, or that need two devices.
    alone: &'static [&'static str],
    /// Whether it is built with CUDA's headers.
    needs_headers: bool,
}

pub(super) const CUDARC: Crate = Crate {
    name: "cudarc",
    arguments: &[
        "--lib",
        "--no-default-features",
        "--features",
        "std,driver,nvrtc,fallback-dynamic-loading,cuda-12080,f16",
    ],
    // cudarc compares the real times of copies. The modelled link is so slow that the machine's own speed does not matter.
    driver: "devices:1,streams:threads,link:0.1,pace:on",
    alone: &[
        "driver::safe::core::tests::test_post_alloc_memory",
        "driver::result::tests::peer_transfer_contexts",
        "driver::result::tests::re_associate_context_for_memory_op",
    ],
    needs_headers: false,
};

/// NVIDIA's own crate, of its project for kernels in Rust.
pub(super) const CUDA_CORE: Crate = Crate {
    name: "cuda-core",
    arguments: &["--locked", "--lib", "--tests"],
    driver: "devices:2,memory:4G,streams:threads,version:13050",
    alone: &[],
    needs_headers: true,
};

const ALONE: &str = "devices:2,streams:threads";
/// The seconds that all tests of a crate may take.
const LIMIT: &str = "1500";

impl Crate {
    pub(super) fn run(&self, sh: &Shell, places: &Places) -> Result<(String, Results)> {
        crate::ptx::offer();
        let folder = &places.folder;
        let sources = fetch(sh, &root().join("xtask/clients/fetch"), folder)?;
        let source = sources.join(self.name);
        let version = version(sh, &source)?;
        let place = copy(sh, &source, folder, Allocator::System)?.place;
        // Variables that are set here apply only to this client.
        let sh = &sh.clone();
        if self.needs_headers {
            crate::cuda_core::offer_headers(sh)?;
        }
        sh.change_dir(&place);
        let run = |driver: &str, more: &[&str]| self.tests(sh, places, driver, more);
        let mut results = run(self.driver, &["--test-threads=1"])?;
        for name in self.alone {
            results.extend(run(ALONE, &["--exact", name, "--ignored"])?);
        }
        Ok((version, results))
    }

    /// Runs tests of the crate and returns the result of each.
    fn tests(&self, sh: &Shell, places: &Places, driver: &str, more: &[&str]) -> Result<Results> {
        let nvrtc = crate::ptx::installed().and_then(|library| Some(library.parent()?.to_path_buf()));
        let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let path = std::iter::once(places.driver.clone()).chain(nvrtc);
        let path = std::env::join_paths(path.chain(std::env::split_paths(&others)))?;
        let build = places.folder.join("build");
        let arguments = self.arguments;
        let command = cmd!(
            sh,
            "timeout --kill-after 5 {LIMIT} cargo test --no-fail-fast {arguments...} --target-dir {build} -- {more...}"
        )
        .env("MILLPOND_CUDA_EMU", driver)
        .env("LD_LIBRARY_PATH", path);
        let output = command.ignore_status().output()?;
        let results = libtest(&String::from_utf8_lossy(&output.stdout));
        if results.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the tests of {} did not run:\n{}", self.name, said.trim_end()).into());
        }
        Ok(results)
    }
}
