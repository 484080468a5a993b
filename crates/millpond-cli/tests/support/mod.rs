//! Runs the program as a user does.
#![allow(dead_code, reason = "each test file uses a part")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the folder with the recordings of the repository.
pub(crate) fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces")
}

/// Returns the README and the chapters of the book, in the order of the table of contents.
pub(crate) fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = root.join("docs");
    let contents = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md");
    let chapters = contents.lines().filter_map(|line| {
        let (_, link) = line.split_once("](")?;
        Some(docs.join(link.strip_suffix(')')?))
    });
    let pages: Vec<PathBuf> = std::iter::once(root.join("README.md")).chain(chapters).collect();
    assert!(pages.len() > 10, "the book has more chapters: {pages:?}");
    pages
}

/// Returns the path of one of these recordings.
pub(crate) fn trace(name: &str) -> String {
    traces().join(format!("{name}.csv.zst")).display().to_string()
}

/// Returns the folder of files outside the repository, which only some machines have.
pub(crate) fn shared_root() -> PathBuf {
    std::env::var_os("MILLPOND_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    )
}

/// Returns the recordings in [`shared_root`], if they exist.
pub(crate) fn shared() -> Option<PathBuf> {
    let shared = shared_root().join("traces");
    if !shared.is_dir() {
        eprintln!("skipped: no recordings in {}", shared.display());
        return None;
    }
    Some(shared)
}

/// Returns a command that does not depend on the terminal in which the tests run.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command
        .args(args)
        .env("COLUMNS", "100")
        .env_remove("MILLPOND_CONF")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE");
    command.stdin(Stdio::null());
    command
}

/// Runs the program. Returns exit code, stdout and stderr.
pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command(args).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        status.code().expect("no signal ended it"),
        text(stdout),
        text(stderr),
    )
}

/// Runs a command that must succeed, and returns its JSON.
pub(crate) fn json(args: &[&str]) -> Value {
    json_with(0, args)
}

/// Runs a command that must end with an exit code, and returns its JSON.
pub(crate) fn json_with(expected: i32, args: &[&str]) -> Value {
    let (code, stdout, stderr) = run(args);
    assert_eq!(code, expected, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
}

/// Returns an empty folder for one test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// Writes a small recording: two blocks of 30 MiB held at once, tagged with secret names.
pub(crate) fn small(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    let csv = "time_us,action,id,bytes,stream,tag\n\
        0,alloc,1,31457280,0,fwd;secretnet.layers.7;mm;secretfile.py:secretfunction:11<secretmain.py:secretrun:3\n\
        1000,alloc,2,31457280,0,fwd;secretnet.head;mm;secretfile.py:secretfunction:12\n\
        2000,free,1,31457280,0,\n\
        3000,alloc,3,10485760,0,opt;secretnet.head;add;secretfile.py:<lambda>:13\n";
    std::fs::write(&path, csv).expect("written");
    path.display().to_string()
}

/// Writes a recording whose sizes grow in each step. The native policy cannot reuse its memory, and expandable segments can.
pub(crate) fn growing(folder: &Path) -> String {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    for step in 0..40u64 {
        let bytes = (30 << 20) + (step << 20);
        for (action, tag) in [("alloc", "t"), ("free", "")] {
            for half in 0..2 {
                csv.push_str(&format!("{step},{action},{},{bytes},0,{tag}\n", step * 2 + half));
            }
        }
    }
    let path = folder.join("growing.csv");
    std::fs::write(&path, csv).expect("written");
    path.display().to_string()
}

/// Writes a recording of a program that keeps small blocks in segments of large ones. The native policy of PyTorch
/// cannot use the rest of these segments for the large blocks, and expandable segments can.
pub(crate) fn fragmenting(folder: &Path) -> String {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    for step in 0..20u64 {
        let (large, kept) = (2 * step, 2 * step + 1);
        let (large_bytes, kept_bytes) = (100 << 20, 52 << 20);
        csv.push_str(&format!(
            "{step},alloc,{large},{large_bytes},0,t\n{step},free,{large},{large_bytes},0,\n\
             {step},alloc,{kept},{kept_bytes},0,t\n"
        ));
    }
    let path = folder.join("fragmenting.csv");
    std::fs::write(&path, csv).expect("written");
    path.display().to_string()
}

/// Writes a snapshot with a state and no history, as a hand-written pickle of protocol 2:
/// `{"segments": [{"device": 0, "address": 4096, "total_size": 2097152, "blocks": []}], "device_traces": []}`.
pub(crate) fn state_only(folder: &Path) -> String {
    let mut pickle = b"\x80\x02}(".to_vec();
    let text = |pickle: &mut Vec<u8>, text: &str| {
        pickle.extend(b"X");
        pickle.extend((text.len() as u32).to_le_bytes());
        pickle.extend(text.as_bytes());
    };
    let int = |pickle: &mut Vec<u8>, value: i32| {
        pickle.extend(b"J");
        pickle.extend(value.to_le_bytes());
    };
    text(&mut pickle, "segments");
    pickle.extend(b"](}(");
    for (key, value) in [
        ("device", 0),
        ("address", 4096),
        ("total_size", 2 << 20),
        ("allocated_size", 512),
    ] {
        text(&mut pickle, key);
        int(&mut pickle, value);
    }
    text(&mut pickle, "segment_type");
    text(&mut pickle, "small");
    text(&mut pickle, "blocks");
    pickle.extend(b"](}(");
    for (key, value) in [("size", 512), ("requested_size", 500), ("address", 4096)] {
        text(&mut pickle, key);
        int(&mut pickle, value);
    }
    text(&mut pickle, "state");
    text(&mut pickle, "active_allocated");
    pickle.extend(b"u}(");
    for (key, value) in [
        ("size", (2 << 20) - 512),
        ("requested_size", 0),
        ("address", 4096 + 512),
    ] {
        text(&mut pickle, key);
        int(&mut pickle, value);
    }
    text(&mut pickle, "state");
    text(&mut pickle, "inactive");
    pickle.extend(b"ueue");
    text(&mut pickle, "device_traces");
    pickle.extend(b"]u.");
    let path = folder.join("state.pickle");
    std::fs::write(&path, pickle).expect("written");
    path.display().to_string()
}
