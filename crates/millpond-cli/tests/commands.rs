//! Tests `millpond tune`, `info` and the commands that list something.

#[path = "commands/edits.rs"]
mod edits;
mod support;

use serde_json::Value;
use support::{folder, fragmenting, growing, json, run, small, state_only, trace};

#[test]
fn tune_ends_with_lines_to_paste() {
    let (code, stdout, stderr) = run(&["tune", &fragmenting(&folder("tune_lines"))]);
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<&str> = stdout.lines().rev().take_while(|line| !line.is_empty()).collect();
    assert!(!lines.is_empty());
    for line in lines {
        assert!(
            line.starts_with("export ") || line.starts_with("To paste"),
            "{line}"
        );
    }
    assert!(stdout.contains("export PYTORCH_CUDA_ALLOC_CONF="), "{stdout}");
}

#[test]
fn tune_searches_only_the_settings_that_the_program_can_read() {
    let file = fragmenting(&folder("tune_own"));
    let searched = |args: &[&str]| -> Vec<String> {
        let tuned = json(&[&["tune", &file, "--json"], args].concat());
        let families = tuned["families"].as_array().expect("a list");
        families
            .iter()
            .map(|family| family["family"].to_string())
            .collect()
    };
    assert_eq!(searched(&[]), ["\"torch\""]);
    assert_eq!(searched(&["-p", "millpond,torch"]), ["\"millpond\"", "\"torch\""]);
    let (_, stdout, _) = run(&["tune", &file]);
    assert!(!stdout.contains("MILLPOND_CONF"), "{stdout}");
}

/// The sentences of `tune` name the settings that its table recommends. `report` says the same as `replay`.
#[test]
fn tune_and_report_begin_with_the_verdict() {
    let file = fragmenting(&folder("tune_verdict"));
    let sentences = |value: &Value| -> Vec<String> {
        let all = value["verdict"]["sentences"].as_array().expect("a list");
        all.iter()
            .map(|one| one.as_str().expect("text").to_owned())
            .collect()
    };
    let replayed = json(&["replay", &file, "--json"]);
    assert!(sentences(&replayed).len() >= 2);
    assert_eq!(
        sentences(&json(&["report", &file, "--json"])),
        sentences(&replayed)
    );
    let tuned = json(&["tune", &file, "--json"]);
    let family = &tuned["families"][0];
    let best = &family["trials"][family["best"].as_u64().expect("an index") as usize];
    let better = &tuned["verdict"]["better"];
    assert_eq!(better["result"]["conf"], best["conf"]);
    assert_eq!(
        better["result"]["smallest_device_bytes"],
        best["smallest_device_bytes"]
    );
    for (command, said) in [("tune", sentences(&tuned)), ("report", sentences(&replayed))] {
        let (_, stdout, _) = run(&[command, &file]);
        let begin = stdout.find("→ ").expect("a sentence");
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (head, answer) = (&stdout[..begin], flat(&stdout[begin..]));
        assert!(head.lines().count() <= 3, "{stdout}");
        assert!(answer.starts_with(&format!("→ {}", said.join(" → "))), "{stdout}");
    }
}

#[test]
fn tune_marks_the_first_setting_and_recommends_none_without_a_gain() {
    let (_, stdout, _) = run(&["tune", &growing(&folder("tune_first"))]);
    let rows = stdout.lines().skip_while(|line| !line.starts_with("──")).skip(1);
    let marked: Vec<usize> = (0..)
        .zip(rows)
        .filter(|(_, row)| row.starts_with('▸'))
        .map(|(at, _)| at)
        .collect();
    assert_eq!(marked, [0], "{stdout}");
    // Two whole pages. No setting could do better.
    let path = folder("tune_nothing").join("run.csv");
    std::fs::write(
        &path,
        "time_us,action,id,bytes\n0,alloc,1,2097152\n1,alloc,2,2097152\n",
    )
    .expect("written");
    let (_, stdout, _) = run(&["tune", &path.display().to_string(), "-p", "millpond"]);
    assert!(
        stdout.contains("nothing to set") && !stdout.contains("To paste") && !stdout.contains("export"),
        "{stdout}"
    );
}

