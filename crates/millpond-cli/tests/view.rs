//! Tests `millpond view`: the responses of its server to different clients, and the contents of its file.

#[path = "view/browser.rs"]
mod browser;
mod support;

use millpond_trace::recording::{Kind, Row, Writer, set_start};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{command, folder, json, run, small, trace};

const EVIL: &str = "</script><img src=x onerror=alert(1)><!--<script>";

/// A server that ends with the test.
struct Served {
    child: Child,
    /// The address `127.0.0.1` with the port.
    host: String,
    /// The path with which all addresses begin.
    path: String,
}

impl Served {
    fn start(files: &[&str]) -> Self {
        let mut args = vec!["view", "--no-open", "--quiet"];
        args.extend(files);
        Self::of(&mut command(&args))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("an address");
        let address = line.trim().strip_prefix("http://").expect("an address");
        let (host, path) = address.split_once('/').expect("a path");
        assert!(host.starts_with("127.0.0.1:"), "{host}");
        Self {
            child,
            host: host.to_owned(),
            path: format!("/{path}"),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.host).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        stream
    }

    /// Sends bytes and reads the whole response. Returns the head and the body.
    fn send(&self, bytes: &[u8]) -> (String, Vec<u8>) {
        let mut stream = self.connect();
        // A server that has already refused may have closed the connection.
        let _ = stream.write_all(bytes);
        answer(stream)
    }

    fn get(&self, path: &str) -> (String, Vec<u8>) {
        self.send(self.request(path).as_bytes())
    }

    fn request(&self, path: &str) -> String {
        format!("GET {}{path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.host)
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.get(path);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        serde_json::from_slice(&body).expect("JSON")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(mut stream: TcpStream) -> (String, Vec<u8>) {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.map_or(all.len(), |end| end + 4);
    (
        String::from_utf8_lossy(&all[..end]).into_owned(),
        all[end..].to_vec(),
    )
}

/// Joins the chunks of a body. Returns `None` if the last chunk is missing.
fn joined(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?, 16).ok()?;
        let chunk = body.get(end + 2..end + 2 + length)?;
        if length == 0 {
            return Some(all);
        }
        all.extend(chunk);
        body = body.get(end + 2 + length + 2..)?;
    }
}

/// Returns the sections of each part.
fn sections(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (one, after) = rest.split_at(u32::from_le_bytes(*length) as usize);
        all.push(one.to_vec());
        bytes = after;
    }
    all
}

/// Returns a recording in Millpond's format with hostile names and with blocks larger than any memory.
fn hostile(folder: &Path) -> String {
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), EVIL.to_owned())]).expect("memory");
    let tag = Row {
        tag: 1,
        ..Row::new(Kind::DefineTag, 0)
    };
    writer.say(&tag, Some(EVIL), None).expect("memory");
    let pool = Row {
        pool: 1,
        ..Row::new(Kind::DefinePool, 0)
    };
    writer
        .say(&pool, Some(&format!("cuda\n{EVIL}")), Some(&[0]))
        .expect("memory");
    let stack = Row {
        stack: 1,
        ..Row::new(Kind::DefineStack, 0)
    };
    writer.say(&stack, None, Some(&[4096])).expect("memory");
    writer
        .say(
            &Row::new(Kind::DefineFrame, 0),
            Some(&format!("{EVIL}\n{EVIL}\n7")),
            Some(&[4096]),
        )
        .expect("memory");
    writer
        .say(&Row::new(Kind::Mark, 5), Some(EVIL), None)
        .expect("memory");
    for id in 1..=40_000u64 {
        let row = Row {
            id,
            requested: 1 << 63,
            bytes: if id.is_multiple_of(1000) { 1 << 63 } else { 4096 },
            pool: 1,
            tag: 1,
            stack: 1,
            ..Row::new(Kind::Alloc, id * 10)
        };
        writer.push(&row).expect("memory");
        if id == 20_000 {
            // A file that is truncated later contains everything that was written until now.
            writer.flush().expect("memory");
        }
    }
    let path = folder.join("evil<img src=x>.mpr");
    std::fs::write(&path, writer.finish(400_000).expect("memory")).expect("room");
    path.display().to_string()
}

