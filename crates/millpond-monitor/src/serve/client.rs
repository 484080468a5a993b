//! One client: the bytes it has sent, the bytes it still has to receive, and its deadline.

use super::request::{self, Read as Sent};
use crate::Shared;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time for a request to arrive, and for an answer to be received.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time for a client to close the connection after the answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes after the request are discarded, up to this number.
const MOST_IGNORED: usize = 1 << 20;

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    fn end_writing(&self) {
        // If the client has already gone, the error does not matter.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }
}

/// The events for which a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Reads,
    Writes,
}

#[derive(Debug)]
enum State {
    /// The received part of the request.
    Asks(Vec<u8>),
    /// The answer, and the number of bytes that are sent.
    IsAnswered(Vec<u8>, usize),
    /// It has received the answer and may still be sending. Closing the connection now could discard the answer on its
    /// side.
    Leaves { ignored: usize },
}

#[derive(Debug)]
pub(super) struct Client {
    stream: Stream,
    state: State,
    ends: Instant,
}

/// The result of one step.
enum Step {
    /// Another step is possible immediately.
    More,
    Wait,
    Gone,
}

impl Client {
    pub(super) fn new(stream: Stream) -> Option<Self> {
        stream.set_nonblocking().ok()?;
        Some(Self {
            stream,
            state: State::Asks(Vec::new()),
            ends: Instant::now() + PATIENCE,
        })
    }

    pub(super) fn doing(&self) -> Doing {
        match self.state {
            State::IsAnswered(..) => Doing::Writes,
            State::Asks(_) | State::Leaves { .. } => Doing::Reads,
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    /// Returns the deadline.
    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// Does everything that is possible without blocking. Returns true if the client is not finished.
    pub(super) fn go_on(&mut self, shared: &Shared) -> bool {
        loop {
            match self.step(shared) {
                Step::More => {}
                Step::Wait => break,
                Step::Gone => return false,
            }
        }
        if Instant::now() < self.ends {
            return true;
        }
        // A client whose request is late gets an error, if it can be sent immediately.
        if matches!(self.state, State::Asks(_)) {
            let _ = self.stream.write(&request::too_late());
        }
        false
    }

    fn step(&mut self, shared: &Shared) -> Step {
        let mut buffer = [0; 4096];
        match &mut self.state {
            State::Asks(sent) => match self.stream.read(&mut buffer) {
                Ok(0) => Step::Gone,
                Ok(read) => {
                    sent.extend_from_slice(&buffer[..read]);
                    let by_tcp = matches!(self.stream, Stream::Tcp(_));
                    if let Sent::Whole(answer) = request::read(sent, by_tcp, shared) {
                        self.state = State::IsAnswered(answer, 0);
                        self.ends = Instant::now() + PATIENCE;
                    }
                    Step::More
                }
                Err(error) => after(&error),
            },
            State::IsAnswered(answer, gone) => match self.stream.write(&answer[*gone..]) {
                Ok(0) => Step::Gone,
                Ok(written) => {
                    *gone += written;
                    if *gone == answer.len() {
                        self.stream.end_writing();
                        self.state = State::Leaves { ignored: 0 };
                        self.ends = Instant::now() + FAREWELL;
                    }
                    Step::More
                }
                Err(error) => after(&error),
            },
            State::Leaves { ignored } => match self.stream.read(&mut buffer) {
                Ok(0) => Step::Gone,
                Ok(read) => {
                    *ignored += read;
                    if *ignored > MOST_IGNORED {
                        return Step::Gone;
                    }
                    Step::More
                }
                Err(error) => after(&error),
            },
        }
    }
}

fn after(error: &io::Error) -> Step {
    match error.kind() {
        ErrorKind::WouldBlock => Step::Wait,
        ErrorKind::Interrupted => Step::More,
        _ => Step::Gone,
    }
}
