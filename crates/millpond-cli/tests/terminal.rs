//! Runs every command of the README and of the book on a terminal with colours, at three widths. The terminal shows the same text as a pipe gets, in colours
//! that are readable on a light and on a dark background.
#![cfg(all(unix, feature = "bench", feature = "parquet", feature = "top"))]

mod support;

use nix::pty::{Winsize, openpty};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use support::folder;

/// Enough rows for the output of every command, so nothing scrolls away.
const ROWS: u16 = 2000;

/// Commands of the pages that belong to other programs.
const OTHERS: [&str; 5] = [
    "cargo xtask",
    "cargo build",
    "cargo install",
    "pip install",
    "python -m millpond run",
];

/// Recordings that take seconds to replay without optimisation, and the shorter one that replaces them.
const SMALLER: [(&str, &str); 3] = [
    ("traces/llama1b_train_varlen.csv.zst", "run.pickle"),
    ("traces/cpu_tiny_gpt_varlen.csv.zst", "run.pickle"),
    ("traces/gnn_sage_sampled.csv.zst", "run.pickle"),
];

/// Arguments that take minutes or run a program that is not installed, and the shorter ones that replace them.
const SHORTER: [(&str, &str); 4] = [
    ("-- python train.py", "-- true"),
    ("bench seeds", "bench seeds --quick --rounds 1"),
    ("bench host w2 w3 --rounds 5", "bench host w5 --rounds 1"),
    (
        "bench record TRACE",
        "bench record run.csv --rounds 1 --events 1000",
    ),
];

/// The part of the output that is the same in two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Same {
    /// The whole text.
    Text,
    /// All words. The figures are measured and differ.
    Words,
    /// Nothing, because every figure is measured and sentences depend on them. Only the terminal sequences are checked.
    Nothing,
    /// The whole text; the terminal also gets a legend of the colours.
    Legend,
}

