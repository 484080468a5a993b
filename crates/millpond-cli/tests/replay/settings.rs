//! Tests settings of policies from options and from the environment.

use crate::support::{command, folder, growing, json, run, small, trace};
use serde_json::Value;

#[test]
fn a_setting_against_an_unnamed_policy_leaves_it_out() {
    let file = small(&folder("left_out"), "run.csv");
    let (code, stdout, stderr) = run(&[
        "replay",
        &file,
        "--torch-conf",
        "expandable_segments:True",
        "--json",
        "--all",
    ]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("torch-native is left out"), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("only JSON on stdout");
    let names: Vec<&Value> = report["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|r| &r["policy"])
        .collect();
    assert!(
        names.contains(&&"torch-expandable".into()) && !names.contains(&&"torch-native".into()),
        "{names:?}"
    );
}

#[test]
fn costs_can_be_replaced() {
    let dir = folder("costs");
    let file = small(&dir, "run.csv");
    let kinds = [
        "malloc",
        "free",
        "create",
        "map",
        "set_access",
        "unmap",
        "release",
        "reserve",
        "event_record",
        "event_wait",
        "stall",
    ];
    let table: String = kinds
        .map(|kind| format!("[{kind}]\nper_call = 1000.0\n"))
        .concat();
    let costs = dir.join("costs.toml");
    std::fs::write(&costs, table).expect("written");
    let report = json(&[
        "replay",
        &file,
        "--json",
        "-p",
        "torch-native",
        "--costs",
        &costs.display().to_string(),
    ]);
    let result = &report["results"][0];
    assert_eq!(
        result["modelled_driver_ms"].as_f64(),
        result["driver_calls"]["malloc"].as_f64()
    );
}

#[test]
fn another_backend_of_pytorch_is_warned_about() {
    let file = growing(&folder("backend"));
    let conf = ["--torch-conf", "backend:cudaMallocAsync"];
    let cautions = |policies: &str| {
        json(&["replay", &file, "--json", "-p", policies, conf[0], conf[1]])["cautions"].to_string()
    };
    let both = cautions("torch-native,cuda-async");
    assert!(
        both.contains("read the figures of cuda-async") && both.contains("torch-native would not run"),
        "{both}"
    );
    assert!(cautions("torch-native").contains("--policy cuda-async"));
    assert!(!cautions("cuda-async,bfc").contains("cudaMallocAsync"));
    let report = json(&["replay", &file, "--json", conf[0], conf[1]]);
    assert_eq!(report["verdict"]["own"]["result"]["policy"], "cuda-async");
    let (code, _, stderr) = run(&["replay", &file, "--torch-conf", "backend:cudamalloc"]);
    assert!(
        code == 2 && stderr.contains("native or cudaMallocAsync"),
        "{stderr}"
    );
}

#[test]
fn policies_that_map_pages_are_left_out_if_the_device_cannot_map_pages() {
    let file = growing(&folder("pageless"));
    let report = json(&["replay", &file, "--json", "--paged", "off", "--all"]);
    let results = report["results"].as_array().expect("results");
    assert!(
        results.len() > 5 && results.iter().all(|r| r["first_failure"].is_null()),
        "{results:?}"
    );
    let cautions = report["cautions"].to_string();
    for policy in ["torch-expandable", "rmm-arena", "cuda-async"] {
        assert!(cautions.contains(policy), "{cautions}");
        assert!(results.iter().all(|result| result["policy"] != policy));
    }
}

#[test]
fn the_environment_replaces_settings_that_are_not_given() {
    let file = small(&folder("environment"), "run.csv");
    let replay = |more: &[&str], conf: &str| {
        let mut args = vec!["replay", file.as_str(), "-p", "millpond,torch-native"];
        args.extend(more);
        let output = command(&args)
            .env("MILLPOND_CONF", conf)
            .output()
            .expect("starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = replay(&["--json"], "handle:4MiB");
    assert_eq!(code, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    let applied = &report["settings"][0];
    assert_eq!(applied["from"], "MILLPOND_CONF");
    assert_eq!(applied["settings"], "handle:4MiB");
    assert_eq!(applied["policies"], serde_json::json!(["millpond"]));
    let (_, stdout, _) = replay(&[], "handle:4MiB");
    assert!(
        stdout.contains("settings of millpond: handle:4MiB (from MILLPOND_CONF)"),
        "{stdout}"
    );
    let (_, stdout, _) = replay(&["--conf", "handle:8MiB"], "handle:4MiB");
    assert!(
        stdout.contains("handle:8MiB (from --conf)") && !stdout.contains("MILLPOND_CONF"),
        "the option wins: {stdout}"
    );
    let (code, _, stderr) = replay(&[], "hande:4MiB");
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("MILLPOND_CONF: unknown setting 'hande'"),
        "{stderr}"
    );
    let (code, stdout, _) = replay(&[], "");
    assert!(code == Some(0) && !stdout.contains("settings of"), "{stdout}");
}

#[test]
#[cfg(target_os = "linux")]
fn settings_that_only_pools_have_are_checked_and_ignored() {
    let file = small(&folder("pool_keys"), "run.csv");
    let replay = |conf: &str| {
        let output = command(&["replay", file.as_str(), "-p", "millpond", "--json"])
            .env("MILLPOND_CONF", conf)
            .output()
            .expect("starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = replay("guard:on,handle:4MiB,limit:2GiB");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("MILLPOND_CONF: guard:on,limit:2GiB is ignored"),
        "{stderr}"
    );
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(report["settings"][0]["settings"], "handle:4MiB");
    let (code, stdout, _) = replay("guard:on");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert!(
        code == Some(0) && report["settings"].as_array().is_none_or(Vec::is_empty),
        "nothing was applied: {stdout}"
    );
    for (conf, said) in [
        ("guard:maybe", "MILLPOND_CONF: setting 'guard' cannot be 'maybe'"),
        (
            "gard:on",
            "MILLPOND_CONF: unknown setting 'gard': choose one of limit, ",
        ),
        ("garbage", "MILLPOND_CONF: 'garbage' is not key:value"),
    ] {
        let (code, stdout, stderr) = replay(conf);
        assert!(
            code == Some(2) && stdout.is_empty() && stderr.contains(said),
            "{conf}: {stderr}"
        );
    }
}

#[test]
fn the_clock_advances_only_at_the_configured_ticks() {
    let trace = trace("llama8b_fsdp_streams");
    let replay = |more: &[&str]| {
        let mut args = vec!["replay", &trace, "--json", "-p", "millpond", "--conf", "decay:3"];
        args.extend(more);
        json(&args)
    };
    let without = replay(&[]);
    let with = replay(&["--tick", "2000"]);
    assert_eq!(with["settings"][1]["settings"], "a tick after every 2,000 calls");
    assert_eq!(with["settings"][1]["from"], "--tick");
    let released = |report: &Value| report["results"][0]["driver_calls"]["release"].as_u64();
    assert!(released(&with) > released(&without));
    // Each step needs the memory of the steps before, so no memory is unused for longer than three steps.
    let steps = replay(&["--tick", "step"]);
    assert_eq!(steps["settings"][1]["settings"], "a tick at each step");
    assert_eq!(released(&steps), released(&without));
    let file = small(&folder("ticks"), "run.csv");
    let (code, _, stderr) = run(&["replay", &file, "--tick", "step"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("use --tick N"), "{stderr}");
    let (code, _, stderr) = run(&["replay", &file, "--tick", "10s"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("write step, or a number of calls"), "{stderr}");
}
