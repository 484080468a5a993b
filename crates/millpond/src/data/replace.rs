//! Files that appear under their name when they are complete.

use super::error::DataError;
use super::files::failed;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file beside its place and moves it there when it is complete and on the disk. One that was there stays until
/// then, and for whoever has it open.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), DataError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.{number}.part", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = write_to(&beside, write).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.map_err(failed(path, "write it"))
}

fn write_to(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    write(&mut file)?;
    file.into_inner()?.sync_all()
}
