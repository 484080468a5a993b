//! Replaces files atomically.

use super::error::DataError;
use super::files::failed;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file under another name in the same folder, and renames it when it is complete and on the disk. An existing file stays
/// until then, and processes that have it open keep it. The new file gets the permissions of the existing file.
///
/// If the process is killed during the write, the unfinished file remains as `NAME.PID.NUMBER.part`.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), DataError> {
    let (beside, file) = create_beside(path).map_err(failed(path, "write it"))?;
    let written = fill(file, path, write).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.map_err(failed(path, "write it"))
}

/// Creates a file under a name that does not exist yet. A symbolic link with that name is not followed.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.{number}.part", std::process::id()));
        let beside = PathBuf::from(beside);
        match File::create_new(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            outcome => return outcome.map(|file| (beside, file)),
        }
    }
}

fn fill(
    file: File,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    if let Ok(replaced) = fs::metadata(path) {
        file.set_permissions(replaced.permissions())?;
    }
    let mut file = BufWriter::new(file);
    write(&mut file)?;
    file.into_inner()?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn replacing_a_file_follows_no_links_and_keeps_the_permissions() {
        let folder = std::env::temp_dir().join(format!("millpond-replace-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let path = folder.join("a.npy");
        fs::write(&path, "old").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a file of ours");
        let victim = folder.join("victim");
        fs::write(&victim, "untouched").expect("a file");
        for number in 0..100 {
            let name = format!("a.npy.{}.{number}.part", std::process::id());
            symlink(&victim, folder.join(name)).expect("a link");
        }
        replace(&path, |out| io::Write::write_all(out, b"new")).expect("written");
        assert_eq!(fs::read_to_string(&victim).expect("a file"), "untouched");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "new");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_dir_all(&folder).expect("our folder");
    }
}