#[test]
fn the_page_and_its_data_are_served() {
    let folder = folder("view-served");
    let file = small(&folder, "small.csv");
    let served = Served::start(&[&file, &file]);
    let (head, page) = served.get("");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    for line in [
        "Content-Type: text/html; charset=utf-8",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Connection: close",
        "default-src 'none'; script-src 'sha256-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(head.contains(line), "{line} is not in {head}");
    }
    assert!(!head.contains("unsafe-") && !head.contains("Access-Control"));
    let page = String::from_utf8(page).expect("text");
    assert!(page.contains("small.csv") && page.ends_with("</html>\n"));
    let glance = served.json("0/glance");
    assert_eq!(glance["peak"], 2 * 31_457_280);
    assert_eq!(glance["allocations"], 3);
    assert_eq!(served.json("1/glance"), glance);
    assert!(served.json("0/stacks")["stacks"].is_array());
    let told = served.json("0/told");
    assert_eq!(told["peak"][1], 2 * 31_457_280);
    let (head, body) = served.get("0/blocks");
    assert!(head.contains("Transfer-Encoding: chunked"), "{head}");
    let parts = sections(&joined(&body).expect("a whole body"));
    let head: Value = serde_json::from_slice(&sections(&parts[0])[0]).expect("JSON");
    assert_eq!(head["end"]["blocks"], 3);
    assert_eq!(head["end"]["events"], 4);
}

/// Writes a recording of five seconds. It begins `begins` seconds after a fixed time. Its peak is after three seconds.
fn timed(folder: &Path, begins: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let mut facts = Vec::new();
    set_start(&mut facts, (1_700_000_000 + begins) * SECOND);
    let mut writer = Writer::new(Vec::new(), &facts).expect("memory");
    let block = Row {
        bytes: 1 << 20,
        requested: 1 << 20,
        ..Row::new(Kind::Alloc, SECOND)
    };
    for id in 1..=2 {
        let time = if id == 1 { SECOND } else { 3 * SECOND };
        writer.push(&Row { id, time, ..block }).expect("memory");
    }
    let end = 5 * SECOND;
    writer
        .push(&Row {
            id: 2,
            ..Row {
                kind: Kind::Free,
                time: end,
                ..block
            }
        })
        .expect("memory");
    let path = folder.join(format!("from-{begins}.mpr"));
    std::fs::write(&path, writer.finish(end).expect("memory")).expect("room");
    path.display().to_string()
}

