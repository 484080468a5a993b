//! Requests `/stats` from a process's socket once, in bounded time and memory.

use super::find::Target;
use super::stats::{Stats, VERSION};
use crate::text::short;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The time limit for one request, from the connection to the end of the answer. A monitor answers at once unless its process is stopped.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The most bytes of an answer.
const MOST: usize = 64 << 20;

/// The reason why there are no statistics.
#[derive(Debug, Error)]
pub(crate) enum FetchError {
    /// No process listens on the socket.
    #[error("nothing listens there")]
    Nobody,
    /// The socket is not reachable.
    #[error("the request failed: {0}")]
    Io(io::Error),
    /// The process does not answer in time.
    #[error("it does not answer; the process may be stopped")]
    Silent,
    /// The answer does not come from a monitor.
    #[error("the answer is not from a Millpond monitor: {0}")]
    Other(String),
    /// The monitor has another version.
    #[error(
        "it uses version {0} of the format, but this program supports version {VERSION}: use the command of the same release as the process"
    )]
    Version(u64),
}

impl From<io::Error> for FetchError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{ConnectionRefused, NotFound, TimedOut, WouldBlock};
        match error.kind() {
            NotFound | ConnectionRefused => Self::Nobody,
            TimedOut | WouldBlock => Self::Silent,
            _ => Self::Io(error),
        }
    }
}

/// Returns the statistics of a process.
pub(crate) fn stats(target: &Target) -> Result<Stats, FetchError> {
    read(&body(target)?)
}

fn read(body: &str) -> Result<Stats, FetchError> {
    let stats: Stats =
        serde_json::from_str(body).map_err(|error| FetchError::Other(excerpt(&error.to_string())))?;
    if stats.schema != "millpond-stats" {
        return Err(FetchError::Other(format!(
            "it says it is '{}'",
            excerpt(&stats.schema)
        )));
    }
    if stats.version != VERSION {
        return Err(FetchError::Version(stats.version));
    }
    Ok(stats)
}

/// Returns the beginning of a text from another process, short enough for an error.
fn excerpt(text: &str) -> String {
    short(&text.chars().take(81).collect::<String>(), 80)
}

/// Returns the JSON of a process's statistics, unchanged.
pub(crate) fn json(target: &Target) -> Result<String, FetchError> {
    let body = body(target)?;
    read(&body).map(|_| body)
}

fn body(target: &Target) -> Result<String, FetchError> {
    let end = Instant::now() + PATIENCE;
    if let Target::Address(address) = target {
        return ask(TcpStream::connect_timeout(address, PATIENCE)?, end);
    }
    let mut last = FetchError::Nobody;
    for socket in target.sockets() {
        match connect(&socket) {
            Ok(stream) => return ask(stream, end),
            Err(error) if matches!(last, FetchError::Nobody) => last = error.into(),
            Err(_) => {}
        }
    }
    Err(last)
}

/// Connects to a Unix socket without waiting. The error is `WouldBlock` if the socket's queue is full, as that of a stopped process can be.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A connection whose reads and writes can have a time limit.
trait Limited: Read + Write {
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Limited for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Limited for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// Sends the request and reads the whole answer before `end`.
fn ask(mut stream: impl Limited, end: Instant) -> Result<String, FetchError> {
    let limit = |stream: &dyn Limited| {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FetchError::Silent);
        }
        stream.limit(left).map_err(FetchError::Io)
    };
    limit(&stream)?;
    stream.write_all(b"GET /stats HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut some = vec![0; 1 << 16];
    loop {
        limit(&stream)?;
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if answer.len() > MOST {
            return Err(FetchError::Other("its answer has more than 64 MiB".to_owned()));
        }
    }
    let other = |why: &str| FetchError::Other(why.to_owned());
    let text = String::from_utf8(answer).map_err(|_| other("its answer is not UTF-8"))?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| other("its answer is cut"))?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(FetchError::Other(excerpt(status)));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn answers_of_other_servers_are_refused() {
        let of = |body: &str| read(body).expect_err(body).to_string();
        assert!(of("<html>").starts_with("the answer is not from a Millpond monitor"));
        assert!(of(r#"{"schema":"other","version":1,"process":{"id":1}}"#).contains("'other'"));
        assert!(of(r#"{"schema":"millpond-stats","version":2,"process":{"id":1}}"#).contains("version 2"));
        assert!(read(r#"{"schema":"millpond-stats","version":1,"process":{"id":1},"new":[]}"#).is_ok());
    }

    #[test]
    fn an_error_holds_an_excerpt_of_a_hostile_answer() {
        let schema = "x".repeat(1 << 20);
        let body = format!(r#"{{"schema":"{schema}","version":1,"process":{{"id":1}}}}"#);
        assert!(read(&body).expect_err("another schema").to_string().len() < 200);
        assert!(read(&schema).expect_err("no JSON").to_string().len() < 200);
    }

    /// Serves one connection on a new socket with `serve`, and returns the outcome of a request to it.
    fn asked(name: &str, serve: impl FnOnce(UnixStream) + Send) -> Result<String, FetchError> {
        let path = std::env::temp_dir().join(format!("millpond-fetch-{name}-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| serve(listener.accept().expect("a client").0));
            json(&Target::Socket(path.clone()))
        });
        std::fs::remove_file(path).expect("our socket");
        outcome
    }

    #[test]
    fn a_server_that_sends_one_byte_at_a_time_times_out() {
        let outcome = asked("slow", |mut client| {
            // Each byte arrives well within the time limit of one read. The loop ends when the client closes the connection.
            while client.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert!(matches!(outcome, Err(FetchError::Silent)), "{outcome:?}");
    }

    #[test]
    fn json_is_returned_only_if_it_comes_from_a_monitor() {
        let answer = |body: &'static str| {
            asked("json", move |mut client| {
                // Closing a socket with unread bytes resets the connection.
                let mut request = [0; 100];
                let mut length = 0;
                while !request[..length].ends_with(b"\r\n\r\n") {
                    length += client.read(&mut request[length..]).expect("a request");
                }
                let _ = write!(client, "HTTP/1.0 200 OK\r\n\r\n{body}");
            })
        };
        assert!(matches!(answer("\u{1b}[2J"), Err(FetchError::Other(_))));
        assert!(matches!(answer("{}"), Err(FetchError::Other(_))));
        let stats = r#"{"schema":"millpond-stats","version":1,"process":{"id":1}}"#;
        assert_eq!(answer(stats).expect("a monitor's"), stats);
    }

    #[test]
    fn a_process_that_accepts_no_connection_counts_as_silent() {
        let path = std::env::temp_dir().join(format!("millpond-fetch-full-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let mut waiting = Vec::new();
        while let Ok(stream) = connect(&path) {
            waiting.push(stream);
            assert!(waiting.len() < 100_000, "the queue has no end");
        }
        let outcome = json(&Target::Socket(path.clone()));
        assert!(matches!(outcome, Err(FetchError::Silent)), "{outcome:?}");
        std::fs::remove_file(path).expect("our socket");
        drop(listener);
    }
}
