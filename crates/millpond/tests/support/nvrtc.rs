//! NVRTC for tests: what `MILLPOND_NVRTC` names, or what `cargo xtask test` has put into the folder of what is built.

use std::path::{Path, PathBuf};

/// Its library; none, with a message, where there is none to be had.
pub(crate) fn library() -> Option<PathBuf> {
    if let Some(said) = std::env::var_os("MILLPOND_NVRTC") {
        return Some(said.into());
    }
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let versions = std::fs::read_dir(built.join("nvrtc/lib"));
    let mut places = versions.into_iter().flatten().flatten().map(|version| {
        let package = "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
        version.path().join(package)
    });
    let found = places.find(|place| place.exists());
    if found.is_none() {
        eprintln!("skipped: there is no NVRTC here; cargo xtask ptx --check installs it");
    }
    found
}
