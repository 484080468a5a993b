//! Tests HTML pages, and the names that are removed from them.

use crate::support::{folder, run, small, trace};

#[test]
fn a_redacted_report_leaks_no_name() {
    let dir = folder("redacted");
    let file = small(&dir, "secretrecording.csv");
    let page = dir.join("page.html");
    for extra in [&["--json"][..], &[]] {
        let mut args = vec!["replay", &file, "--redact", "--device", "48MiB", "--fit"];
        args.extend(extra);
        let (code, stdout, stderr) = run(&args);
        assert_eq!(code, 3, "{stderr}");
        assert!(!stdout.contains("secret"), "{stdout}");
        assert!(
            stdout.contains("fwd") && stdout.contains("mm"),
            "phases and operators stay: {stdout}"
        );
    }
    let named = page.display().to_string();
    assert_eq!(
        run(&[
            "replay",
            &file,
            "--redact",
            "--html",
            &named,
            "-p",
            "torch-native"
        ])
        .0,
        0
    );
    assert!(!std::fs::read_to_string(&page).expect("a page").contains("secret"));
    let (_, stdout, _) = run(&["replay", &file, "--device", "48MiB"]);
    assert!(
        stdout.contains("secretfile.py:secretfunction:12"),
        "and without it they are shown: {stdout}"
    );
}

#[test]
fn a_redacted_real_report_leaks_no_module() {
    let (_, stdout, _) = run(&[
        "replay",
        &trace("llama1b_train_varlen"),
        "--redact",
        "--device",
        "24G",
    ]);
    for name in [
        "llama1b",
        "layers",
        "mlp",
        "workloads",
        "models.py",
        "train_step",
        "lambda",
    ] {
        assert!(!stdout.contains(name), "{name}: {stdout}");
    }
}

#[test]
fn several_reports_become_several_pages() {
    let dir = folder("pages");
    let (a, b) = (small(&dir, "a.csv"), small(&dir, "b.csv"));
    let page = dir.join("page.html").display().to_string();
    assert_eq!(
        run(&["replay", &a, &b, "--html", &page, "-p", "torch-native"]).0,
        0
    );
    let mut pages: Vec<String> = std::fs::read_dir(&dir)
        .expect("a folder")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| !name.ends_with(".csv"))
        .collect();
    pages.sort_unstable();
    assert_eq!(
        pages,
        ["page-a.html", "page-b.html"],
        "and nothing half-written is left"
    );
}

#[test]
fn a_page_replaces_only_a_page() {
    let dir = folder("replaced");
    let file = small(&dir, "run.csv");
    let before = std::fs::read(&file).expect("a recording");
    let (code, _, stderr) = run(&["replay", &file, "--html", &file, "-p", "torch-native"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("nothing in it shows that millpond wrote it"),
        "{stderr}"
    );
    assert_eq!(std::fs::read(&file).expect("still there"), before);
    let page = dir.join("page.html");
    let named = page.display().to_string();
    for _ in 0..2 {
        assert_eq!(
            run(&["replay", &file, "--html", &named, "-p", "none"]).0,
            0,
            "again and again"
        );
    }
    let mut locked = std::fs::metadata(&page).expect("a page").permissions();
    locked.set_readonly(true);
    std::fs::set_permissions(&page, locked).expect("a page of our own");
    assert_eq!(run(&["replay", &file, "--html", &named, "-p", "none"]).0, 2);
    // Each of several recordings has a page with its own name, which may also exist already.
    let other = small(&dir, "other.csv");
    let taken = dir.join("all-other.html");
    std::fs::write(&taken, "notes").expect("a file");
    let all = dir.join("all.html").display().to_string();
    assert_eq!(run(&["replay", &file, &other, "--html", &all, "-p", "none"]).0, 2);
    assert_eq!(std::fs::read_to_string(&taken).expect("still there"), "notes");
}

#[test]
fn the_page_of_a_window_shows_the_window() {
    let dir = folder("window_page");
    let file = small(&dir, "run.csv");
    let page = dir.join("page.html");
    let named = page.display().to_string();
    let window = ["--time-window", "1ms..2ms", "-p", "none", "--html", &named];
    let (code, _, stderr) = run(&[&["replay", &file][..], &window].concat());
    assert_eq!(code, 0, "{stderr}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(
        html.contains("<span>2 events</span>"),
        "not the four of the recording"
    );
}

#[test]
fn recordings_with_similar_names_get_separate_pages() {
    let dir = folder("like-names");
    let recordings = dir.join("recordings");
    std::fs::create_dir(&recordings).expect("a folder");
    for name in ["a b.csv", "a-b.csv", "a?b.csv"] {
        small(&recordings, name);
    }
    let page = dir.join("page.html").display().to_string();
    let recordings = recordings.display().to_string();
    assert_eq!(run(&["replay", &recordings, "--html", &page, "-p", "none"]).0, 0);
    let mut pages: Vec<String> = std::fs::read_dir(&dir)
        .expect("a folder")
        .flatten()
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("page"))
        .collect();
    pages.sort();
    assert_eq!(pages, ["page-a-b-2.html", "page-a-b-3.html", "page-a-b.html"]);
}

#[test]
fn pages_and_pictures_of_other_programs_are_not_replaced() {
    let dir = folder("foreign");
    let file = small(&dir, "run.csv");
    let png = [b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 100]].concat();
    let foreign: [(&str, &[u8]); 3] = [
        (
            "thesis.html",
            b"<!doctype html>\n<html lang=\"en\"><head><title>Millpond</title>",
        ),
        (
            "drawing.svg",
            b"<svg xmlns=\"http://www.w3.org/2000/svg\"><text>millpond</text></svg>",
        ),
        ("photo.png", &png),
    ];
    for (name, content) in foreign {
        let path = dir.join(name);
        std::fs::write(&path, content).expect("a file");
        let named = path.display().to_string();
        let args = match name {
            "thesis.html" => vec!["replay", &file, "-p", "none", "--html", &named],
            _ => vec!["report", &file, "--plot", &named],
        };
        let (code, _, stderr) = run(&args);
        assert_eq!(code, 2, "{name}: {stderr}");
        assert!(
            stderr.contains("nothing in it shows that millpond wrote it"),
            "{name}: {stderr}"
        );
        assert_eq!(std::fs::read(&path).expect("still there"), content, "{name}");
    }
    // The command replaces its own pictures. The second run replaces the file of the first.
    for name in ["own.svg", "own.png"] {
        let named = dir.join(name).display().to_string();
        for _ in 0..2 {
            let (code, _, stderr) = run(&["report", &file, "--plot", &named]);
            assert_eq!(code, 0, "{name}: {stderr}");
        }
    }
}
