//! Where the Unix socket is: in a folder that only the user can enter, by the process's number.

use super::ServeError;
use crate::monitor::builder::Place;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket that is ours.
#[derive(Debug)]
pub(super) struct Listening {
    path: PathBuf,
    /// Which file it is: another's may lie there by the time ours goes.
    inode: (u64, u64),
}

impl Listening {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it away, if it is still ours.
    pub(super) fn remove(&self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let of = fs::symlink_metadata(path)?;
    Ok((of.dev(), of.ino()))
}

/// The folders where monitors' sockets may be, each named for its process: `PID.sock`. The first is where one of this process would
/// be; another process may see the environment otherwise.
#[must_use]
pub fn socket_folders() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute() && folder.is_dir());
    let usual = PathBuf::from(format!("/tmp/millpond-{}", user()));
    runtime
        .map(|folder| folder.join("millpond"))
        .into_iter()
        .chain([usual])
        .collect()
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Monitors of one process that serve at the usual place.
const MOST: usize = 16;

pub(super) fn listen(place: &Place) -> Result<(Listening, UnixListener), ServeError> {
    match place {
        Place::Usual => {
            // There is always one.
            let folder = socket_folders().swap_remove(0);
            prepare(&folder)?;
            remove_stale(&folder);
            listen_in(&folder, std::process::id())
        }
        Place::At(path) => listen_at(path.clone()),
    }
}

/// On the first name of this process that is free: the environment may have started a monitor before the program did.
fn listen_in(folder: &Path, process: u32) -> Result<(Listening, UnixListener), ServeError> {
    let mut outcome = listen_at(folder.join(format!("{process}.sock")));
    for next in 1..MOST {
        if !matches!(outcome, Err(ServeError::Taken(_))) {
            break;
        }
        outcome = listen_at(folder.join(format!("{process}-{next}.sock")));
    }
    outcome
}

fn listen_at(path: PathBuf) -> Result<(Listening, UnixListener), ServeError> {
    let failed = |source| ServeError::Socket {
        path: path.clone(),
        source,
    };
    let listener = match UnixListener::bind(&path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if !is_stale(&path) {
                return Err(ServeError::Taken(path));
            }
            fs::remove_file(&path).map_err(failed)?;
            UnixListener::bind(&path).map_err(failed)?
        }
        outcome => outcome.map_err(failed)?,
    };
    listener.set_nonblocking(true).map_err(failed)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed)?;
    let inode = inode(&path).map_err(failed)?;
    Ok((Listening { path, inode }, listener))
}

/// Makes the folder, or sees to it that it is the user's and nobody else's.
fn prepare(folder: &Path) -> Result<(), ServeError> {
    let failed = |why: String| ServeError::Folder {
        folder: folder.to_owned(),
        why,
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error.to_string())),
        _ => {}
    }
    // Not followed: in `/tmp` anyone could have put a link there.
    let found = fs::symlink_metadata(folder).map_err(|error| failed(error.to_string()))?;
    if !found.is_dir() {
        return Err(failed("it is no folder; remove it".to_owned()));
    }
    if found.uid() != user() {
        return Err(failed(format!(
            "it is of user {}; set XDG_RUNTIME_DIR to a folder of your own",
            found.uid()
        )));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))
            .map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// Whether it is a socket to which nobody listens.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).err().is_some_and(refused)
}

/// Takes away what processes have left that were killed.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if process_of(&path).is_some_and(|process| process != std::process::id()) && is_stale(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The process that a socket of the folder is named for.
fn process_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    name.split_once('-')
        .map_or(name, |(process, _)| process)
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("millpond-place-{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("a folder");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_left_behind_goes_and_what_is_in_use_stays() {
        let scratch = Scratch::new("stale");
        let at = |name: &str| scratch.0.join(name);
        for name in ["1.sock", "1-2.sock", "other.sock"] {
            drop(UnixListener::bind(at(name)).expect("a socket"));
        }
        let used = UnixListener::bind(at("2.sock")).expect("a socket");
        fs::write(at("3.sock"), "a file").expect("a file");
        remove_stale(&scratch.0);
        let left = ["1.sock", "1-2.sock", "2.sock", "3.sock", "other.sock"].map(|name| at(name).exists());
        assert_eq!(left, [false, false, true, true, true]);
        assert!(matches!(
            listen(&Place::At(at("2.sock"))),
            Err(ServeError::Taken(_))
        ));
        assert!(matches!(
            listen(&Place::At(at("3.sock"))),
            Err(ServeError::Taken(_))
        ));
        let (ours, listener) = listen(&Place::At(at("other.sock"))).expect("nobody's any more");
        let mode = fs::metadata(ours.path()).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        ours.remove();
        assert!(!ours.path().exists());
        let second = listen_in(&scratch.0, 2).expect("another name");
        assert_eq!(second.0.path(), at("2-1.sock"));
        fs::write(ours.path(), "another's").expect("a file");
        ours.remove();
        assert!(ours.path().exists(), "what is not ours stays");
        drop((listener, used));
    }

    #[test]
    fn the_folder_is_the_user_s_alone() {
        let scratch = Scratch::new("folder");
        let at = |name: &str| scratch.0.join(name);
        prepare(&at("new")).expect("made");
        fs::create_dir(at("open")).expect("a folder");
        fs::set_permissions(at("open"), Permissions::from_mode(0o777)).expect("ours");
        prepare(&at("open")).expect("closed");
        for name in ["new", "open"] {
            assert_eq!(
                fs::metadata(at(name)).expect("there").mode() & 0o777,
                0o700,
                "{name}"
            );
        }
        std::os::unix::fs::symlink(at("new"), at("link")).expect("a link");
        fs::write(at("file"), "").expect("a file");
        for name in ["link", "file", "none/below"] {
            assert!(
                matches!(prepare(&at(name)), Err(ServeError::Folder { .. })),
                "{name}"
            );
        }
    }
}
