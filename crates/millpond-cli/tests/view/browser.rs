//! Tests what a real browser shows of the page.

use super::support::{folder, run, small, trace};
use super::{Served, hostile, timed};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Returns the text of a page in a real browser, or `None` if no browser is installed.
fn looked_at(url: &str) -> Option<Value> {
    let missing = ["chromium", "chromedriver", "node"]
        .into_iter()
        .find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(missing) = missing {
        eprintln!("skipped: the page in a browser, which takes {missing}");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/src/pictures/check.js");
    let output = Command::new("node")
        .arg(script)
        .arg(url)
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn a_browser_draws_other_policies_and_compares_steps() {
    let served = Served::start(&["-p", "torch-native", &trace("llama8b_fsdp_streams")]);
    let Some(said) = looked_at(&format!("http://{}{}", served.host, served.path)) else {
        return;
    };
    let replays = said["replays"].as_str().expect("text");
    // The policy that was named, and the first two of the others.
    for policy in ["torch-native", "millpond", "planned"] {
        assert!(replays.contains(policy), "{replays}");
        let peak = served.json(&format!("0/replay-{policy}"))["peak"].as_f64();
        let shown = format!("{:.2} GiB", peak.expect("a number") / f64::from(1 << 30));
        assert!(replays.contains(&shown), "{shown} is not in {replays}");
    }
    let steps = said["steps"].as_str().expect("there are steps");
    let told = served.json("0/told");
    let peak = told["steps"]["steps"][1][3].as_f64().expect("a number") / f64::from(1 << 30);
    assert!(steps.contains("step 1"), "{steps}");
    assert!(
        steps.contains(&format!("{peak:.2} GiB")),
        "{peak} is not in {steps}"
    );
}

#[test]
fn a_browser_shows_a_page_with_hostile_names_and_numbers() {
    let folder = folder("view-browser");
    let evil = hostile(&folder);
    let served = Served::start(&[&evil, &small(&folder, "small.csv")]);
    let Some(said) = looked_at(&format!("http://{}{}", served.host, served.path)) else {
        return;
    };
    assert_eq!(said["state"], "", "{said}");
    let legend = said["legend"].as_str().expect("text");
    assert!(legend.contains("</script>"), "{legend}");
    assert!(
        said["holders"]
            .as_str()
            .is_some_and(|text| text.contains("</script>")),
        "{said}"
    );
    let file = small(&folder, "small.csv");
    let out = folder.join("small.html").display().to_string();
    assert_eq!(run(&["view", &file, "--html", &out]).0, 0);
    let said = looked_at(&format!("file://{out}")).expect("there is a browser");
    let figures = said["figures"].as_str().expect("text");
    assert!(
        figures.contains("60.00 MiB") && figures.contains("70.00 MiB"),
        "{figures}"
    );
    let answers = said["answers"].as_str().expect("text");
    assert!(
        answers.starts_with("The program holds at most 60.0 MiB at once"),
        "{answers}"
    );
    // The plot of small.csv has two bands. Each has a name and its bytes at the peak.
    let legend = said["legend"].as_str().expect("text");
    assert_eq!(legend.matches("30.00 MiB").count(), 2, "{legend}");
}

#[test]
fn a_browser_shows_recordings_of_the_same_time_on_one_clock() {
    let folder = folder("view-browser-clock");
    let [first, second, later] = [0, 2, 8].map(|begins| timed(&folder, begins));
    for (files, begins, peak) in [
        ([&second, &first], Some("begins at 2.000 s"), "at 5.000 s"),
        ([&later, &first], None, "at 3.000 s"),
    ] {
        let served = Served::start(&files.map(String::as_str));
        let Some(said) = looked_at(&format!("http://{}{}", served.host, served.path)) else {
            return;
        };
        let [facts, figures] = ["facts", "figures"].map(|name| said[name].as_str().expect("text"));
        assert!(facts.contains("5.000 s"), "{facts}");
        assert_eq!(facts.contains("begins at"), begins.is_some(), "{facts}");
        assert!(begins.is_none_or(|begins| facts.contains(begins)), "{facts}");
        assert!(figures.contains(peak), "{figures}");
    }
}

#[test]
fn a_browser_shows_which_data_is_missing() {
    let folder = folder("view-browser-cut");
    let bytes = std::fs::read(hostile(&folder)).expect("it is there");
    let cut = folder.join("cut.mpr").display().to_string();
    std::fs::write(&cut, &bytes[..bytes.len() - 1000]).expect("room");
    let out = folder.join("cut.html").display().to_string();
    let (code, _, stderr) = run(&["view", &cut, "--html", &out, "--blocks", "50"]);
    assert_eq!(code, 0, "{stderr}");
    let Some(said) = looked_at(&format!("file://{out}")) else {
        return;
    };
    let missing = said["missing"].as_str().expect("text");
    assert!(
        missing.contains("is truncated after") && missing.contains("listed as one sum"),
        "{missing}"
    );
}
