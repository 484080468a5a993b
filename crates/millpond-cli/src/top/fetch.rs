//! One look at a process: `/stats` asked of its socket, in bounded time and memory.

use super::find::Target;
use super::stats::{Stats, VERSION};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use thiserror::Error;

/// For each step of a look. A monitor answers at once, or its process is stopped.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Bytes of an answer at most.
const MOST: u64 = 64 << 20;

/// Why there is nothing to show.
#[derive(Debug, Error)]
pub(crate) enum FetchError {
    /// Nobody listens.
    #[error("nobody answers there")]
    Nobody,
    /// It was not to be reached.
    #[error("it cannot be asked: {0}")]
    Io(io::Error),
    /// It takes too long.
    #[error("it does not answer; it may be stopped")]
    Silent,
    /// It was no monitor.
    #[error("what answers is no monitor of Millpond's: {0}")]
    Other(String),
    /// It is a monitor of another version.
    #[error(
        "it speaks version {0} of the format, and this program knows {VERSION}: use the millpond of its own release"
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

/// What a process has.
pub(crate) fn stats(target: &Target) -> Result<Stats, FetchError> {
    read(&body(target)?)
}

fn read(body: &str) -> Result<Stats, FetchError> {
    let stats: Stats = serde_json::from_str(body).map_err(|error| FetchError::Other(error.to_string()))?;
    if stats.schema != "millpond-stats" {
        return Err(FetchError::Other(format!("it says it is '{}'", stats.schema)));
    }
    if stats.version != VERSION {
        return Err(FetchError::Version(stats.version));
    }
    Ok(stats)
}

/// The JSON of what a process has, as it sent it.
pub(crate) fn body(target: &Target) -> Result<String, FetchError> {
    if let Target::Address(address) = target {
        return ask_address(*address);
    }
    let mut last = FetchError::Nobody;
    for socket in target.sockets() {
        match UnixStream::connect(&socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return ask(stream);
            }
            Err(error) if matches!(last, FetchError::Nobody) => last = error.into(),
            Err(_) => {}
        }
    }
    Err(last)
}

fn ask_address(address: SocketAddr) -> Result<String, FetchError> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    ask(stream)
}

fn ask(mut stream: impl Read + Write) -> Result<String, FetchError> {
    stream.write_all(b"GET /stats HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.take(MOST).read_to_string(&mut text)?;
    let other = |why: &str| FetchError::Other(why.to_owned());
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| other("its answer is cut"))?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(FetchError::Other(status.chars().take(80).collect()));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_monitor_is_told_apart() {
        let of = |body: &str| read(body).expect_err(body).to_string();
        assert!(of("<html>").starts_with("what answers is no monitor of Millpond's"));
        assert!(of(r#"{"schema":"other","version":1,"process":{"id":1}}"#).contains("'other'"));
        assert!(of(r#"{"schema":"millpond-stats","version":2,"process":{"id":1}}"#).contains("version 2"));
        assert!(read(r#"{"schema":"millpond-stats","version":1,"process":{"id":1},"new":[]}"#).is_ok());
    }
}
