//! NVRTC for tests: the library in `MILLPOND_NVRTC`, or the one that `cargo xtask test` has put into the build folder.

use std::path::{Path, PathBuf};

/// Returns its library, or prints a message and returns `None` if there is none.
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