#[test]
fn recordings_of_the_same_time_share_a_clock() {
    let folder = folder("view-clock");
    let [first, second, later] = [0, 2, 8].map(|begins| timed(&folder, begins));
    let unknown = small(&folder, "small.csv");
    let out = folder.join("page.html").display().to_string();
    for (files, meta) in [
        ([&second, &first], r#""offsets":[2000000000,0]"#),
        ([&first, &later], r#""apart":"they were made at different times""#),
        (
            [&first, &unknown],
            r#""apart":"small.csv does not say when it began""#,
        ),
    ] {
        let (_, page) = Served::start(&files.map(String::as_str)).get("");
        let page = String::from_utf8(page).expect("text");
        assert!(page.contains(meta), "{meta}");
        assert_eq!(
            page.contains(r#""offsets":null"#),
            meta.contains("apart"),
            "{meta}"
        );
        assert_eq!(run(&["view", files[0], files[1], "--html", &out]).0, 0);
        let file = std::fs::read_to_string(&out).expect("a page");
        assert!(file.contains(meta), "{meta}");
    }
}

#[test]
fn the_page_answers_first_what_the_program_needs() {
    let folder = folder("view-answer");
    let file = small(&folder, "small.csv");
    // The last request is refused.
    let refused = folder.join("refused.csv");
    let csv = std::fs::read_to_string(&file).expect("a recording");
    let head = csv.lines().next().expect("a head");
    let values = head.split(',').map(|column| match column {
        "time_us" => "9000000",
        "action" => "oom",
        "bytes" => "31457280",
        "tag" => "",
        _ => "0",
    });
    let row = values.collect::<Vec<_>>().join(",");
    std::fs::write(&refused, format!("{}\n{row}\n", csv.trim_end())).expect("room");
    let refused = refused.display().to_string();
    let served = Served::start(&[&file, &refused]);
    for (index, file) in [&file, &refused].into_iter().enumerate() {
        let answer = served.json(&format!("{index}/answer"));
        let said = answer[0]["sentences"].as_array().expect("sentences");
        let replayed = json(&["replay", file, "--json"]);
        let verdict = replayed["verdict"]["sentences"].as_array().expect("sentences");
        assert!(said.ends_with(verdict), "{said:?} and {verdict:?}");
        assert_eq!(answer[0]["failed"], index == 1);
        let first = said[0].as_str().expect("text");
        assert_eq!(
            first.starts_with("The program ran out of memory"),
            index == 1,
            "{first}"
        );
        // A file has the same answer before everything else that it shows.
        let out = folder.join("page.html").display().to_string();
        assert_eq!(run(&["view", file, "--html", &out]).0, 0);
        let html = std::fs::read_to_string(&out).expect("a page");
        let (before, after) = html.split_once("id=\"answer-0\">").expect("an answer");
        assert!(!before.contains("id=\"glance-0\""));
        let embedded: Value =
            serde_json::from_str(after.split("</script>").next().expect("an end")).expect("JSON");
        assert_eq!(embedded, answer);
    }
}

#[test]
fn requests_without_the_token_or_from_other_sites_are_refused() {
    let folder = folder("view-refused");
    let file = small(&folder, "small.csv");
    let served = Served::start(&[&file]);
    let (host, path) = (&served.host, &served.path);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), "404"),
        (
            format!("GET /{}/ HTTP/1.1\r\nHost: {host}\r\n\r\n", "0".repeat(32)),
            "404",
        ),
        (
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
            "403",
        ),
        (format!("GET {path} HTTP/1.1\r\n\r\n"), "403"),
        (
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n\r\n"),
            "403",
        ),
        (
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Site: cross-site\r\n\r\n"),
            "403",
        ),
        (
            format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\nhello"),
            "405",
        ),
        (
            format!("GET {path}../etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            "404",
        ),
        ("\x16\x03\x01\x02 hello\r\n\r\n".to_owned(), "400"),
    ] {
        let (head, body) = served.send(request.as_bytes());
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {head}"
        );
        assert!(body.len() < 200 && head.contains("nosniff"), "{request}");
        let token = path.trim_matches('/');
        assert!(!head.contains(token) && !String::from_utf8_lossy(&body).contains(token));
    }
}

#[test]
fn hostile_clients_do_not_stop_the_server() {
    let folder = folder("view-harm");
    let file = small(&folder, "small.csv");
    let served = Served::start(&[&file]);
    // Requests that are too long, with an end and without one.
    let long = format!("GET {} HTTP/1.1\r\nX: {}", served.path, "a".repeat(100_000));
    for bytes in [long.clone(), format!("{long}\r\n\r\n")] {
        let (head, _) = served.send(bytes.as_bytes());
        assert!(head.starts_with("HTTP/1.1 431"), "{head}");
    }
    // Silent clients and partial requests, from more clients than the server accepts.
    let silent: Vec<TcpStream> = (0..60).map(|_| served.connect()).collect();
    for mut stream in silent.iter().take(10) {
        // The server may have closed the oldest connections in favour of later ones.
        let _ = stream.write_all(b"GET /");
    }
    // One byte at a time. The limit applies to the whole request.
    let mut slow = silent[0].try_clone().expect("a stream");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(7) {
        let _ = slow.write_all(b"x");
        std::thread::sleep(Duration::from_millis(250));
    }
    let (head, _) = answer(slow);
    assert!(head.is_empty() || head.starts_with("HTTP/1.1 408"), "{head}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    // Clients that disconnect in the middle of a response.
    for _ in 0..20 {
        let mut stream = served.connect();
        stream
            .write_all(served.request("0/blocks").as_bytes())
            .expect("a request");
        stream.shutdown(Shutdown::Both).expect("it closes");
    }
    drop(silent);
    let (head, _) = served.get("0/glance");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
}

#[test]
fn silent_connections_do_not_block_valid_requests() {
    let folder = folder("view-silent");
    let file = small(&folder, "small.csv");
    let served = Served::start(&[&file]);
    let silent: Vec<TcpStream> = (0..40).map(|_| served.connect()).collect();
    for round in 0..5 {
        let (head, _) = served.get("0/glance");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "round {round}: {head}");
    }
    drop(silent);
}

