//! Parses requests, and checks their senders.
//!
//! A page of another site can make the user's browser send requests to any port of this machine. Such a request does not
//! contain the token. It also has another `Host` (after DNS rebinding), or names its origin (`Origin`, `Sec-Fetch-Site`). Each
//! of these is refused before anything is looked up.

use super::site::Thing;

/// The most bytes of a request's head.
pub(super) const MOST: usize = 8 << 10;

/// The resource that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The page.
    Page,
    /// A resource of the recording with this index.
    Of(usize, Thing),
}

/// The reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The bytes are not a request.
    Malformed,
    /// The request is too long.
    TooLong,
    /// The request took too long.
    TooSlow,
    /// The request comes from another site, or has another host name.
    Foreign,
    /// The method is not `GET`.
    Method,
    /// The resource does not exist, or the token is missing.
    NotFound,
}

impl Refusal {
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::TooSlow => "408 Request Timeout",
            Self::Foreign => "403 Forbidden",
            Self::Method => "405 Method Not Allowed",
            Self::NotFound => "404 Not Found",
        }
    }

    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::Malformed => "this is not an HTTP request",
            Self::TooLong => "the request is too long",
            Self::TooSlow => "the request took too long to arrive",
            Self::Foreign => "this request may come from another site: open the address that was printed",
            Self::Method => "only GET is supported",
            Self::NotFound => "there is nothing here: open the complete address that was printed",
        }
    }
}

/// Returns the end of the head of a request, if it is complete.
pub(super) fn end_of_head(sent: &[u8]) -> Option<usize> {
    sent.windows(4).position(|four| four == b"\r\n\r\n")
}

/// Parses a request to a server on `port` with this number of recordings.
pub(super) fn read(head: &[u8], port: u16, token: &str, recordings: usize) -> Result<Asked, Refusal> {
    let text = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (first.next(), first.next(), first.next());
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (method, target, version, first.next())
    else {
        return Err(Refusal::Malformed);
    };
    check_sender(lines, port)?;
    if method != "GET" {
        return Err(Refusal::Method);
    }
    let path = target.strip_prefix('/').ok_or(Refusal::Malformed)?;
    let (given, path) = path.split_once('/').ok_or(Refusal::NotFound)?;
    if !is_same(given, token) {
        return Err(Refusal::NotFound);
    }
    asked(path, recordings).ok_or(Refusal::NotFound)
}

/// Checks that a request comes from this server's page: it names this server exactly once, and no other site.
fn check_sender<'a>(lines: impl Iterator<Item = &'a str>, port: u16) -> Result<(), Refusal> {
    let here = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let mut hosts = 0;
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("host") {
            hosts += 1;
            if !here.iter().any(|host| host == value) {
                return Err(Refusal::Foreign);
            }
        } else if name.eq_ignore_ascii_case("origin") {
            let origin = value.strip_prefix("http://");
            if !here.iter().any(|host| Some(host.as_str()) == origin) {
                return Err(Refusal::Foreign);
            }
        } else if name.eq_ignore_ascii_case("sec-fetch-site") && !matches!(value, "same-origin" | "none") {
            return Err(Refusal::Foreign);
        }
    }
    if hosts == 1 { Ok(()) } else { Err(Refusal::Foreign) }
}

/// Returns whether two texts are equal. The time does not depend on how much of them is equal.
fn is_same(given: &str, token: &str) -> bool {
    let differences = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == token.len() && differences == 0
}

fn asked(path: &str, recordings: usize) -> Option<Asked> {
    if path.is_empty() {
        return Some(Asked::Page);
    }
    let (index, thing) = path.split_once('/')?;
    let index = index.parse().ok().filter(|index| *index < recordings)?;
    Some(Asked::Of(index, Thing::named(thing)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn ask(line: &str, rest: &str) -> Result<Asked, Refusal> {
        read(format!("{line} HTTP/1.1\r\n{rest}").as_bytes(), 4000, TOKEN, 2)
    }

    #[test]
    fn requests_with_the_token_are_accepted() {
        let host = "Host: 127.0.0.1:4000";
        for (path, asked) in [
            ("", Asked::Page),
            ("0/glance", Asked::Of(0, Thing::Glance)),
            ("1/blocks", Asked::Of(1, Thing::Blocks)),
            ("0/stacks", Asked::Of(0, Thing::Stacks)),
            ("1/told", Asked::Of(1, Thing::Told)),
            ("1/replay-planned", Asked::Of(1, Thing::Replay(1))),
        ] {
            assert_eq!(ask(&format!("GET /{TOKEN}/{path}"), host), Ok(asked));
        }
        for rest in [
            "host: localhost:4000",
            "Host: localhost:4000\r\nOrigin: http://localhost:4000",
            "Host: 127.0.0.1:4000\r\nSec-Fetch-Site: same-origin",
            "Host: 127.0.0.1:4000\r\nSec-Fetch-Site: none",
        ] {
            assert_eq!(ask(&format!("GET /{TOKEN}/"), rest), Ok(Asked::Page), "{rest}");
        }
    }

    #[test]
    fn all_other_requests_are_refused() {
        let host = "Host: 127.0.0.1:4000";
        let page = format!("GET /{TOKEN}/");
        for (line, rest, refusal) in [
            ("GET /", host, Refusal::NotFound),
            ("GET /0123456789abcdef0123456789abcdee/", host, Refusal::NotFound),
            ("GET /0123456789abcdef/", host, Refusal::NotFound),
            ("GET //", host, Refusal::NotFound),
            (&format!("GET /{TOKEN}"), host, Refusal::NotFound),
            (&format!("GET /{TOKEN}/2/glance"), host, Refusal::NotFound),
            (&format!("GET /{TOKEN}/-1/glance"), host, Refusal::NotFound),
            (
                &format!("GET /{TOKEN}/0/../../etc/passwd"),
                host,
                Refusal::NotFound,
            ),
            (&format!("GET /{TOKEN}/0/replay-nothing"), host, Refusal::NotFound),
            (&format!("GET /{TOKEN}/0/replay-"), host, Refusal::NotFound),
            (&format!("POST /{TOKEN}/"), host, Refusal::Method),
            (&format!("OPTIONS /{TOKEN}/"), host, Refusal::Method),
            (&page, "Host: evil.example:4000", Refusal::Foreign),
            (&page, "Host: 127.0.0.1:4001", Refusal::Foreign),
            (&page, "Host: 127.0.0.1", Refusal::Foreign),
            (&page, "", Refusal::Foreign),
            (&page, &format!("{host}\r\n{host}"), Refusal::Foreign),
            (
                &page,
                &format!("{host}\r\nOrigin: https://evil.example"),
                Refusal::Foreign,
            ),
            (&page, &format!("{host}\r\nOrigin: null"), Refusal::Foreign),
            (
                &page,
                &format!("{host}\r\nOrigin: http://127.0.0.1:4001"),
                Refusal::Foreign,
            ),
            (
                &page,
                &format!("{host}\r\nSec-Fetch-Site: cross-site"),
                Refusal::Foreign,
            ),
            (&page, &format!("{host}\r\nno colon"), Refusal::Malformed),
            ("GET", host, Refusal::Malformed),
            ("", host, Refusal::Malformed),
            ("GET x y", host, Refusal::Malformed),
        ] {
            assert_eq!(ask(line, rest), Err(refusal), "{line} {rest}");
        }
        assert_eq!(
            read(b"\xff\xfe HTTP/1.1", 4000, TOKEN, 1),
            Err(Refusal::Malformed)
        );
    }
}
