//! The place of the Unix socket: a file named after the process id, in a directory that only the user can enter.

use super::ServeError;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The place of the Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The default place, where `millpond top` looks.
    Usual,
    /// The given path.
    At(PathBuf),
}

/// A socket of this process.
#[derive(Debug)]
pub(super) struct Listening {
    path: PathBuf,
    /// The identity of the file. By the time the socket is removed, another file may have its name.
    inode: (u64, u64),
}

impl Listening {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket, if the file still is this socket.
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

/// Returns the directories that may contain sockets of monitors, each named after its process: `PID.sock`. The first is
/// the directory for this process. Another process may have a different environment.
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

/// The maximum number of monitors of one process at the default place.
const MOST: usize = 16;

pub(super) fn listen(place: &Place) -> Result<(Listening, UnixListener), ServeError> {
    match place {
        Place::Usual => {
            // The list is never empty.
            let folder = socket_folders().swap_remove(0);
            prepare(&folder)?;
            remove_stale(&folder);
            listen_in(&folder, std::process::id())
        }
        Place::At(path) => listen_at(path.clone()),
    }
}

/// Listens on the first free name of this process. The environment may have started a monitor before the program did.
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

/// Listens on a socket that only this user can connect to. The socket appears under its name only when it is listening.
///
/// Other processes treat a socket that refuses connections as stale and remove it, so the name must not exist between `bind`
/// and `listen`.
fn listen_at(path: PathBuf) -> Result<(Listening, UnixListener), ServeError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let failed = |source| ServeError::Socket {
        path: path.clone(),
        source,
    };
    if fs::symlink_metadata(&path).is_ok() && !is_stale(&path) {
        return Err(ServeError::Taken(path));
    }
    // The name is short, because the path of a socket has at most 107 bytes.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let unnamed = path.with_file_name(format!(".{}.{number}", std::process::id()));
    // A process with the same id may have been killed here and left its file.
    let _ = fs::remove_file(&unnamed);
    let listener = UnixListener::bind(&unnamed).map_err(failed)?;
    let named = || {
        listener.set_nonblocking(true)?;
        fs::set_permissions(&unnamed, Permissions::from_mode(0o600))?;
        if is_stale(&path) {
            fs::remove_file(&path)?;
        }
        fs::hard_link(&unnamed, &path)?;
        inode(&path)
    };
    let outcome = named();
    let _ = fs::remove_file(&unnamed);
    match outcome {
        Ok(inode) => Ok((Listening { path, inode }, listener)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(ServeError::Taken(path)),
        Err(error) => Err(failed(error)),
    }
}

/// Creates the directory, or checks that it belongs to the user and that no other user can enter it.
fn prepare(folder: &Path) -> Result<(), ServeError> {
    let failed = |why: String| ServeError::Folder {
        folder: folder.to_owned(),
        why,
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error.to_string())),
        _ => {}
    }
    // The path is not followed, because in `/tmp` any user could have created a link there.
    let found = fs::symlink_metadata(folder).map_err(|error| failed(error.to_string()))?;
    if !found.is_dir() {
        return Err(failed("it is not a folder; remove it".to_owned()));
    }
    if found.uid() != user() {
        return Err(failed(format!(
            "it belongs to user {}; set XDG_RUNTIME_DIR to a folder of your own",
            found.uid()
        )));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))
            .map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// Returns whether a path is a socket on which no process listens.
///
/// A stopped process still listens: connections wait in its queue. If the queue is full, this does not wait for room.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket());
    is_socket && matches!(connect(path), Err(Errno::CONNREFUSED))
}

fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Removes the sockets of processes that were killed.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if process_of(&path).is_some_and(|process| process != std::process::id()) && is_stale(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the process in the name of a socket.
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
    use std::sync::atomic::AtomicBool;

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
    fn stale_sockets_are_removed_and_sockets_in_use_stay() {
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
    fn a_stopped_process_with_a_full_queue_is_left_alone_and_not_waited_for() {
        let scratch = Scratch::new("full");
        let at = |name: &str| scratch.0.join(name);
        let stopped = UnixListener::bind(at("1.sock")).expect("a socket");
        let mut waiting = 0;
        while connect(&at("1.sock")).is_ok() && waiting < 100_000 {
            // The queue keeps a connection whose client has gone.
            waiting += 1;
        }
        assert_eq!(connect(&at("1.sock")), Err(Errno::AGAIN), "after {waiting}");
        remove_stale(&scratch.0);
        assert!(at("1.sock").exists());
        drop(listen_in(&scratch.0, 2).expect("a socket"));
        drop(stopped);
    }

    #[test]
    fn a_socket_has_its_name_only_while_it_listens() {
        let scratch = Scratch::new("race");
        let folder = &scratch.0;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    remove_stale(folder);
                }
            });
            for round in 0..300 {
                let (at, listener) = listen_in(folder, 1).expect("a socket");
                assert!(at.path().exists(), "removed in round {round}");
                at.remove();
                drop(listener);
            }
            stop.store(true, Ordering::Relaxed);
            removing.join().expect("no panic");
        });
        assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0);
    }

    #[test]
    fn only_the_user_can_enter_the_folder() {
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
