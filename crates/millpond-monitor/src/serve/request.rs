//! Parses requests from untrusted clients, and makes the answers.

use crate::openmetrics::{self, Dialect};
use crate::{ROOM, Shared, stats};
use millpond_os::metadata::has_room;

/// The maximum number of bytes of a request's head.
const MOST: usize = 8 << 10;

/// The state of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The request is incomplete.
    Part,
    /// The request is complete. This is the answer.
    Whole(Vec<u8>),
}

/// Returns the answer to a client whose request is late.
pub(super) fn too_late() -> Vec<u8> {
    refusal(408, "Request Timeout", "the request took too long to arrive")
}

/// Parses the received bytes. Returns the answer when the head is complete. Bytes after the head are ignored.
pub(super) fn read(sent: &[u8], by_tcp: bool, shared: &Shared) -> Read {
    let Some(end) = end_of_head(sent) else {
        if sent.len() > MOST {
            return Read::Whole(refusal(
                431,
                "Request Header Fields Too Large",
                "the request is too long",
            ));
        }
        return Read::Part;
    };
    if end > MOST {
        return Read::Whole(refusal(
            431,
            "Request Header Fields Too Large",
            "the request is too long",
        ));
    }
    let answer = match Head::parse(&sent[..end]) {
        Some(head) => head.answer(by_tcp, shared),
        None => refusal(400, "Bad Request", "this is not an HTTP request"),
    };
    Read::Whole(answer)
}

/// Finds the empty line that ends the head.
fn end_of_head(sent: &[u8]) -> Option<usize> {
    let line_ends = sent.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    for (at, _) in line_ends {
        let after = &sent[at + 1..];
        if after.starts_with(b"\n") || after.starts_with(b"\r\n") {
            return Some(at + 1);
        }
    }
    None
}

/// The relevant parts of a request.
#[derive(Debug, PartialEq, Eq)]
struct Head<'a> {
    method: &'a str,
    path: &'a str,
    hosts: Vec<&'a str>,
    accept: String,
}

impl<'a> Head<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        let mut first = lines.next()?.split(' ');
        let (method, target, version) = (first.next()?, first.next()?, first.next()?);
        let is_http = matches!(version, "HTTP/1.1" | "HTTP/1.0") && first.next().is_none();
        if !is_http || method.is_empty() || !target.starts_with('/') {
            return None;
        }
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        let mut head = Self {
            method,
            path,
            hosts: Vec::new(),
            accept: String::new(),
        };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            if name.eq_ignore_ascii_case("host") {
                head.hosts.push(value.trim());
            } else if name.eq_ignore_ascii_case("accept") {
                head.accept.push_str(value.trim());
                head.accept.push(',');
            }
        }
        Some(head)
    }

    fn answer(&self, by_tcp: bool, shared: &Shared) -> Vec<u8> {
        let asks_for_us = matches!(self.hosts[..], [host] if is_here(host));
        if by_tcp && !asks_for_us {
            return refusal(
                421,
                "Misdirected Request",
                "use 127.0.0.1, [::1] or localhost as the host: this request may come from another site",
            );
        }
        if !matches!(self.method, "GET" | "HEAD") {
            return refusal(405, "Method Not Allowed", "only GET is supported");
        }
        if !has_room(ROOM) {
            return refusal(
                503,
                "Service Unavailable",
                "the program has too little memory left to answer",
            );
        }
        let (kind, body) = match self.path {
            "/metrics" => {
                let dialect = Dialect::accepted_by(&self.accept);
                (dialect.content_type(), openmetrics::text(shared, dialect))
            }
            "/stats" => ("application/json", stats::json(shared)),
            "/" => (
                "text/plain; charset=utf-8",
                "/metrics  for Prometheus\n/stats    JSON\n".to_owned(),
            ),
            _ => return refusal(404, "Not Found", "there is no such path: use /metrics or /stats"),
        };
        let mut answer = head_of(200, "OK", kind, body.len());
        if self.method == "GET" {
            answer.push_str(&body);
        }
        answer.into_bytes()
    }
}

/// Returns true if this names the machine itself, with any port.
fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(host, |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn head_of(code: u16, phrase: &str, kind: &str, length: usize) -> String {
    let allow = if code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {code} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
}

fn refusal(code: u16, phrase: &str, why: &str) -> Vec<u8> {
    let mut answer = head_of(code, phrase, "text/plain; charset=utf-8", why.len() + 1);
    answer.push_str(why);
    answer.push('\n');
    answer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_names_of_this_machine_are_accepted() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "127.8.8.8",
            "localhost",
            "LocalHost:80",
            "[::1]",
            "[::1]:9464",
        ] {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "10.0.0.1",
            "[::2]",
            "::1:80",
            "[::1",
            "localhost@evil",
            "0.0.0.0",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn heads_are_parsed() {
        let text = "GET /metrics?x=1 HTTP/1.1\r\nHOST:  localhost:9 \r\naccept: a\r\nAccept: b\r\n";
        let head = Head::parse(text.as_bytes()).expect("a head");
        assert_eq!(
            (head.method, head.path, &head.hosts[..]),
            ("GET", "/metrics", &["localhost:9"][..])
        );
        assert_eq!(head.accept, "a,b,");
        for text in [
            "",
            "GET",
            "GET /",
            "GET / HTTP/2",
            "GET  / HTTP/1.1",
            "GET http://a/ HTTP/1.1",
            "GET / HTTP/1.1 x",
            "GET / HTTP/1.1\r\nno colon\r\n",
        ] {
            assert_eq!(Head::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(sent in proptest::collection::vec(any::<u8>(), 0..300)) {
            let end = end_of_head(&sent);
            prop_assert!(end.is_none_or(|end| end <= sent.len()));
            let _ = Head::parse(&sent[..end.unwrap_or(sent.len())]);
        }
    }
}