fn same(arguments: &[String]) -> Same {
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    match arguments.first().map(String::as_str) {
        Some("bench" | "doctor" | "cuda-emu" | "run") => Same::Nothing,
        Some("replay") if has("host") || has("cuda:0") => Same::Nothing,
        Some("replay" | "tune" | "plan") => Same::Words,
        Some("report") => Same::Legend,
        _ => Same::Text,
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the commands of this program on all pages, without duplicates: lines of code blocks, and inline code.
fn commands() -> Vec<Vec<String>> {
    let read = |page: PathBuf| std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{page:?}: {e}"));
    let pages: String = support::pages().into_iter().map(read).collect();
    let mut found = Vec::new();
    // The language of the code block that a line is in.
    let mut language: Option<&str> = None;
    // Code blocks in lists are indented.
    for line in pages.lines().map(str::trim_start) {
        if let Some(of) = line.strip_prefix("```") {
            language = language.is_none().then_some(of);
            continue;
        }
        match language {
            Some("console") => found.extend(line.strip_prefix("$ ").map(str::to_owned)),
            Some("sh") if line.starts_with("millpond ") => found.push(line.to_owned()),
            Some(_) => {}
            None => {
                let spans = line.split('`').skip(1).step_by(2);
                found.extend(
                    spans
                        .filter(|span| span.starts_with("millpond "))
                        .map(str::to_owned),
                );
            }
        }
    }
    let mut all: Vec<Vec<String>> = Vec::new();
    for mut line in found {
        if OTHERS.iter().any(|other| line.starts_with(other)) {
            continue;
        }
        for (long, short) in SMALLER.into_iter().chain(SHORTER) {
            line = line.replace(long, short);
        }
        let mut words = words(&line);
        let begin = match words.first().map(String::as_str) {
            Some("millpond" | "target/debug/millpond") => 1,
            Some("python") if words[1..].starts_with(&["-m".to_owned(), "millpond".to_owned()]) => 3,
            Some("cargo") => words
                .iter()
                .position(|word| word == "--")
                .map_or(words.len(), |at| at + 1),
            other => panic!("a page has a command that this test does not know: {other:?} in {line}"),
        };
        words.drain(..begin);
        for word in &mut words {
            if word == "target/debug/millpond" {
                *word = env!("CARGO_BIN_EXE_millpond").to_owned();
            }
        }
        if !all.contains(&words) {
            all.push(words);
        }
    }
    all
}

/// Splits a line into words like a shell, up to a comment or a redirection.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('#' | '>', None) if word.is_empty() => break,
            (' ', None) => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (c, _) => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// Returns a recording of a step that repeats, whose blocks have tags. More `layers` mean more blocks in each step.
fn recording(layers: u64) -> String {
    let mut csv =
        String::from("time_us,action,id,bytes,stream,tag\n0,alloc,1,9000000,0,init;weights;empty\n");
    let (mut id, mut time) = (1, 0);
    for _ in 0..60 {
        let mut kept = Vec::new();
        for layer in 0..layers {
            let (scratch, block) = (id + 1, id + 2);
            let bytes = 4096 * (1 + layer % 7);
            let _ = write!(
                csv,
                "{time},alloc,{scratch},65536,0,fwd;layers.{layer}.mlp;mm;model.py:forward:12<train.py:step:3\n\
                 {time},alloc,{block},{bytes},0,fwd;layers.{layer}.attn;add;model.py:forward:14<train.py:step:3\n\
                 {time},free,{scratch},65536,0,\n"
            );
            kept.push((block, bytes));
            id += 2;
            time += 10;
        }
        for (block, bytes) in kept.into_iter().rev() {
            let _ = writeln!(csv, "{time},free,{block},{bytes},0,");
            time += 10;
        }
    }
    csv
}

/// Creates a folder with all files that the commands of the pages name.
fn place(name: &str) -> PathBuf {
    let place = folder(name);
    std::fs::write(place.join("run.csv"), recording(20)).expect("room");
    std::fs::write(place.join("larger.csv"), recording(24)).expect("room");
    for (from, to) in [
        ("run.csv", "run.pickle"),
        ("run.csv", "run.mpr"),
        ("larger.csv", "new.mpr"),
    ] {
        let (from, to) = (place.join(from), place.join(to));
        let args = [
            "convert",
            from.to_str().expect("UTF-8"),
            to.to_str().expect("UTF-8"),
        ];
        let (code, _, stderr) = support::run(&args);
        assert_eq!(code, 0, "{stderr}");
    }
    let copies = [
        "old.mpr",
        "before.mpr",
        "a.mpr",
        "run.4711.mpr",
        "run.oom-1.mpr",
        "oom.4711-1.mpr",
    ];
    for copy in copies {
        std::fs::copy(place.join("run.mpr"), place.join(copy)).expect("room");
    }
    for copy in ["after.mpr", "b.mpr"] {
        std::fs::copy(place.join("new.mpr"), place.join(copy)).expect("room");
    }
    std::fs::create_dir(place.join("ranks")).expect("room");
    for rank in 0..2 {
        std::fs::copy(place.join("run.csv"), place.join(format!("ranks/rank{rank}.csv"))).expect("room");
    }
    let costs = support::shared_root().join("costs.toml");
    if std::fs::copy(costs, place.join("costs.toml")).is_err() {
        eprintln!(
            "costs.toml is missing in the folder of shared files: the command with --costs only shows how a missing file is refused"
        );
    }
    std::os::unix::fs::symlink(root().join("traces"), place.join("traces")).expect("a link");
    place
}

fn command(place: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.args(arguments).current_dir(place).stdin(Stdio::null());
    // Other programs that can be monitored must not appear in the output.
    command.env("XDG_RUNTIME_DIR", place).env("TMPDIR", place);
    for name in [
        "NO_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "COLUMNS",
        "LINES",
        "MILLPOND_CONF",
    ] {
        command.env_remove(name);
    }
    command
}

fn piped(place: &Path, arguments: &[String], columns: u16) -> Output {
    let mut command = command(place, arguments);
    command
        .env("COLUMNS", columns.to_string())
        .output()
        .expect("it runs")
}

/// Opens a pseudo-terminal. Returns the program's side and the reader's side.
fn terminal(columns: u16) -> (OwnedFd, File) {
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pair = openpty(&size, None).expect("a terminal");
    (pair.slave, File::from(pair.master))
}

/// Reads everything that a program writes to a terminal, on another thread.
fn watch(mut screen: File) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        // Reading fails once the other side is closed. Linux may report that although the last bytes are still there, if they arrive
        // just before the other side closes. A second attempt returns them.
        for _ in 0..2 {
            let _ = screen.read_to_end(&mut all);
        }
        all
    })
}