#[test]
#[cfg(target_os = "linux")]
fn a_browser_is_started_without_the_token_in_its_arguments() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("view-open");
    let file = small(&folder, "small.csv");
    let at = |name: &str| folder.join(name);
    std::fs::write(
        at("xdg-open"),
        "#!/bin/sh\necho \"$@\" >\"$0.part\"\nmv \"$0.part\" \"$0.args\"\n",
    )
    .expect("a script");
    std::fs::set_permissions(at("xdg-open"), std::fs::Permissions::from_mode(0o700)).expect("ours");
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut opening = command(&["view", "--quiet", &file]);
    opening
        .env("PATH", path)
        .env("DISPLAY", ":0")
        .env("XDG_RUNTIME_DIR", &folder);
    let served = Served::of(&mut opening);
    let begun = Instant::now();
    while !at("xdg-open.args").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no browser is started");
        std::thread::sleep(Duration::from_millis(20));
    }
    let args = std::fs::read_to_string(at("xdg-open.args")).expect("arguments");
    let token = served.path.trim_matches('/');
    assert!(!args.contains(token), "{args}");
    let redirect = Path::new(args.trim_end());
    let mode = std::fs::metadata(redirect).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(redirect).expect("a file");
    assert!(
        text.contains(&format!("url=http://{}{}", served.host, served.path)),
        "{text}"
    );
    let (head, _) = served.get("");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(!redirect.exists(), "the page removes the redirect file");
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_ends_it_and_frees_its_port() {
    let folder = folder("view-interrupt");
    let file = small(&folder, "small.csv");
    // Tests may run with interrupts ignored, as shells do for background jobs.
    let mut interrupted = Command::new("env");
    interrupted
        .arg("--default-signal=INT")
        .arg(env!("CARGO_BIN_EXE_millpond"))
        .args(["view", "--no-open", "--quiet", &file]);
    let mut served = Served::of(&mut interrupted);
    let port = served.host.rsplit(':').next().expect("a port").to_owned();
    let process = served.child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &process]).status();
    assert!(killed.expect("kill runs").success());
    let begun = Instant::now();
    while served.child.try_wait().expect("it is ours").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let again = command(&["view", "--no-open", "--quiet", "--port", &port, &file])
        .stdout(Stdio::piped())
        .spawn();
    let mut again = again.expect("it starts");
    let mut line = String::new();
    let stdout = again.stdout.take().expect("a pipe");
    let read = BufReader::new(stdout).read_line(&mut line);
    let _ = again.kill();
    let _ = again.wait();
    assert!(read.is_ok() && line.contains(&format!(":{port}/")), "{line}");
}

