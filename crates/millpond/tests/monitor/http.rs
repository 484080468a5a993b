//! A client that sends given requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads the whole response. Returns `None` if the server closed the connection without one.
    pub(crate) fn read(stream: &mut impl Read) -> Option<Self> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8(bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n")?;
        let code = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        assert!(body.is_empty() || body.len() == length, "{head}");
        Some(Self {
            code,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }
}

/// Sends a request by TCP with these header lines.
pub(crate) fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    stream.write_all(request.as_bytes()).expect("sent");
    Answer::read(&mut stream).expect("an answer")
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"),
    )
}

pub(crate) fn get_by_socket(path: &Path, what: &str) -> Answer {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    write!(stream, "GET {what} HTTP/1.0\r\n\r\n").expect("sent");
    Answer::read(&mut stream).expect("an answer")
}
