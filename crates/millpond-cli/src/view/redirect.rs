//! A file that redirects a browser to the address of a page.
//!
//! The address holds the token that opens the page. Every user of a machine can read the arguments of every process, so a browser is
//! given the path of a file that only this user can read.

use super::site::token;
use std::fs::{OpenOptions, remove_file};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The path of the file. Dropping this removes the file.
#[derive(Debug)]
pub(super) struct Redirect(PathBuf);

impl Redirect {
    /// Writes the file into `XDG_RUNTIME_DIR`, or into the folder for temporary files if that is not a folder.
    pub(super) fn new(address: &str) -> io::Result<Self> {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let folder = folder.filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        let path = folder.join(format!("millpond-view-{}.html", token()?));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let redirect = Self(path);
        write!(
            file,
            "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"millpond\">\n\
             <meta http-equiv=\"refresh\" content=\"0; url={address}\">\n<title>Millpond</title>\n"
        )?;
        Ok(redirect)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        // The file may already be gone, because its folder was removed.
        let _ = remove_file(&self.0);
    }
}
