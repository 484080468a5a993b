//! Handles connections, with limits of number, time and size. Each connection has one request and one thread.
//!
//! A client without the token holds a connection for a few seconds at most and gets a few bytes. A client that stops reading is
//! disconnected. No client can end the server, which runs until the program ends.

use super::request::{Asked, MOST, Refusal, end_of_head, read};
use super::site::{Site, Thing};
use crate::exit::{CliError, Exit};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The most clients at once.
const MOST_CLIENTS: usize = 32;
/// The time limit for a complete request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest time for which a client may leave a response unread.
const READERS_PATIENCE: Duration = Duration::from_secs(120);
/// The pause after a system error, during which no client is accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of a request that are read and discarded, so that its sender can read the reason for the refusal.
const MOST_DRAINED: u64 = 64 << 10;

/// Listens on this machine only. Port 0 means any free port.
pub(super) fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// Serves until the program ends.
pub(super) fn run(listener: &TcpListener, port: u16, site: Site) -> Result<Exit, CliError> {
    let site = Arc::new(site);
    let clients = Arc::new(Clients::default());
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                // If no place is free, this connection closes.
                let Some(place) = Clients::admit(&clients, stream) else {
                    continue;
                };
                let site = Arc::clone(&site);
                let serve = move || {
                    // An error means that the client has gone, which is not an error of the server.
                    let _ = answer(&place, port, &site);
                };
                // If no thread can be created, the connection closes.
                if Builder::new()
                    .name("millpond-view".to_owned())
                    .spawn(serve)
                    .is_err()
                {
                    std::thread::sleep(PAUSE);
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            // Usually no file descriptor is left, so an immediate retry would fail too.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// The connections that are being served, oldest first.
#[derive(Debug, Default)]
struct Clients(Mutex<Vec<Connection>>);

#[derive(Debug)]
struct Connection {
    stream: Arc<TcpStream>,
    /// Whether a request with the right token has arrived.
    is_known: bool,
}

impl Clients {
    /// Adds a connection to those that are served. If there are too many, closes the oldest one that has not sent a valid request:
    /// silent connections must not keep the owner out. Returns `None` if all of them have sent one.
    fn admit(clients: &Arc<Self>, stream: TcpStream) -> Option<Place> {
        let stream = Arc::new(stream);
        let mut all = clients.all();
        if all.len() >= MOST_CLIENTS {
            let oldest = all.iter().position(|client| !client.is_known)?;
            // Its thread reads the end of the stream and ends.
            let _ = all.remove(oldest).stream.shutdown(Shutdown::Both);
        }
        all.push(Connection {
            stream: Arc::clone(&stream),
            is_known: false,
        });
        Some(Place {
            clients: Arc::clone(clients),
            stream,
        })
    }

    /// Locks the list. A poisoned lock is used, because nothing panics while the list is changed.
    fn all(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is being served. Dropping this removes it from the list.
#[derive(Debug)]
struct Place {
    clients: Arc<Clients>,
    stream: Arc<TcpStream>,
}

impl Place {
    fn set_known(&self) {
        for client in self.clients.all().iter_mut() {
            client.is_known |= Arc::ptr_eq(&client.stream, &self.stream);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.clients.all();
        all.retain(|client| !Arc::ptr_eq(&client.stream, &self.stream));
    }
}

fn answer(place: &Place, port: u16, site: &Site) -> io::Result<()> {
    let stream = &*place.stream;
    stream.set_write_timeout(Some(READERS_PATIENCE))?;
    stream.set_nodelay(true)?;
    let asked = head(stream).and_then(|head| read(&head, port, site.token(), site.len()));
    if asked.is_ok() {
        place.set_known();
    }
    match asked {
        Ok(Asked::Page) => {
            site.remove_redirect();
            whole(stream, site, "200 OK", "text/html; charset=utf-8", site.page())
        }
        Ok(Asked::Of(index, Thing::Blocks)) => parts(stream, site, index),
        Ok(Asked::Of(index, thing)) => match site.text(index, thing) {
            Ok(text) => whole(stream, site, "200 OK", "application/json", text),
            Err(why) => whole(
                stream,
                site,
                "500 Internal Server Error",
                "text/plain; charset=utf-8",
                why,
            ),
        },
        Err(refusal) => refuse(stream, site, refusal),
    }
}

/// Reads the complete head of a request within its limits of time and length.
fn head(mut stream: &TcpStream) -> Result<Vec<u8>, Refusal> {
    let until = Instant::now() + PATIENCE;
    let mut sent = Vec::new();
    let mut some = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(Refusal::TooSlow);
        }
        let count = match stream.read(&mut some) {
            Ok(0) => return Err(Refusal::Malformed),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Err(Refusal::TooSlow),
        };
        sent.extend_from_slice(&some[..count]);
        match end_of_head(&sent) {
            Some(end) if end <= MOST => {
                sent.truncate(end);
                return Ok(sent);
            }
            None if sent.len() <= MOST => {}
            _ => return Err(Refusal::TooLong),
        }
    }
}

fn begin(out: &mut dyn Write, site: &Site, status: &str, kind: &str, length: &str) -> io::Result<()> {
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}\r\nContent-Security-Policy: {}\r\n\
         X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Connection: close\r\n\r\n",
        site.policy()
    )
}

fn whole(mut stream: &TcpStream, site: &Site, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let mut head = Vec::new();
    begin(
        &mut head,
        site,
        status,
        kind,
        &format!("Content-Length: {}", body.len()),
    )?;
    stream.write_all(&head)?;
    stream.write_all(body.as_bytes())
}

fn refuse(mut stream: &TcpStream, site: &Site, refusal: Refusal) -> io::Result<()> {
    whole(
        stream,
        site,
        refusal.status(),
        "text/plain; charset=utf-8",
        refusal.sentence(),
    )?;
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(PAUSE))?;
    io::copy(&mut Read::by_ref(&mut stream).take(MOST_DRAINED), &mut io::sink()).map(drop)
}

/// Sends the blocks of a recording as they are found.
fn parts(stream: &TcpStream, site: &Site, index: usize) -> io::Result<()> {
    let mut head = Vec::new();
    let kind = "application/octet-stream";
    begin(&mut head, site, "200 OK", kind, "Transfer-Encoding: chunked")?;
    let mut stream = stream;
    stream.write_all(&head)?;
    let mut chunks = BufWriter::with_capacity(1 << 18, Chunks(stream));
    // If an error occurs before the last chunk, the client knows that the data is incomplete.
    site.blocks(index, &mut chunks)?;
    chunks.flush()?;
    stream.write_all(b"0\r\n\r\n")
}

/// Sends each write as one chunk.
struct Chunks<'a>(&'a TcpStream);

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            // An empty chunk would end the body.
            return Ok(0);
        }
        let mut stream = self.0;
        write!(stream, "{:x}\r\n", bytes.len())?;
        stream.write_all(bytes)?;
        stream.write_all(b"\r\n")?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
