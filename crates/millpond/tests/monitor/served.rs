//! The responses of the server, and its robustness against bad clients.

use super::MIB;
use super::http::{Answer, ask, get, get_by_socket};
use millpond::monitor::{MonitorError, ServeError};
use millpond::{Ledger, Monitor, Pool, Tracking};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn served() -> (Monitor, SocketAddr) {
    let monitor = Monitor::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .rank("3")
        .host("a \"host\"\\\n")
        .start();
    let monitor = monitor.expect("a monitor");
    let address = monitor.address().expect("an address");
    (monitor, address)
}

#[test]
fn stats_are_json_and_agree_with_the_pool() {
    let name = "odd \"name\"\\ \u{7}\u{2028}é";
    let pool = Pool::builder().name(name).limit(64 * MIB).host().expect("a pool");
    pool.track(Some(Ledger::builder(Tracking::All)));
    let held = pool.alloc_zeroed::<u8>(3 << 20).expect("memory");
    let (monitor, address) = served();
    let answer = get(address, "/stats");
    assert!(
        answer.code == 200 && answer.head.contains("Content-Type: application/json"),
        "{}",
        answer.head
    );
    let stats: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(
        (stats["schema"].as_str(), stats["version"].as_u64()),
        (Some("millpond-stats"), Some(1))
    );
    let of = stats["pools"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|of| of["name"] == name)
        .expect("it is there");
    assert_eq!(
        (of["allocated"].as_u64(), of["limit"].as_u64()),
        (Some(3 * MIB), Some(64 * MIB))
    );
    assert_eq!(
        (of["allocations"].as_u64(), of["hit_rate"].as_f64()),
        (Some(1), Some(0.0))
    );
    assert_eq!(of["allocated_history"], Value::from(vec![3 * MIB]));
    let process = &stats["process"];
    assert_eq!(process["id"].as_u64(), Some(u64::from(std::process::id())));
    assert_eq!(
        (process["rank"].as_str(), process["host"].as_str()),
        (Some("3"), Some("a \"host\"\\\n"))
    );
    assert!(process["resident"].as_u64() > Some(MIB) && stats["tags"].is_array());
    drop((held, monitor));
}

/// Returns the samples of a text of metrics: the name, the labels as written, and the value.
fn samples(text: &str) -> Vec<(&str, &str, u64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &'_ str| -> (usize, usize) {
        (line.find('{').expect("labels"), line.rfind('}').expect("labels"))
    };
    lines
        .map(|line| {
            let (open, close) = sample(line);
            let value = line[close + 1..].trim().parse().expect("a number");
            (&line[..open], &line[open + 1..close], value)
        })
        .collect()
}

