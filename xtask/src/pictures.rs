//! Takes the pictures of the README and of the book in a real browser and in a terminal, and measures the speed of a page.
//!
//! Pages need `chromium`, `chromedriver` and `node`, which most build machines lack. Without them the commands say so and end.

use crate::shell::{Result, root, shell, target, works};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use xshell::{Shell, cmd};

/// Returns whether the required programs are installed, and reports the missing ones.
fn can_look() -> bool {
    let missing: Vec<&str> = ["chromium", "chromedriver", "node"]
        .into_iter()
        .filter(|program| !works(program, &["--version"]))
        .collect();
    if !missing.is_empty() {
        eprintln!(
            "skipped: it needs {}, which is not installed",
            missing.join(" and ")
        );
    }
    missing.is_empty()
}

/// Takes all pictures again.
pub(crate) fn run() -> Result {
    let sh = &shell()?;
    let program = program(sh)?;
    top(sh, &program)?;
    if !can_look() {
        return Ok(());
    }
    let pages = target().join("pictures");
    sh.create_dir(&pages)?;
    let trace = "traces/llama1b_train_varlen.csv.zst";
    let [report, view, what_if] = ["report.html", "view.html", "what-if.html"].map(|page| pages.join(page));
    let policies = "torch-native,torch-expandable,millpond";
    cmd!(sh, "{program} replay {trace} --quiet --html {report}").run()?;
    cmd!(sh, "{program} view {trace} --quiet --html {view}").run()?;
    cmd!(
        sh,
        "{program} view {trace} --quiet --html {what_if} -p {policies}"
    )
    .run()?;
    let picture = |page: &Path, out: &str, (width, height): (u32, u32), more: &str| {
        format!(
            r#"{{"url":"file://{}","out":"docs/{out}","width":{width},"height":{height},"scheme":"light"{more}}}"#,
            page.display()
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
    cmd!(sh, "node xtask/src/pictures/take.js {all}").run()?;
    Ok(())
}

/// The seconds before the first look at the example. By then its budget is nearly used up from time to time.
const LOOK_AFTER: u64 = 20;
/// The maximum number of further looks.
const LOOKS: u32 = 80;

/// Puts the output of `millpond top` for the example `live` into the book.
fn top(sh: &Shell, program: &Path) -> Result {
    cmd!(sh, "cargo build --release --quiet -p millpond --example live").run()?;
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
    let looked = looked.map_err(|e| format!("{}: {e}", program.display()))?;
    if !looked.status.success() {
        return Err(String::from_utf8_lossy(&looked.stderr).into());
    }
    let shown = String::from_utf8_lossy(&looked.stdout);
    renew(sh, "docs/recording.md", "top", &shown)
}

/// Replaces the text of a picture on a page.
fn renew(sh: &Shell, page: &str, name: &str, text: &str) -> Result {
    let before = sh.read_file(page)?;
    let begin = format!("<!-- taken: {name} -->\n```text\n");
    let parts = before.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once("```\n<!-- end -->")?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| format!("{page} has no picture called {name}"))?;
    Ok(sh.write_file(page, format!("{before}{begin}{text}```\n<!-- end -->{after}"))?)
}

/// Measures the page of a recording of ten million events, or of the given number of events.
pub(crate) fn speed(rows: Option<&str>) -> Result {
    if !can_look() {
        return Ok(());
    }
    let sh = &shell()?;
    let program = program(sh)?;
    cmd!(
        sh,
        "cargo build --release --quiet -p millpond-replay --features recording --example large_recording"
    )
    .run()?;
    let large = target().join("release/examples/large_recording");
    let recording = target().join("large.mpr");
    let rows = rows.unwrap_or("10000000");
    cmd!(sh, "{large} {rows} {recording}").run()?;
    let measured = cmd!(sh, "node xtask/src/pictures/speed.js {program} {recording}").run();
    sh.remove_path(&recording)?;
    Ok(measured?)
}

fn program(sh: &Shell) -> Result<PathBuf> {
    cmd!(sh, "cargo build --release --quiet -p millpond-cli --features top").run()?;
    Ok(target().join("release/millpond"))
}