#[test]
fn recommended_settings_replay_to_the_promised_peak() {
    let file = growing(&folder("tune_promise"));
    let tuned = json(&["tune", &file, "--json", "--policy", "torch"]);
    let family = &tuned["families"][0];
    let best = &family["trials"][family["best"].as_u64().expect("an index") as usize];
    let policy = best["policy"].as_str().expect("a name");
    let conf = best["conf"].as_str().expect("a setting");
    let replayed = json(&[
        "replay",
        &file,
        "--json",
        "--policy",
        policy,
        "--torch-conf",
        conf,
        "--fit",
    ]);
    let result = &replayed["results"][0];
    for key in [
        "smallest_device_bytes",
        "peak_reserved_bytes",
        "stalls",
        "hit_rate",
        "modelled_driver_ms",
    ] {
        assert_eq!(result[key], best[key], "{key}");
    }
}

#[test]
fn tune_is_the_same_on_any_number_of_threads() {
    let file = growing(&folder("tune_threads"));
    let with = |threads: &str| {
        let mut tuned = json(&[
            "tune",
            &file,
            "--json",
            "--threads",
            threads,
            "--device",
            "150MiB",
        ]);
        for choice in ["own", "better"] {
            // This time is measured, so it differs from run to run.
            tuned["verdict"][choice]["result"]["ns_per_event"] = Value::Null;
        }
        tuned
    };
    assert_eq!(with("1"), with("3"));
}

#[test]
fn tune_reports_at_once_that_nothing_can_fit() {
    let file = small(&folder("tune_small"), "run.csv");
    let (code, stdout, _) = run(&["tune", &file, "--device", "32MiB"]);
    assert_eq!(code, 3);
    assert!(
        stdout.contains("No allocator can run this in 32.0 MiB"),
        "{stdout}"
    );
}

#[test]
fn info_shows_the_contents_of_a_recording() {
    let facts = json(&["info", &trace("llama8b_fsdp_streams"), "--json"]);
    let history = &facts["devices"][0]["history"];
    assert_eq!(history["events"], 59_928);
    assert_eq!(history["streams"].as_array().map(Vec::len), Some(3));
    assert_eq!(history["peak_requested_bytes"], 39_375_651_860u64);
    assert_eq!(facts["replayable"], true);
    let (code, stdout, _) = run(&["info", &trace("llama8b_fsdp_streams")]);
    assert_eq!(code, 0);
    for word in [
        "59,928",
        "time span",
        "streams",
        "settings",
        "peak requested",
        "held at the end",
    ] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
}

#[test]
fn info_shows_a_state_without_history() {
    let facts = json(&["info", &state_only(&folder("info_state")), "--json"]);
    assert_eq!(facts["replayable"], false);
    let device = &facts["devices"][0];
    assert!(device["history"].is_null());
    assert_eq!(device["state"][0]["reserved_bytes"], 2 << 20);
    assert_eq!(device["state"][0]["requested_bytes"], 500);
}

