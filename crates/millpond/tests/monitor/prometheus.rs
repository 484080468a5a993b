//! Tests with the real Prometheus, if it is installed: it scrapes a monitor, and its data is queried.

use super::http::{Answer, get};
use super::{MIB, child, wait_for};
use millpond::{Monitor, Pool};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Returns a program of Prometheus from the path or from `MILLPOND_PROMETHEUS`, or prints a message if there is none.
fn program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("MILLPOND_PROMETHEUS").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = folder
        .into_iter()
        .chain(std::env::split_paths(&paths))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!(
            "skipped: {name} is not installed (Debian: apt install prometheus), nor named by MILLPOND_PROMETHEUS"
        );
    }
    found
}

/// A process that is killed at the end of the test.
struct Running(Child, PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

/// Starts a Prometheus that scrapes this address every 200 ms. Returns its own address.
fn start(prometheus: PathBuf, target: SocketAddr) -> (Running, SocketAddr) {
    let folder = std::env::temp_dir().join(format!("millpond-prometheus-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = folder.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
         scrape_configs:\n- job_name: millpond\n  static_configs:\n  - targets: ['{target}']\n"
    );
    std::fs::write(&config, text).expect("written");
    // This port was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a port");
    let mut command = Command::new(prometheus);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let running = child::ends(&mut command).spawn().expect("it starts");
    (Running(running, folder), address)
}

/// Queries Prometheus. Returns `None` while it does not answer.
fn query(address: SocketAddr, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    let answer: Value = serde_json::from_str(body).ok()?;
    Some(answer["data"].clone())
}

#[test]
fn prometheus_scrapes_what_a_pool_has() {
    let Some(prometheus) = program("prometheus") else {
        return;
    };
    let pool = Pool::builder()
        .name("scraped \"pool\"\\")
        .limit(64 * MIB)
        .host()
        .expect("a pool");
    let held = pool.alloc_zeroed::<u8>(6 << 20).expect("memory");
    let monitor = Monitor::builder()
        .interval(Duration::from_millis(50))
        .listen(([127, 0, 0, 1], 0).into())
        .rank("7")
        .start()
        .expect("a monitor");
    let (_running, address) = start(prometheus, monitor.address().expect("an address"));
    // The query is `{pool=~"scraped.*"}`, for both the gauge and the counter.
    let gauge = "/api/v1/query?query=millpond_pool_allocated_bytes%7Bpool%3D~%22scraped.*%22%7D";
    let value = |answer: &Value| -> Option<u64> { answer["result"][0]["value"][1].as_str()?.parse().ok() };
    wait_for("the pool's bytes", || {
        query(address, gauge).and_then(|answer| value(&answer)) == Some(6 * MIB)
    });
    let labels = &query(address, gauge).expect("an answer")["result"][0]["metric"];
    assert_eq!(labels["pool"], "scraped \"pool\"\\");
    assert_eq!(
        (&labels["rank"], &labels["kind"]),
        (&Value::from("7"), &Value::from("host"))
    );
    assert!(labels["host"].as_str().is_some_and(|host| !host.is_empty()));
    drop(held);
    wait_for("the fall", || {
        query(address, gauge).and_then(|answer| value(&answer)) == Some(0)
    });
    for _ in 0..41 {
        drop(pool.alloc_zeroed::<u8>(4096).expect("memory"));
    }
    let counter = "/api/v1/query?query=millpond_pool_allocations_total%7Bpool%3D~%22scraped.*%22%7D";
    wait_for("the count", || {
        query(address, counter).and_then(|answer| value(&answer)) == Some(42)
    });
    let kinds = query(address, "/api/v1/metadata?metric=millpond_pool_allocations").expect("an answer");
    let kinds = kinds["millpond_pool_allocations"][0].clone();
    assert_eq!(kinds["type"], "counter", "read as OpenMetrics: {kinds}");
    let targets = query(address, "/api/v1/targets").expect("an answer");
    let target = &targets["activeTargets"][0];
    assert_eq!(
        (target["health"].as_str(), target["lastError"].as_str()),
        (Some("up"), Some(""))
    );
}

#[test]
fn promtool_reports_no_problems() {
    let Some(promtool) = program("promtool") else {
        return;
    };
    let pool = Pool::builder()
        .name("checked")
        .limit(64 * MIB)
        .host()
        .expect("a pool");
    let monitor = Monitor::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .rank("0")
        .start()
        .expect("a monitor");
    let Answer { body, .. } = get(monitor.address().expect("an address"), "/metrics");
    assert!(body.contains("checked"));
    let mut command = Command::new(promtool);
    command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = child::ends(&mut command).spawn().expect("it starts");
    running
        .stdin
        .take()
        .expect("piped")
        .write_all(body.as_bytes())
        .expect("read");
    let output = running.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");
    drop(pool);
}