/// Runs a command with stdout and stderr on two terminals. Returns the exit code and the bytes of both.
fn on_terminals(place: &Path, arguments: &[String], columns: u16) -> (Option<i32>, [Vec<u8>; 2]) {
    let [(out, results), (errors, notes)] = [terminal(columns), terminal(columns)];
    let mut command = command(place, arguments);
    command.env("TERM", "xterm-256color").stdout(out).stderr(errors);
    let mut child = command.spawn().expect("it runs");
    // Reading ends when the last handle of the program's side is closed.
    drop(command);
    let readers = [results, notes].map(watch);
    let status = child.wait().expect("it ends");
    (status.code(), readers.map(|reader| reader.join().expect("read")))
}

/// The sequences that the terminal emulator does not know.
#[derive(Default)]
struct Strays(Vec<String>);

impl vt100::Callbacks for Strays {
    fn unhandled_char(&mut self, _: &mut vt100::Screen, c: char) {
        self.0.push(format!("{c:?}"));
    }
    fn unhandled_control(&mut self, _: &mut vt100::Screen, byte: u8) {
        self.0.push(format!("control {byte:#x}"));
    }
    fn unhandled_escape(&mut self, _: &mut vt100::Screen, _: Option<u8>, _: Option<u8>, byte: u8) {
        self.0.push(format!("escape {byte:#x}"));
    }
    fn unhandled_csi(
        &mut self,
        _: &mut vt100::Screen,
        _: Option<u8>,
        _: Option<u8>,
        params: &[&[u16]],
        c: char,
    ) {
        // The colour of underlines, which this terminal emulator does not support.
        if c == 'm' && matches!(params.first(), Some([58 | 59, ..])) {
            return;
        }
        self.0.push(format!("CSI … {c}"));
    }
    fn unhandled_osc(&mut self, _: &mut vt100::Screen, _: &[&[u8]]) {
        self.0.push("OSC".to_owned());
    }
}

/// Returns the lines that a person sees, without empty ones. Panics if the bytes contain an unknown sequence.
fn seen(bytes: &[u8], columns: u16, what: &str) -> Vec<String> {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(!text.contains(char::REPLACEMENT_CHARACTER), "{what}: {text}");
    let size = |n| NonZeroU16::new(n).expect("not nought");
    let mut parser = vt100::Parser::new_with_callbacks(size(ROWS), size(columns), 0, Strays::default());
    parser.process(bytes);
    assert!(
        parser.callbacks().0.is_empty(),
        "{what}: {:?}\n{text:?}",
        parser.callbacks().0
    );
    check_colours(parser.screen(), what);
    lines(&parser.screen().contents())
}

/// Panics if text has a colour that disappears on a light or on a dark background.
fn check_colours(screen: &vt100::Screen, what: &str) {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let Some(cell) = screen.cell(row, column).filter(|cell| cell.has_contents()) else {
            continue;
        };
        // Black, white and the greys are left out.
        let is_shown = matches!(cell.fgcolor(), vt100::Color::Default | vt100::Color::Idx(1..=6));
        assert!(
            is_shown && cell.bgcolor() == vt100::Color::Default,
            "{what}: {:?} is written in {:?} on {:?}",
            cell.contents(),
            cell.fgcolor(),
            cell.bgcolor()
        );
    }
}

fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim_end().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Returns the words of some lines, without figures and units.
fn signs(lines: &[String]) -> BTreeSet<String> {
    let is_unit =
        |word: &str| ["us", "ms", "s", "min", "ns", "B", "KiB", "MiB", "GiB", "TiB", "%"].contains(&word);
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    let signs = words.filter(|word| !is_unit(word)).map(|word| {
        let plain: String = word
            .chars()
            .filter(|c| !c.is_ascii_digit() && !matches!(c, '.' | ','))
            .collect();
        plain
    });
    // The length of bars and rules depends on the width.
    signs
        .filter(|sign| sign.chars().any(char::is_alphabetic))
        .collect()
}

/// Returns whether a part of these tests is left out because only the long checks run it. Prints a message if so.
fn is_left_out(part: &str) -> bool {
    let is_left_out = std::env::var_os("MILLPOND_TEST_ALL").is_none();
    if is_left_out {
        eprintln!("skipped: cargo xtask test --all runs {part}");
    }
    is_left_out
}

