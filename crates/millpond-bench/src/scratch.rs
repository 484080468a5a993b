//! A temporary file.

use std::path::{Path, PathBuf};

/// The path of a file of this process. The file is removed when this is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Returns a path in a folder, or in the system's folder for temporary files.
    pub(crate) fn new(folder: Option<&Path>, name: &str) -> Self {
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
        Self(folder.join(format!("millpond-bench-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