#[test]
fn a_port_in_use_is_reported_in_one_line() {
    let folder = folder("view-taken");
    let file = small(&folder, "small.csv");
    let served = Served::start(&[&file]);
    let port = served.host.rsplit(':').next().expect("a port");
    let (code, _, stderr) = run(&["view", "--no-open", "--port", port, &file]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("--port") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn names_are_not_run_as_code_and_large_numbers_are_limited() {
    let folder = folder("view-html");
    let evil = hostile(&folder);
    let out = folder.join("page.html");
    let (code, _, stderr) = run(&["view", &evil, "--html", &out.display().to_string()]);
    assert_eq!(code, 0, "{stderr}");
    let html = std::fs::read_to_string(&out).expect("a page");
    assert!(!html.contains("<img") && !html.contains("<!--"));
    // The script, its facts, and five parts of the recording: answer, overview, blocks, stacks and findings.
    assert_eq!(html.matches("<script").count(), 2 + 5);
    assert_eq!(html.matches("</script").count(), 2 + 5);
    assert_eq!(html.matches("<script>").count(), 1);
    for outside in [
        "http://", "https://", "@import", "url(", "<link", "<iframe", " href=",
    ] {
        assert!(!html.contains(outside), "{outside}");
    }
    let head = html.split("</head>").next().expect("a head");
    assert!(head.contains("default-src 'none'; script-src 'sha256-"));
    assert!(!head.contains("unsafe-inline") && !head.contains("connect-src"));
    let served = Served::start(&[&evil]);
    let (_, page) = served.get("");
    assert!(!String::from_utf8_lossy(&page).contains("<img"));
    let things =
        ["glance", "told", "replay-none"].map(|thing| served.json(&format!("0/{thing}")).to_string());
    let text = things.concat();
    let largest = text
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|digits| digits.parse::<u64>().ok());
    assert!(
        largest.max() <= Some((1 << 53) - 1),
        "a number that no script can hold"
    );
}

#[test]
fn view_and_replay_agree_on_other_policies() {
    let file = trace("gnn_sage_sampled");
    let named = "millpond,torch-native,none";
    let (code, said, stderr) = run(&["replay", &file, "-p", named, "--json", "--quiet"]);
    assert_eq!(code, 0, "{stderr}");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let folder = folder("view-replays");
    let ours = folder.join("run.mpr").display().to_string();
    assert_eq!(run(&["convert", &file, &ours]).0, 0);
    // Millpond's own recordings can be replayed directly.
    let (code, again, stderr) = run(&["replay", &ours, "-p", named, "--json", "--quiet"]);
    assert_eq!(code, 0, "{stderr}");
    let again: Value = serde_json::from_str(&again).expect("JSON");
    let peaks = |of: &Value| {
        let results = of["results"].as_array().expect("a list").iter();
        results
            .map(|result| result["peak_reserved_bytes"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(peaks(&again), peaks(&said));
    assert_eq!(again["peak_requested_bytes"], said["peak_requested_bytes"]);
    let served = Served::start(&[&file, &ours]);
    for result in said["results"].as_array().expect("a list") {
        let policy = result["policy"].as_str().expect("a name");
        let line = served.json(&format!("0/replay-{policy}"));
        assert_eq!(line["peak"], result["peak_reserved_bytes"], "{policy}");
        let bytes = line["bytes"].as_array().expect("a list");
        assert_eq!(
            bytes.iter().max_by_key(|bytes| bytes.as_u64()),
            Some(&line["peak"])
        );
        assert_eq!(bytes.len(), line["times"].as_array().expect("a list").len());
        assert_eq!(served.json(&format!("1/replay-{policy}")), line, "{policy}");
    }
    for nothing in ["0/replay-nobody", "2/replay-millpond"] {
        let (head, _) = served.get(nothing);
        assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    }
}

#[test]
fn a_file_contains_the_named_policies() {
    let folder = folder("view-policies");
    let file = small(&folder, "small.csv");
    let out = folder.join("page.html").display().to_string();
    assert_eq!(
        run(&["view", &file, "--html", &out, "-p", "bfc,planned,bfc"]).0,
        0
    );
    let html = std::fs::read_to_string(&out).expect("a page");
    for policy in ["bfc", "planned"] {
        assert_eq!(html.matches(&format!("id=\"replay-{policy}-0\"")).count(), 1);
    }
    assert_eq!(html.matches("id=\"replay-").count(), 2);
    let (code, _, stderr) = run(&["view", &file, "--html", &out, "-p", "bfcc"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("did you mean 'bfc'"), "{stderr}");
}

#[test]
fn view_reports_that_a_recording_is_truncated() {
    let folder = folder("view-cut");
    let whole = hostile(&folder);
    let bytes = std::fs::read(&whole).expect("it is there");
    let cut = folder.join("cut.mpr");
    std::fs::write(&cut, &bytes[..bytes.len() - 1000]).expect("room");
    let served = Served::start(&[&cut.display().to_string()]);
    let missing = served.json("0/glance")["missing"].to_string();
    assert!(missing.contains("the recording is truncated after"), "{missing}");
    let told = served.json("0/told")["missing"].to_string();
    assert!(told.contains("the recording is truncated after"), "{told}");
}

#[test]
fn a_reduced_number_of_blocks_is_reported() {
    let folder = folder("view-fewer");
    let file = hostile(&folder);
    let out = folder.join("page.html").display().to_string();
    let (code, _, stderr) = run(&["view", &file, "--html", &out, "--blocks", "100"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("as one sum") && stderr.contains("--blocks"),
        "{stderr}"
    );
}