#[test]
fn lists_and_help_are_complete_and_fit_the_width() {
    let (code, stdout, _) = run(&["policies"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("torch-native") && stdout.contains("PyTorch's default allocator"),
        "{stdout}"
    );
    assert!(
        stdout.contains("Settings of millpond and planned")
            && stdout.contains("memory-fraction        1  the share of the device that may be reserved")
            && stdout.lines().all(|line| line.chars().count() <= 100),
        "{stdout}"
    );
    let listed = json(&["policies", "--json"]);
    let decay = |policy: &serde_json::Value| {
        let keys = policy["settings"].as_array()?;
        keys.iter()
            .find(|key| key["key"] == "decay")
            .map(|key| key["default"].clone())
    };
    assert_eq!(decay(&listed[0]), Some("64".into()), "{listed}");
    assert_eq!(decay(&listed[2]), None, "{listed}");
    let (code, stdout, _) = run(&["cards"]);
    assert!(code == 0 && stdout.contains("a100-80g"), "{stdout}");
    assert!(stdout.contains("HiDream-ai/VAREdit#6"), "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    let (code, stdout, stderr) = run(&["--help"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(
        stdout.contains("Examples:") && stdout.lines().all(|line| line.len() <= 100),
        "{stdout}"
    );
    let (code, stdout, _) = run(&["--version"]);
    assert!(code == 0 && stdout.starts_with("millpond "), "{stdout}");
}

#[test]
fn info_counts_one_thing_in_the_singular() {
    let file = small(&folder("info_singular"), "run.csv");
    let (_, stdout, _) = run(&["info", &file]);
    assert!(stdout.contains("4: 3 allocations, 1 free\n"), "{stdout}");
}

#[test]
fn all_commands_name_and_count_blocks_older_than_the_recording() {
    let file = folder("older").join("run.csv");
    std::fs::write(
        &file,
        "time_us,action,id,bytes,stream,tag,address,allocated\n\
         0,initial_block,1,3064418304,0,,0x100000,3064418304\n0,alloc,2,31457280,0,a,,\n1,free,2,31457280,0,,,\n",
    )
    .expect("written");
    let file = file.display().to_string();
    let (_, info, _) = run(&["info", &file]);
    assert!(info.contains("(older than the recording)"), "{info}");
    let (_, report, _) = run(&["report", &file]);
    assert!(
        report.contains("(older than the recording)") && !report.contains("(no tag)"),
        "{report}"
    );
    assert!(
        info.contains("1 block of 2.85 GiB already live") && !info.contains("3064418304"),
        "{info}"
    );
    assert!(info.contains("1 allocation,") && info.contains("a replay allocates these blocks first"));
    let (_, replay, _) = run(&["replay", &file, "-p", "none"]);
    assert!(
        replay.contains("2 allocations (1 of them older than the first event)"),
        "{replay}"
    );
}

#[test]
fn help_lists_each_option_where_it_belongs() {
    let (code, help, _) = run(&["replay", "--help"]);
    assert_eq!(code, 0);
    let (common, host) = help.split_once("With --source host").expect("its own heading");
    for option in ["--fit", "--json", "--html", "--time-window", "--conf"] {
        assert!(
            common.contains(&format!("{option} ")) || common.contains(&format!("{option}\n")),
            "{option}: {help}"
        );
    }
    for option in ["--touch", "--check", "--scale", "--rounds"] {
        assert!(
            host.contains(option) && !common.contains(&format!("{option} ")),
            "{option}: {help}"
        );
    }
    for command in ["report", "convert", "replay", "tune", "plan"] {
        let (_, help, _) = run(&[command, "--help"]);
        assert!(help.contains("--time-window <FROM..TO>"), "{help}");
        assert!(!help.contains("--from") && !help.contains("--to-time"), "{help}");
    }
}

#[test]
fn a_device_is_parsed_or_the_error_suggests_similar_cards() {
    let file = small(&folder("devices"), "run.csv");
    let replay = |device: &str| run(&["replay", &file, "-p", "none", "--device", device]);
    for (device, shown) in [
        ("rtx 4090", "rtx4090, 23.5 GiB less"),
        ("A100-80G", "a100-80g, 79.2 GiB less"),
        ("h100", "h100, 79.1 GiB less"),
        ("NVIDIA H100 80GB HBM3", "h100, 79.1 GiB less"),
        (
            "24GB",
            "device: 22.4 GiB (24GB read as 24,000,000,000 bytes; write 24GiB for powers of two)",
        ),
        ("24GiB", "device: 24.0 GiB "),
    ] {
        let (code, stdout, stderr) = replay(device);
        let stdout = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(code == 0 && stdout.contains(shown), "{device}: {stdout}{stderr}");
    }
    for (device, hint) in [
        ("a100", "did you mean a100-40g or a100-80g?"),
        ("rtx4091", "did you mean rtx4090?"),
        ("4090", "or the card rtx4090"),
        ("rtx 3080 Ti", "did you mean rtx3080?"),
        ("80GX", "see `millpond cards`"),
    ] {
        let (code, _, stderr) = replay(device);
        assert!(code == 2 && stderr.contains(hint), "{device}: {stderr}");
    }
    let (_, _, stderr) = run(&["report", &file, "--top", "-5"]);
    assert!(
        stderr.contains("invalid value '-5' for '--top <N>': write a whole number"),
        "{stderr}"
    );
    let (_, _, stderr) = run(&["replay", &file, "-5"]);
    assert!(
        stderr.contains("-5 is a negative number, and no option here takes one"),
        "{stderr}"
    );
}

/// Returns the recordings of the repository and those outside it that are read in a few seconds.
fn recordings() -> Vec<String> {
    let mut folders = vec![support::traces()];
    folders.extend(support::shared());
    folders.extend(support::shared().map(|folder| folder.join("snapshots")));
    let mut files: Vec<_> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("a folder"))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let is_small = path.metadata().is_ok_and(|file| file.len() < 4 << 20);
            is_small
                && path
                    .extension()
                    .is_some_and(|ending| ending == "zst" || ending == "pickle")
        })
        .collect();
    // The same file may be in both folders.
    files.sort_by_key(|path| path.file_name().map(std::ffi::OsStr::to_owned));
    files.dedup_by_key(|path| path.file_name().map(std::ffi::OsStr::to_owned));
    assert!(files.len() >= 4, "the repository has four");
    files.iter().map(|path| path.display().to_string()).collect()
}