fn all_commands_at(columns: u16) {
    let place = place(&format!("terminal-{columns}"));
    let mut painted = 0;
    let all = commands();
    assert!(all.len() > 60, "the pages have more commands: {all:?}");
    for arguments in &all {
        if is_endless(arguments) {
            continue;
        }
        let what = format!("millpond {} at {columns} columns", arguments.join(" "));
        // The output of these measurements is not compared.
        let is_measurement = matches!(
            arguments.iter().map(String::as_str).collect::<Vec<_>>()[..],
            ["bench", "host" | "record" | "seeds", ..]
        );
        if is_measurement && arguments[1] == "seeds" && is_left_out(&what) {
            continue;
        }
        let expected = (!is_measurement).then(|| piped(&place, arguments, columns));
        if let ["convert", _, output, ..] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            // `convert` does not replace a file, so the output of the first run is removed.
            let _ = std::fs::remove_file(place.join(output));
        }
        let (code, bytes) = on_terminals(&place, arguments, columns);
        let expected_code = expected.as_ref().map_or(Some(0), |piped| piped.status.code());
        assert_eq!(
            code,
            expected_code,
            "{what}: {}",
            String::from_utf8_lossy(&bytes[1])
        );
        painted += usize::from(bytes[0].windows(2).any(|pair| pair == b"\x1b["));
        let piped = expected.map_or_else(Default::default, |piped| [piped.stdout, piped.stderr]);
        for (stream, (seen_of, piped)) in bytes.iter().zip(piped).enumerate() {
            let mut seen = seen(seen_of, columns, &what);
            if stream == 0 && arguments.iter().any(|argument| argument == "--json") {
                // JSON has no styles, and its lines are not wrapped.
                seen = lines(&String::from_utf8_lossy(seen_of));
            }
            let piped = lines(&String::from_utf8(piped).expect("UTF-8"));
            match same(arguments) {
                Same::Text => assert_eq!(seen, piped, "{what}"),
                Same::Legend => {
                    let mut rest = seen.iter();
                    for line in &piped {
                        assert!(
                            rest.any(|seen| seen == line),
                            "{what}: {line:?} is not in {seen:?}"
                        );
                    }
                }
                Same::Words => assert_eq!(signs(&seen), signs(&piped), "{what}:\n{}", seen.join("\n")),
                Same::Nothing => {}
            }
        }
    }
    assert!(
        painted > 10,
        "only {painted} of {} commands use colours here",
        all.len()
    );
}

/// Returns whether a command runs until it is ended.
fn is_endless(arguments: &[String]) -> bool {
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    match arguments.first().map(String::as_str) {
        Some("top") => !has("--once") && !has("--json"),
        Some("view") => !has("--html") && arguments.len() > 1,
        _ => false,
    }
}

#[test]
fn every_command_of_the_pages_is_the_same_on_a_terminal_of_60_columns() {
    if !is_left_out("this test") {
        all_commands_at(60);
    }
}

#[test]
fn every_command_of_the_pages_is_the_same_on_a_terminal_of_80_columns() {
    all_commands_at(80);
}

#[test]
fn every_command_of_the_pages_is_the_same_on_a_terminal_of_120_columns() {
    if !is_left_out("this test") {
        all_commands_at(120);
    }
}

/// Reads until the program has written `end`, or has ended.
fn read_until(screen: &mut File, end: &[u8]) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while !all.windows(end.len()).any(|bytes| bytes == end) {
        match screen.read(&mut part) {
            Ok(bytes @ 1..) => all.extend(&part[..bytes]),
            Ok(0) | Err(_) => break,
        }
    }
    all
}

/// Tests the commands that run until they are ended: `view` by its user, `top` by a key.
#[test]
fn endless_commands_write_only_known_terminal_sequences() {
    let place = place("terminal-endless");
    let all = commands();
    let endless: Vec<_> = all.iter().filter(|arguments| is_endless(arguments)).collect();
    assert!(endless.len() > 3, "{endless:?}");
    for arguments in endless {
        for columns in [60, 80, 120] {
            let what = format!("millpond {} at {columns} columns", arguments.join(" "));
            let is_view = arguments[0] == "view";
            let (side, mut screen) = terminal(columns);
            let [input, errors] = [(); 2].map(|()| side.try_clone().expect("a handle"));
            let mut command = command(&place, arguments);
            command
                .env("TERM", "xterm-256color")
                .stdin(input)
                .stdout(side)
                .stderr(errors);
            if is_view {
                command.arg("--no-open");
            }
            let mut child = command.spawn().expect("it runs");
            drop(command);
            // The line with the address of the page, or the first line of the screen.
            let begun: &[u8] = if is_view { b"\n" } else { b"millpond" };
            let mut bytes = read_until(&mut screen, begun);
            if is_view {
                let _ = child.kill();
            } else {
                let _ = screen.write_all(b"q");
            }
            let _ = screen.read_to_end(&mut bytes);
            child.wait().expect("it ends");
            seen(&bytes, columns, &what);
        }
    }
}
