//! Serves the last sample by HTTP on a local port, and on a Unix socket.
//!
//! One thread serves all clients. It supports the part of HTTP that Prometheus, curl and `millpond top` need, with one
//! request per connection. It never blocks on a client. The size of a request, the time of a client and the number of
//! clients are bounded. If there are too many clients, the one that has been silent longest is disconnected.
//!
//! A foreign web page could make a browser request a local port under a name that resolves to this machine (DNS
//! rebinding). A request by TCP must therefore name this machine by a loopback address or as `localhost`. The socket is
//! in a directory that only the user can enter.

mod client;
mod place;
mod request;

pub(super) use place::Place;
pub use place::socket_folders;

use super::Shared;
use client::{Client, Doing, Stream};
use millpond_os::reentrancy::inside;
use millpond_os::spawn_hidden;
use place::Listening;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The maximum number of clients at one time.
const MOST_CLIENTS: usize = 32;

/// After a system error, no client is accepted for this time.
const PAUSE: Duration = Duration::from_millis(100);

/// The error of a server that could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is not a loopback address, so other machines could read the samples.
    #[error(
        "{0} is not a loopback address: a monitor listens on 127.0.0.1 or [::1] only; put a proxy with a login in front of it for other machines"
    )]
    NotLoopback(SocketAddr),
    /// The system refused to listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Another process or another monitor of this process already listens there.
    #[error("cannot listen on {}: another process or monitor listens there", .0.display())]
    Taken(PathBuf),
    /// The directory for the socket belongs to another user or cannot be created.
    #[error("cannot use the folder {} for the monitor's socket: {why}", .folder.display())]
    Folder {
        /// The directory.
        folder: PathBuf,
        /// The reason.
        why: String,
    },
    /// The socket could not be created.
    #[error("cannot create the socket {}: {source}", .path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system cannot create a pipe or a thread.
    #[error("cannot start the thread of the monitor's server: {0}")]
    Thread(io::Error),
}

/// The server's thread. It ends when this is dropped.
pub(super) struct Server {
    process: u32,
    address: Option<SocketAddr>,
    socket: Option<Listening>,
    /// A byte in this pipe ends the thread.
    stop: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .field("socket", &self.socket())
            .finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn start(
        shared: &Arc<Shared>,
        socket: Option<&Place>,
        address: Option<SocketAddr>,
    ) -> Result<Self, ServeError> {
        let tcp = address.map(listen).transpose()?;
        let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
        let unix = socket.map(place::listen).transpose()?;
        let (socket, unix) = unix.map_or((None, None), |(at, listener)| (Some(at), Some(listener)));
        let (told, stop) = io::pipe().map_err(ServeError::Thread)?;
        let loop_ = Loop {
            shared: Arc::clone(shared),
            tcp,
            unix,
            told,
            clients: Vec::new(),
            pause: None,
        };
        let thread = spawn_hidden("millpond-serve", || loop_.run()).map_err(ServeError::Thread)?;
        Ok(Self {
            process: std::process::id(),
            address,
            socket,
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(Listening::path)
    }
}

impl Server {
    pub(super) fn remove_socket(&self) {
        if let Some(socket) = &self.socket {
            socket.remove();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // The thread does not exist in this process, and the pipe and the socket belong to the parent.
            return std::mem::forget(thread);
        }
        self.remove_socket();
        // The pipe contains only this byte, so the write does not block.
        let _ = self.stop.write(&[0]);
        let _ = thread.join();
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// The state of the thread.
struct Loop {
    shared: Arc<Shared>,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
    told: PipeReader,
    clients: Vec<Client>,
    /// The time until which no client is accepted.
    pause: Option<Instant>,
}

impl Loop {
    fn run(mut self) {
        while !self.wait() {
            let _inside = inside();
            self.take_clients();
            let shared = &self.shared;
            self.clients.retain_mut(|client| client.go_on(shared));
        }
    }

    /// Waits for work. Returns true if the thread is to stop.
    fn wait(&mut self) -> bool {
        let _inside = inside();
        let now = Instant::now();
        self.pause = self.pause.filter(|until| *until > now);
        let mut places = vec![PollFd::new(&self.told, PollFlags::IN)];
        if self.pause.is_none() {
            places.extend(self.tcp.iter().map(|tcp| PollFd::new(tcp, PollFlags::IN)));
            places.extend(self.unix.iter().map(|unix| PollFd::new(unix, PollFlags::IN)));
        }
        for client in &self.clients {
            let flags = match client.doing() {
                Doing::Reads => PollFlags::IN,
                Doing::Writes => PollFlags::OUT,
            };
            places.push(PollFd::from_borrowed_fd(client.descriptor(), flags));
        }
        let ends = self.clients.iter().map(Client::ends).chain(self.pause).min();
        let limit = ends.map(|end| timespec(end.saturating_duration_since(now)));
        match poll(&mut places, limit.as_ref()) {
            Ok(_) => !places[0].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => false,
            Err(_) => {
                // No reason for a refusal is known. The pause prevents a busy loop.
                std::thread::sleep(PAUSE);
                false
            }
        }
    }

    fn take_clients(&mut self) {
        if self.pause.is_some() {
            return;
        }
        for _ in 0..MOST_CLIENTS {
            let tcp = self
                .tcp
                .as_ref()
                .map(|tcp| tcp.accept().map(|(stream, _)| Stream::Tcp(stream)));
            let unix = self
                .unix
                .as_ref()
                .map(|unix| unix.accept().map(|(stream, _)| Stream::Unix(stream)));
            let mut any = false;
            for outcome in [tcp, unix].into_iter().flatten() {
                any |= self.take(outcome);
            }
            if !any {
                return;
            }
        }
    }

    /// Handles an accepted connection. Returns true if there may be another.
    fn take(&mut self, outcome: io::Result<Stream>) -> bool {
        match outcome {
            Ok(stream) => {
                if self.clients.len() >= MOST_CLIENTS {
                    self.clients.remove(0);
                }
                self.clients.extend(Client::new(stream));
                true
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => false,
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => true,
                // This mostly means that no descriptor is free, so an immediate retry would fail too.
                _ => {
                    self.pause = Some(Instant::now() + PAUSE);
                    false
                }
            },
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        // The time is rounded up. Otherwise the thread would wake early and poll repeatedly.
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
