//! One client: what it has sent, what it is still to be sent, and until when.

use super::request::{self, Read as Sent};
use crate::monitor::Shared;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// For a request to arrive, and for an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// For a client to hang up when it was answered.
const FAREWELL: Duration = Duration::from_secs(1);
/// What a client may send after its request is thrown away, up to here.
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
        // A client that has gone already needs no end.
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

/// What a client is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Reads,
    Writes,
}

#[derive(Debug)]
enum State {
    /// Of the request so much has come.
    Asks(Vec<u8>),
    /// Of the answer so much has gone.
    IsAnswered(Vec<u8>, usize),
    /// It has all of the answer, and may still be sending. To close now could take the answer away from it.
    Leaves { ignored: usize },
}

#[derive(Debug)]
pub(super) struct Client {
    stream: Stream,
    state: State,
    ends: Instant,
}

/// What came of going on.
enum Step {
    /// There is more to do at once.
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

    /// When it has had its time.
    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// Does what can be done without waiting; answers whether anything is left to do.
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
        // Who has not asked in time is told so, if it takes that at once.
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
