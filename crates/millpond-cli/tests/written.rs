//! Files that commands write: a file is complete or does not exist, and a planted link cannot redirect it.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{folder, run, small, trace};

/// Returns the names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .flatten()
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns whether a process has a file in this folder open for writing, whatever the name of the file.
fn writes_into(process: u32, folder: &Path) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    open.flatten().any(|entry| {
        let is_inside = fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder));
        let writable =
            fs::symlink_metadata(entry.path()).is_ok_and(|link| link.permissions().mode() & 0o200 != 0);
        is_inside && writable
    })
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let input = trace("llama1b_train_varlen");
    let folder = folder("interrupted");
    for (at, signal) in ["INT", "TERM", "HUP", "KILL"].into_iter().enumerate() {
        let output = folder.join(format!("{signal}.csv"));
        // Tests may run with SIGINT ignored, as shells set it for background jobs.
        let mut child = Command::new("env")
            .args([
                "--default-signal",
                env!("CARGO_BIN_EXE_millpond"),
                "convert",
                "--quiet",
            ])
            .arg(&input)
            .arg(&output)
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let begun = Instant::now();
        let mut seen = 0;
        // The first time, the command only checks that the file can be written.
        while seen <= at && begun.elapsed() < Duration::from_secs(60) {
            if writes_into(child.id(), &folder) {
                seen += 1;
            }
            assert!(
                child.try_wait().expect("it is ours").is_none(),
                "{signal}: it ended before it was interrupted"
            );
        }
        let killed = Command::new("kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status();
        assert!(killed.expect("kill runs").success());
        let status = child.wait().expect("it ends");
        assert!(!status.success(), "{signal}: it had finished");
        assert_eq!(names(&folder), [""; 0], "{signal}");
    }
}

#[test]
fn planted_links_are_not_followed() {
    let folder = folder("planted");
    let input = small(&folder, "in.csv");
    let victim = folder.join("victim");
    fs::write(&victim, "untouched").expect("a file");
    // `exec` keeps the shell's process id, from which the names of unfinished files used to be made.
    let script = "ln -s victim .out.mpr.$$.part; exec \"$0\" convert --quiet in.csv out.mpr";
    let status = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_millpond")])
        .current_dir(&folder)
        .status();
    assert!(status.expect("it runs").success());
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "untouched");
    // A link at the output path is not followed either. It is replaced if the file that it leads to could be replaced.
    let page = folder.join("page.html").display().to_string();
    fs::write(&victim, "").expect("a file");
    symlink(&victim, &page).expect("a link");
    assert_eq!(run(&["replay", &input, "--html", &page, "-p", "none"]).0, 0);
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "");
    assert!(fs::symlink_metadata(&page).expect("a page").is_file());
}

#[test]
fn a_replaced_file_keeps_its_permissions() {
    let folder = folder("permissions");
    let input = small(&folder, "in.csv");
    let page = folder.join("page.html");
    let named = page.display().to_string();
    for mode in [0o644, 0o600] {
        if page.exists() {
            fs::set_permissions(&page, fs::Permissions::from_mode(mode)).expect("ours");
        }
        assert_eq!(run(&["replay", &input, "--html", &named, "-p", "none"]).0, 0);
    }
    let mode = fs::metadata(&page).expect("a page").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
