//! Runs a second process for a test: the same program again, connected to the first by a socket.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PEER: &str = "MILLPOND_EMU_PEER";

/// A limit that is longer than any test, so that an endless wait fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket to the other process.
pub(crate) struct Wire(pub(crate) UnixStream);

impl Wire {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(crate) fn receive<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns when both processes have called this.
    pub(crate) fn meet(&mut self) {
        self.send(b"!");
        assert_eq!(&self.receive(), b"!");
    }
}

/// The second process, as seen by the first.
pub(crate) struct Peer {
    child: Child,
    pub(crate) wire: Wire,
}

impl Peer {
    fn start(name: &str, variables: &[(&str, &str)]) -> Self {
        let (here, there) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(PEER, name)
            .envs(variables.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(there)))
            .spawn()
            .unwrap();
        let wire = Wire::new(here);
        Self { child, wire }
    }

    /// Kills the process at any point. It stays a zombie until it is dropped or buried.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the killed process, so that its number becomes free.
    pub(crate) fn bury(&mut self) {
        self.child.wait().unwrap();
    }
}

/// Aborts the process if a call does not return.
pub(crate) fn watch() {
    std::thread::spawn(|| {
        std::thread::sleep(PATIENCE);
        eprintln!("a call does not return");
        std::process::abort();
    });
}

/// Runs `one` and `two` in two connected processes with these options. `name` is the name of the test.
pub(crate) fn two(name: &str, options: &str, one: impl FnOnce(&mut Peer), two: impl FnOnce(&mut Wire)) {
    two_unlike(name, options, &[], one, two);
}

/// Does the same, with additional environment variables for the second process.
pub(crate) fn two_unlike(
    name: &str,
    options: &str,
    variables: &[(&str, &str)],
    one: impl FnOnce(&mut Peer),
    two: impl FnOnce(&mut Wire),
) {
    if std::env::var(PEER).is_ok_and(|peer| peer == name) {
        watch();
        crate::common::load();
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        two(&mut Wire::new(UnixStream::from(socket)));
        std::process::exit(0);
    }
    crate::common::with_options(name, options, || {
        watch();
        let mut peer = Peer::start(name, variables);
        one(&mut peer);
        let outcome = peer.child.wait().unwrap();
        let killed = std::os::unix::process::ExitStatusExt::signal(&outcome) == Some(9);
        assert!(outcome.success() || killed, "the other process: {outcome}");
    });
}
