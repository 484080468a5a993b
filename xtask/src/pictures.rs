//! Takes the pictures of the README and of the book in a real browser and in a terminal, and measures the speed of such a page.
//!
//! Pages need `chromium`, `chromedriver` and `node`, which most build machines lack. Without them the commands say so and end.

use crate::shell::{root, step, target, works};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns whether the required programs are installed, and reports the missing ones.
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

/// Takes all pictures again.
pub(crate) fn run() -> Result<(), String> {
    let program = program()?;
    top(&program)?;
    if !can_look() {
        return Ok(());
    }
    let pages = target().join("pictures");
    std::fs::create_dir_all(&pages).map_err(|e| format!("{}: {e}", pages.display()))?;
    let trace = "traces/llama1b_train_varlen.csv.zst";
    let (report, view) = (text(&pages.join("report.html"))?, text(&pages.join("view.html"))?);
    step(&program, &["replay", trace, "--quiet", "--html", &report])?;
    step(&program, &["view", trace, "--quiet", "--html", &view])?;
    let what_if = text(&pages.join("what-if.html"))?;
    let policies = "torch-native,torch-expandable,millpond";
    step(
        &program,
        &["view", trace, "--quiet", "--html", &what_if, "-p", policies],
    )?;
    let picture = |page: &str, out: &str, (width, height): (u32, u32), more: &str| {
        format!(
            r#"{{"url":"file://{page}","out":"docs/{out}","width":{width},"height":{height},"scheme":"light"{more}}}"#
        )
    };
    // Jumps to the peak, zooms in thirteen times, and selects the block there.
    let closer = vec![r#""+""#; 13].join(",");
    let near_the_peak = format!(r#","keys":["]",{closer}],"click":["canvas.timeline",500,215]"#);
    let all = format!(
        "[{},{},{}]",
        picture(&report, "report.png", (1200, 1560), ""),
        picture(&view, "view.png", (1280, 1100), &near_the_peak),
        picture(&what_if, "what-if.png", (1280, 930), "")
    );
    step("node", &["xtask/src/pictures/take.js", &all])
}

/// The seconds before the first look at the example. By then its budget is nearly used up from time to time.
const LOOK_AFTER: u64 = 20;
/// The maximum number of further looks.
const LOOKS: u32 = 80;

/// Puts the output of `millpond top` for the example `live` into the book.
fn top(program: &str) -> Result<(), String> {
    let example = "build --release --quiet -p millpond --example live";
    step("cargo", &example.split(' ').collect::<Vec<_>>())?;
    let live = target().join("release/examples/live");
    let mut live = Command::new(root().join(live))
        .arg((LOOK_AFTER + 20).to_string())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| format!("the example 'live' could not start: {e}"))?;
    std::thread::sleep(Duration::from_secs(LOOK_AFTER));
    let pid = live.id().to_string();
    let look = || {
        Command::new(program)
            .args(["top", &pid, "--once"])
            .env("COLUMNS", "100")
            .output()
    };
    let mut looked = look();
    for _ in 0..LOOKS {
        // The picture should contain a warning.
        let says = |text: &[u8]| String::from_utf8_lossy(text).contains("\n! ");
        if looked.as_ref().map_or(true, |looked| says(&looked.stdout)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        looked = look();
    }
    let _ = live.kill();
    let _ = live.wait();
    let looked = looked.map_err(|e| format!("{program}: {e}"))?;
    if !looked.status.success() {
        return Err(String::from_utf8_lossy(&looked.stderr).into_owned());
    }
    renew(
        "docs/recording.md",
        "top",
        &String::from_utf8_lossy(&looked.stdout),
    )
}

/// Replaces the text of a picture on a page.
fn renew(page: &str, name: &str, text: &str) -> Result<(), String> {
    let path = root().join(page);
    let told = |e| format!("{}: {e}", path.display());
    let before = std::fs::read_to_string(&path).map_err(told)?;
    let begin = format!("<!-- taken: {name} -->\n```text\n");
    let parts = before.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once("```\n<!-- end -->")?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| format!("{page} has no picture called {name}"))?;
    std::fs::write(&path, format!("{before}{begin}{text}```\n<!-- end -->{after}")).map_err(told)
}

/// Measures the page of a recording of ten million events, or of the given number of events.
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
    let program = "build --release --quiet -p millpond-cli --features top";
    step("cargo", &program.split(' ').collect::<Vec<_>>())?;
    text(&target().join("release").join("millpond"))
}

fn text(path: &Path) -> Result<String, String> {
    let path = root().join(path);
    let text = path
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}
