//! Compiles the library's kernels to PTX with NVRTC, which comes from its Python package. CUDA need not be installed.

use crate::shell::{Result, files, root, shell, target};
use std::fs;
use std::path::{Path, PathBuf};
use xshell::cmd;

/// The package with NVRTC, from CUDA 12.1. The version is deliberately old, because a driver loads only PTX that is not
/// newer than itself.
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12==12.1.105";
/// The environment variable with the path of an installed library.
const VARIABLE: &str = "MILLPOND_NVRTC";

pub(crate) fn run(args: &[String]) -> Result {
    let check = match args {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err("ptx takes --check or nothing".into()),
    };
    let nvrtc = match installed() {
        Some(found) => found,
        None => install()?,
    };
    for module in MODULES {
        let (made, place) = (module.compile(&nvrtc)?, module.ptx());
        if check {
            module.compare(&made)?;
            continue;
        }
        shell()?.write_file(&place, &made)?;
        println!("{}: {} bytes", place.display(), made.len());
    }
    Ok(())
}

/// A source that includes all others in its folder, and its PTX in the same folder.
struct Module {
    folder: &'static str,
    name: &'static str,
}

/// The kernels of tensors, the kernels that benches measure, and the kernels of the probes of a card.
const MODULES: &[Module] = &[
    Module {
        folder: "crates/millpond-cuda/src/kernels",
        name: "tensor",
    },
    Module {
        folder: "crates/millpond-bench/src/device/kernels",
        name: "motion",
    },
    Module {
        folder: "crates/millpond-card/src/kernels",
        name: "card",
    },
];

fn environment() -> PathBuf {
    target().join("nvrtc")
}

/// Returns the path of the library if it is installed.
pub(crate) fn installed() -> Option<PathBuf> {
    if let Some(said) = std::env::var_os(VARIABLE) {
        return Some(said.into());
    }
    let versions = fs::read_dir(environment().join("lib")).ok()?;
    let mut places = versions.flatten().map(|version| {
        let package = "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
        version.path().join(package)
    });
    places.find(|place| place.exists())
}

/// Installs the library for the tests, which skip some checks without it.
pub(crate) fn offer() {
    if installed().is_some() {
        return;
    }
    if let Err(why) = install() {
        eprintln!("skipped: tests that compile CUDA C with NVRTC: {why}");
    }
}

fn install() -> Result<PathBuf> {
    let sh = shell()?;
    let place = environment();
    cmd!(sh, "python3 -m venv {place}").run()?;
    let pip = place.join("bin/pip");
    cmd!(
        sh,
        "{pip} install --quiet --no-deps --retries 1 --timeout 20 {PACKAGE}"
    )
    .run()?;
    Ok(installed().ok_or_else(|| format!("{PACKAGE} has no libnvrtc.so.12: set {VARIABLE} to one"))?)
}

impl Module {
    fn folder(&self) -> PathBuf {
        root().join(self.folder)
    }

    fn ptx(&self) -> PathBuf {
        self.folder().join(self.name).with_extension("ptx")
    }

    fn compile(&self, nvrtc: &Path) -> Result<String> {
        let (sh, script) = (shell()?, root().join("xtask/ptx/compile.py"));
        let source = self.ptx().with_extension("cu");
        let output = cmd!(sh, "python3 {script} {nvrtc} {source}")
            .quiet()
            .ignore_status()
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim_end().into());
        }
        let ptx = String::from_utf8_lossy(&output.stdout);
        Ok(format!(
            "// Made by `cargo xtask ptx`, of sources whose sum is {:016x}.\n{ptx}",
            sum(&self.sources()?)
        ))
    }

    /// Returns the contents of all sources in the order of their names.
    fn sources(&self) -> Result<Vec<u8>> {
        let sh = shell()?;
        let mut places = files(&sh, &self.folder(), "cu")?;
        places.extend(files(&sh, &self.folder(), "cuh")?);
        places.sort();
        let mut all = Vec::new();
        for place in places {
            all.extend(sh.read_binary_file(place)?);
        }
        Ok(all)
    }

    fn compare(&self, made: &str) -> Result {
        let place = self.ptx();
        let there = shell()?.read_file(&place)?;
        let mut both = there.lines().zip(made.lines()).enumerate();
        if there == made {
            println!("{} matches its sources", place.display());
            return Ok(());
        }
        let line = both
            .find(|(_, (old, new))| old != new)
            .map_or(0, |(line, _)| line + 1);
        Err(format!(
            "{} does not match its sources (line {line}): run cargo xtask ptx",
            place.display()
        )
        .into())
    }
}

/// Computes an FNV-1a hash, which is enough to detect changes.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_ptx_belongs_to_the_current_sources() {
        for module in MODULES {
            let ptx = fs::read_to_string(module.ptx()).expect("it is committed");
            let told = format!("sum is {:016x}.", sum(&module.sources().expect("they are there")));
            let first = ptx.lines().next().unwrap_or_default();
            assert!(first.ends_with(&told), "{first}: run cargo xtask ptx");
        }
    }

    #[test]
    fn compiling_the_sources_gives_the_committed_ptx() {
        let Some(nvrtc) = installed() else {
            eprintln!("skipped: there is no NVRTC here; cargo xtask ptx --check installs it");
            return;
        };
        for module in MODULES {
            let made = module.compile(&nvrtc).expect("it compiles");
            module.compare(&made).expect("it is the same");
        }
    }

    #[test]
    fn bad_flags_are_refused() {
        assert!(run(&["--chekc".to_owned()]).is_err());
    }
}
