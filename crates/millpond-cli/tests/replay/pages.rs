//! Pages, and what is left out of them.

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
fn a_page_replaces_nothing_but_a_page() {
    let dir = folder("replaced");
    let file = small(&dir, "run.csv");
    let before = std::fs::read(&file).expect("a recording");
    let (code, _, stderr) = run(&["replay", &file, "--html", &file, "-p", "torch-native"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("millpond did not write is there already"),
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
    // Of several recordings each page has its own name, which may be taken as well.
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