#[test]
fn metrics_follow_their_formats() {
    let pools =
        ["same", "same"].map(|name| Pool::builder().name(name).limit(64 * MIB).host().expect("a pool"));
    let held = pools[0].alloc_zeroed::<u8>(3 << 20).expect("memory");
    let (monitor, address) = served();
    let request =
        |accept: &str| format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
    let new = ask(
        address,
        &request("application/openmetrics-text;version=1.0.0,*/*;q=0.1"),
    );
    let old = ask(address, &request("*/*"));
    assert!(
        new.head
            .contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(
        old.head
            .contains("Content-Type: text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(new.body.ends_with("\n# EOF\n") && !old.body.contains("# EOF") && !old.body.contains("# UNIT"));
    assert!(
        new.body
            .contains("# TYPE millpond_pool_allocations counter\n# HELP")
    );
    assert!(
        old.body.contains(
            "# TYPE millpond_pool_allocations_total counter\n# HELP millpond_pool_allocations_total "
        )
    );
    assert!(new.body.contains("# UNIT millpond_pool_allocated_bytes bytes\n"));
    for text in [&new.body, &old.body] {
        let all = samples(text);
        assert!(
            all.iter()
                .all(|(_, labels, _)| labels.starts_with("host=\"a \\\"host\\\"\\\\\\n\",rank=\"3\""))
        );
        let allocated: Vec<_> = all
            .iter()
            .filter(|(name, labels, _)| {
                *name == "millpond_pool_allocated_bytes" && labels.contains("pool=\"same\"")
            })
            .collect();
        assert!(
            allocated.len() == 2 && allocated[0].1.contains("kind=\"host\",device=\"host\""),
            "{allocated:?}"
        );
        assert_eq!((allocated[0].2, allocated[1].2), (3 * MIB, 0));
        let mut series: Vec<_> = all.iter().map(|(name, labels, _)| (name, labels)).collect();
        let count = series.len();
        series.sort();
        series.dedup();
        assert_eq!(series.len(), count, "a series appears once");
        // Each family is described once, before its contiguous samples.
        let mut described: Vec<&str> = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().expect("a name");
            assert!(!described.contains(&name), "{name}");
            described.push(name);
        }
        let families: Vec<&str> = {
            let mut names: Vec<&str> = all.iter().map(|(name, ..)| *name).collect();
            names.dedup();
            names
        };
        assert_eq!(families.len(), described.len());
    }
    drop((held, monitor));
}

#[test]
fn only_local_requests_with_a_local_host_header_are_served() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let address: SocketAddr = address.parse().expect("an address");
        let outcome = Monitor::builder().listen(address).start();
        assert!(
            matches!(outcome, Err(MonitorError::Serve(ServeError::NotLoopback(told))) if told == address)
        );
    }
    let (monitor, address) = served();
    let taken = Monitor::builder().listen(address).start();
    assert!(matches!(
        taken,
        Err(MonitorError::Serve(ServeError::Listen { .. }))
    ));
    for (host, code) in [
        ("Host: evil.example\r\n", 421),
        ("", 421),
        ("Host: localhost\r\nHost: evil.example\r\n", 421),
        ("Host: 127.0.0.1.evil.example:80\r\n", 421),
        ("Host: localhost\r\n", 200),
        ("host: [::1]:80\r\n", 200),
    ] {
        let answer = ask(address, &format!("GET /stats HTTP/1.1\r\n{host}\r\n"));
        assert_eq!(answer.code, code, "{host:?}");
        assert!(code == 200 || !answer.body.contains("pools"), "{host:?}");
    }
    drop(monitor);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_malformed_request_gets_an_error_status() {
    let (monitor, address) = served();
    let host = "Host: localhost\r\n";
    for (request, code) in [
        ("\r\n\r\n".to_owned(), 400),
        ("\u{1}\u{2}\u{3}\n\n".to_owned(), 400),
        (format!("GET /stats HTTP/2\r\n{host}\r\n"), 400),
        (format!("GET stats HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /nothing HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /../etc/passwd HTTP/1.1\r\n{host}\r\n"), 404),
        (
            format!("POST /stats HTTP/1.1\r\n{host}Content-Length: 9\r\n\r\n{{\"a\":\"b\"}}"),
            405,
        ),
        (
            format!("GET /stats HTTP/1.1\r\n{host}X: {}\r\n\r\n", "x".repeat(9000)),
            431,
        ),
        ("x".repeat(100_000), 431),
        (
            format!("GET /stats?a=b HTTP/1.0\n{host}\n").replace("\r\n", "\n"),
            200,
        ),
    ] {
        let answer = ask(address, &request);
        assert_eq!(answer.code, code, "{:?}", &request[..request.len().min(60)]);
    }
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    assert_eq!(Answer::read(&mut stream).map(|answer| answer.code), Some(400));
    let head = ask(address, &format!("HEAD /stats HTTP/1.1\r\n{host}\r\n"));
    assert!(head.code == 200 && head.body.is_empty());
    assert_eq!(get(address, "/stats").code, 200);
    drop(monitor);
}

#[test]
fn slow_and_numerous_clients_do_not_delay_others() {
    let (monitor, address) = served();
    // These are more connections than are served at once, and none finishes its request.
    let mut slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET /stats HT").expect("sent");
            stream
        })
        .collect();
    for stream in &mut slow {
        // The first of them are no longer served.
        let _ = stream.write_all(b"T");
        let began = Instant::now();
        assert_eq!(get(address, "/stats").code, 200);
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
    // A client sends a request, reads nothing and disconnects.
    for _ in 0..50 {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream
            .write_all(b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("sent");
    }
    assert_eq!(get(address, "/metrics").code, 200);
    assert!(monitor.is_running());
    drop(slow);
}

#[test]
fn a_client_that_never_completes_its_request_is_disconnected() {
    let (monitor, address) = served();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /stats HTTP/1.1\r\n").expect("sent");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let began = Instant::now();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an end");
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert!(began.elapsed() > Duration::from_secs(2) && began.elapsed() < Duration::from_secs(30));
    drop(monitor);
}

#[test]
fn a_socket_is_served_and_removed() {
    let folder = std::env::temp_dir().join(format!("millpond-served-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("own.sock");
    let monitor = Monitor::builder().socket_at(&path).start().expect("a monitor");
    assert_eq!(monitor.socket(), Some(path.as_path()));
    let stats: Value = serde_json::from_str(&get_by_socket(&path, "/stats").body).expect("JSON");
    assert_eq!(stats["schema"], "millpond-stats");
    assert!(
        get_by_socket(&path, "/metrics")
            .body
            .contains("millpond_process_resident_bytes")
    );
    let second = Monitor::builder().socket_at(&path).start();
    assert!(matches!(second, Err(MonitorError::Serve(ServeError::Taken(told))) if told == path));
    drop(monitor);
    assert!(!path.exists());
    // A killed process leaves its socket, which a new one replaces.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let monitor = Monitor::builder().socket_at(&path).start().expect("a monitor");
    assert!(UnixStream::connect(&path).is_ok());
    drop(monitor);
    std::fs::remove_dir(&folder).expect("empty");
}
