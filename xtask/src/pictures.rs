//! The pictures in the README, taken of real pages in a real browser; and how fast such a page is.
//!
//! Both take `chromium`, `chromedriver` and `node`, which most machines that build this have not: without them they say so and end.

use crate::shell::{root, step, target, works};
use std::path::Path;

/// Whether there is what it takes.
fn can_look() -> bool {
    let missing: Vec<&str> = ["chromium", "chromedriver", "node"]
        .into_iter()
        .filter(|program| !works(program, &["--version"]))
        .collect();
    if !missing.is_empty() {
        eprintln!("skipped: it takes {}, not found here", missing.join(" and "));
    }
    missing.is_empty()
}

/// Takes the pictures anew.
pub(crate) fn run() -> Result<(), String> {
    if !can_look() {
        return Ok(());
    }
    let program = program()?;
    let pages = target().join("pictures");
    std::fs::create_dir_all(&pages).map_err(|e| format!("{}: {e}", pages.display()))?;
    let trace = "traces/llama1b_train_varlen.csv.zst";
    let (report, view) = (text(&pages.join("report.html"))?, text(&pages.join("view.html"))?);
    step(&program, &["replay", trace, "--quiet", "--html", &report])?;
    step(&program, &["view", trace, "--quiet", "--html", &view])?;
    let picture = |page: &str, out: &str, (width, height): (u32, u32), more: &str| {
        format!(
            r#"{{"url":"file://{page}","out":"docs/{out}","width":{width},"height":{height},"scheme":"light"{more}}}"#
        )
    };
    // From the moment of the peak thirteen times closer, and the block there.
    let closer = vec![r#""+""#; 13].join(",");
    let near_the_peak = format!(r#","keys":["]",{closer}],"click":["canvas.timeline",500,215]"#);
    let all = format!(
        "[{},{}]",
        picture(&report, "report.png", (1200, 1560), ""),
        picture(&view, "view.png", (1280, 1100), &near_the_peak)
    );
    step("node", &["xtask/src/pictures/take.js", &all])
}

/// Measures the page of a recording of ten million events, or of as many as are asked for.
pub(crate) fn speed(rows: Option<&str>) -> Result<(), String> {
    if !can_look() {
        return Ok(());
    }
    let program = program()?;
    let example = "build --release --quiet -p millpond-replay --features recording --example large_recording";
    step("cargo", &example.split(' ').collect::<Vec<_>>())?;
    let large = text(&target().join("release/examples/large_recording"))?;
    let recording = text(&target().join("large.mpr"))?;
    step(&large, &[rows.unwrap_or("10000000"), &recording])?;
    let measured = step("node", &["xtask/src/pictures/speed.js", &program, &recording]);
    let _ = std::fs::remove_file(&recording);
    measured
}

fn program() -> Result<String, String> {
    step("cargo", &["build", "--release", "--quiet", "-p", "millpond-cli"])?;
    text(&target().join("release").join("millpond"))
}

fn text(path: &Path) -> Result<String, String> {
    let path = root().join(path);
    let text = path
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}