#[test]
fn all_commands_find_the_same_groups_and_steps() {
    for file in recordings() {
        let report = json(&["report", &file, "--json", "--top", "100000"]);
        let info = &json(&["info", &file, "--json"])["devices"][0]["history"];
        if info.is_null() {
            continue;
        }
        let groups = report["allocated_by"]["rows"].as_array().expect("rows").len();
        // Blocks that are older than the recording are not allocated in it.
        let older = info["initial_blocks"].as_u64().expect("a number") > 0;
        let counted = info["tag_groups"].as_u64().expect("a number") as usize;
        if older {
            assert!(counted >= groups, "{file}: {counted} {groups}");
        } else {
            assert_eq!(counted, groups, "{file}");
        }
        let held = report["peak_by"]["rows"].as_array().expect("rows");
        for holder in info["peak_holders"].as_array().expect("holders") {
            let is_same = |row: &Value| row["name"] == holder[0] && row["requested"] == holder[1];
            assert!(held.iter().any(is_same), "{file}: {holder}");
        }
        let plan = &json(&["plan", &file, "--json"])["step"];
        let steps = report["steps"]["steps"].as_array().map_or(0, Vec::len);
        let planned = match plan["is_loop"].as_bool() {
            Some(false) => plan["steps"].as_u64().expect("a number") as usize,
            _ => 0,
        };
        assert_eq!(steps, planned, "{file}");
    }
}

#[test]
fn info_counts_the_groups_that_a_report_has() {
    let file = trace("cpu_tiny_gpt_varlen");
    let history = &json(&["info", &file, "--json"])["devices"][0]["history"];
    let groups = &json(&["report", &file, "--json", "--top", "100000"])["allocated_by"]["rows"];
    let groups = groups.as_array().expect("rows").len();
    assert_eq!(history["tag_groups"], groups);
    assert!(history["tags"].as_u64() >= Some(groups as u64 - 1));
}

#[test]
fn a_pasted_settings_line_is_read_like_its_value() {
    let file = growing(&folder("pasted"));
    let with = |conf: &str| {
        json(&[
            "replay",
            &file,
            "--json",
            "-p",
            "torch-native",
            "--torch-conf",
            conf,
        ])
    };
    let value = with("max_split_size_mb:64")["results"][0]["peak_reserved_bytes"].clone();
    for line in [
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
        " export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
    ] {
        assert_eq!(with(line)["results"][0]["peak_reserved_bytes"], value, "{line}");
    }
    let (code, _, stderr) = run(&["replay", &file, "--torch-conf", "OTHER=max_split_size_mb:64"]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn errors_name_the_command_that_has_an_option_and_explain_a_folder() {
    let dir = folder("elsewhere");
    let file = growing(&dir);
    let (code, _, stderr) = run(&["tune", &file, "--html", "page.html"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("this command has no --html, but `millpond replay`"),
        "{stderr}"
    );
    let (code, _, stderr) = run(&["tune", &dir.display().to_string()]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("it is a folder; name a recording in it"),
        "{stderr}"
    );
}
