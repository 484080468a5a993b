//! Tests the sentences at the top: each figure in them is one of the JSON of the same replays.

use crate::support::{json, run, shared, trace};
use millpond_engine::{display_size, display_size_up};
use serde_json::Value;
use std::collections::BTreeSet;

/// PyTorch's allocator runs this program on a device of 26.999 GiB, and not on one of 27.000 GiB.
#[test]
fn the_program_finishes_on_a_device_of_the_printed_size() {
    let Some(shared) = shared() else { return };
    let file = shared.join("t5_large_varlen.csv.zst").display().to_string();
    let own = ["replay", &file, "-p", "torch-native", "--json"];
    let fitted = json(&[&own[..], &["--fit"]].concat());
    let needs = fitted["results"][0]["smallest_device_bytes"]
        .as_u64()
        .expect("bytes");
    let printed = display_size_up(needs).to_string().replace(' ', "");
    let replayed = json(&[&own[..], &["--device", &printed]].concat());
    assert!(replayed["results"][0]["first_failure"].is_null(), "{printed}");
}

/// Adds every whole number of a value.
fn numbers(of: &Value, to: &mut Vec<u64>) {
    match of {
        Value::Number(number) => to.extend(number.as_u64()),
        Value::Array(list) => list.iter().for_each(|one| numbers(one, to)),
        Value::Object(map) => map.values().for_each(|one| numbers(one, to)),
        _ => {}
    }
}

/// Returns the sizes that a sentence names, such as `47.1 GiB`.
fn sizes(sentence: &str) -> Vec<String> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let plain = |word: &str| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
    words
        .windows(2)
        .map(|pair| (plain(pair[0]), plain(pair[1])))
        .filter(|(number, unit)| {
            units.contains(&unit.as_str()) && number.starts_with(|c: char| c.is_ascii_digit())
        })
        .map(|(number, unit)| format!("{number} {unit}"))
        .collect()
}

#[test]
fn each_size_in_a_sentence_is_in_the_json_of_the_replays() {
    let mut checked = 0;
    for (name, devices) in [
        ("llama8b_fsdp_streams", &["", "40GiB", "37GiB", "24GiB"][..]),
        ("gnn_sage_sampled", &["", "1300MiB"]),
        ("cpu_tiny_gpt_varlen", &["", "160MiB"]),
    ] {
        let file = trace(name);
        for device in devices {
            let mut args = vec!["replay", file.as_str(), "--json"];
            if !device.is_empty() {
                args.extend(["-d", device]);
            }
            let (_, stdout, stderr) = run(&args);
            let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("JSON: {stderr}"));
            let verdict = &report["verdict"];
            let mut known = vec![report["peak_requested_bytes"].as_u64().expect("bytes")];
            for choice in ["own", "better"] {
                let choice = &verdict[choice];
                numbers(&choice["result"]["smallest_device_bytes"], &mut known);
                numbers(&choice["result"]["first_failure"], &mut known);
                numbers(&choice["below"], &mut known);
                numbers(&choice["card"], &mut known);
            }
            if !device.is_empty() {
                known.push(millpond_engine::parse_size(device).expect("a size"));
            }
            // Sentences also name differences and sums of two of these.
            let mut shown: BTreeSet<String> = BTreeSet::new();
            for a in &known {
                shown.insert(display_size(*a).to_string());
                shown.insert(display_size_up(*a).to_string());
                for b in &known {
                    shown.insert(display_size(a.abs_diff(*b)).to_string());
                    shown.insert(display_size(a.saturating_add(*b)).to_string());
                }
            }
            let sentences = verdict["sentences"].as_array().expect("sentences");
            assert!((2..=4).contains(&sentences.len()), "{sentences:?}");
            for sentence in sentences {
                let sentence = sentence.as_str().expect("text");
                for size in sizes(sentence) {
                    assert!(shown.contains(&size), "{name} {device}: {size} of {sentence:?}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 40, "only {checked} sizes were found");
}

#[test]
fn the_answer_comes_first_and_the_table_is_short() {
    let (code, stdout, _) = run(&["replay", &trace("gnn_sage_sampled"), "-q"]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = stdout.lines().collect();
    let answer = lines
        .iter()
        .position(|line| line.starts_with('→'))
        .expect("an answer");
    let table = lines.iter().position(|line| line.contains('─')).expect("a table");
    assert!(answer < 4 && answer < table && lines.len() <= 24, "{stdout}");
    let rows: Vec<&str> = lines[table + 1..]
        .iter()
        .copied()
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(rows.len(), 5, "{stdout}");
    assert!(
        rows[1].contains("torch-native (yours)") && rows[2].contains('▸'),
        "{stdout}"
    );
    assert!(
        !stdout.contains("MILLPOND_CONF") && !stdout.contains("malloc"),
        "{stdout}"
    );
    let (_, all, _) = run(&["replay", &trace("gnn_sage_sampled"), "-q", "--all", "--calls"]);
    assert!(all.contains("rmm-arena") && all.contains("malloc"), "{all}");
    let report = json(&["replay", &trace("gnn_sage_sampled"), "--json", "-p", "bfc"]);
    assert_eq!(report["results"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["verdict"]["own"]["result"]["policy"], "torch-native");
}
