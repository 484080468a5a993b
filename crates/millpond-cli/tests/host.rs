//! Tests `millpond replay --source host` and `millpond bench`, which use this machine's memory. Times are printed, never
//! asserted.
#![cfg(all(feature = "bench", target_os = "linux", target_env = "gnu"))]

mod support;

use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use support::{command, folder, json, run, small, trace};

/// Writes a recording with a block that is older than the recording and freed in it, a block of another stream, a block that
/// stays, a free of an unknown block, and small blocks.
fn made(folder: &Path) -> String {
    let mut csv = String::from(
        "time_us,action,id,bytes,stream,tag,address,allocated\n\
         0,initial_block,1,300000,0,,0x100000,300032\n\
         0,alloc,2,2000000,0,a,,\n\
         1,alloc,3,100000,7,b,,\n\
         2,free,1,300000,0,,,\n\
         3,free,2,2000000,0,,,\n\
         4,free,99,64,0,,,\n",
    );
    for id in 10..500 {
        csv.push_str(&format!("5,alloc,{id},{},0,c,,\n6,free,{id},,0,,,\n", id * 10));
    }
    let path = folder.join("made.csv");
    std::fs::write(&path, csv).expect("written");
    path.display().to_string()
}

fn result<'a>(facts: &'a Value, allocator: &str) -> &'a Value {
    let results = facts["results"].as_array().expect("an array");
    let found = results.iter().find(|result| result["allocator"] == allocator);
    found.unwrap_or_else(|| panic!("{allocator} in {facts}"))
}

#[test]
fn the_table_has_a_row_for_each_allocator_and_explains_what_a_host_lacks() {
    let file = made(&folder("host_table"));
    let (code, stdout, stderr) = run(&["replay", &file, "--source", "host", "--check"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    for allocator in ["glibc", "millpond"] {
        let rows = stdout.lines().filter(|line| line.starts_with(allocator));
        assert_eq!(rows.count(), 1, "{stdout}");
    }
    // The comparison ignores line breaks.
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "sizes as recorded",
        "3 runs of each allocator",
        "one byte of each 4 KiB written",
        "A host has no streams: those of the recording (2) are ignored",
        "Allocated at the start, because older than the first event: 1 block.",
        "Freed at the end, because the program never frees them: 1 block.",
        "Every block was found with its first and last byte",
        "faults",
        "RSS",
    ] {
        assert!(words.contains(said), "{said}: {stdout}");
    }
    assert_eq!(words.contains("not built in: mimalloc"), !cfg!(feature = "peers"));
    assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
}

#[test]
fn the_json_has_the_figures_of_the_replay() {
    let file = made(&folder("host_json"));
    let facts = json(&["replay", &file, "--source", "host", "--rounds", "1", "--json"]);
    let count = |key: &str| facts[key].as_u64().unwrap_or_else(|| panic!("{key} in {facts}"));
    assert_eq!((count("allocations"), count("initial_blocks")), (493, 1));
    assert_eq!((count("freed_at_the_end"), count("streams")), (1, 2));
    assert_eq!((count("scale"), count("rounds")), (1, 1));
    assert_eq!(
        (count("peak_bytes"), count("peak_recorded_bytes")),
        (2_400_000, 2_400_000)
    );
    assert_eq!(
        (facts["touch"].as_str(), facts["checked"].as_bool()),
        (Some("page"), Some(false))
    );
    assert_eq!(facts["failed"], Value::Array(Vec::new()));
    let unknown = facts["cautions"].to_string();
    assert!(
        unknown.contains("1 free of blocks without a recorded allocation"),
        "{unknown}"
    );
    let allocators = facts["results"].as_array().map(Vec::len);
    assert_eq!(allocators, Some(if cfg!(feature = "peers") { 4 } else { 2 }));
    assert_eq!(result(&facts, "glibc")["time_of_glibc"], 1.0);
    let ours = result(&facts, "millpond");
    assert_eq!(ours["policy"], "millpond");
    for key in [
        "ns_per_pair",
        "ns_fastest_round",
        "ns_slowest_round",
        "faults_per_pair",
    ] {
        assert!(ours[key].as_f64().is_some_and(|n| n >= 0.0), "{key}: {ours}");
    }
    // Touched pages were resident: at least the pages of the blocks held at the peak.
    assert!(ours["peak_rss_bytes"].as_u64() >= Some(2_300_000), "{ours}");
    // A trim releases them. The pool's own memory stays.
    let bytes = |key: &str| ours[key].as_u64().expect("bytes");
    assert!(
        bytes("trimmed_rss_bytes") + 2_000_000 <= bytes("freed_rss_bytes"),
        "{ours}"
    );
}

#[test]
fn touched_pages_are_resident() {
    let file = small(&folder("host_touch"), "run.csv");
    let resident = |touch: &str| {
        let facts = json(&[
            "replay", &file, "--source", "host", "--touch", touch, "--rounds", "1", "--json",
        ]);
        ["glibc", "millpond"].map(|name| result(&facts, name)["peak_rss_bytes"].as_u64().expect("bytes"))
    };
    assert!(resident("none").iter().all(|bytes| *bytes < 8 << 20));
    for touch in ["page", "full"] {
        // 60 MiB live at once.
        let resident = resident(touch);
        assert!(
            resident.iter().all(|bytes| (59 << 20..80 << 20).contains(bytes)),
            "{resident:?}"
        );
    }
}

#[test]
fn sizes_are_divided_by_the_given_or_the_necessary_divisor() {
    let file = small(&folder("host_scale"), "run.csv");
    let by = |scale: &str| {
        json(&[
            "replay", &file, "--source", "host", "--scale", scale, "--rounds", "1", "--json",
        ])
    };
    let (told, fits) = (by("4"), by("auto"));
    assert_eq!(
        (&told["scale"], &told["scale_chosen"]),
        (&4.into(), &false.into())
    );
    assert_eq!(told["peak_bytes"], 15 << 20);
    assert_eq!((&fits["scale"], &fits["scale_chosen"]), (&1.into(), &true.into()));
    // An exbibyte is more than the memory of any machine.
    let path = folder("host_huge").join("huge.csv");
    let csv = "time_us,action,id,bytes,stream,tag\n0,alloc,1,1152921504606846976,0,\n";
    std::fs::write(&path, csv).expect("written");
    let huge = path.display().to_string();
    let chosen = json(&[
        "replay", &huge, "--source", "host", "--touch", "none", "--rounds", "1", "--json",
    ]);
    let scale = chosen["scale"].as_u64().expect("a divisor");
    assert!(scale >= 1 << 20 && scale.is_power_of_two(), "{scale}");
    let (code, _, stderr) = run(&["replay", &huge, "--source", "host", "--scale", "1"]);
    assert!(
        code == 2 && stderr.contains("holds 1.00 EiB at its peak") && stderr.contains("divide by"),
        "{code} {stderr}"
    );
}

#[test]
fn our_pools_run_with_the_named_policies() {
    let file = made(&folder("host_policies"));
    let facts = json(&[
        "replay",
        &file,
        "--source",
        "host",
        "-p",
        "bfc,pow2,bfc",
        "--rounds",
        "1",
        "--check",
        "--json",
    ]);
    let policies: Vec<_> = facts["results"]
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(|result| result["policy"].as_str())
        .collect();
    assert_eq!(policies, ["bfc", "pow2"]);
    let (code, stdout, _) = run(&["replay", &file, "--source", "host", "-p", "bfc", "--rounds", "1"]);
    assert!(code == 0 && stdout.contains("millpond (bfc)"), "{stdout}");
    // The pool's errors for settings are reported before anything runs, and valid settings reach the pool.
    let conf = |text: &str| {
        run(&[
            "replay", &file, "--source", "host", "--conf", text, "--rounds", "1",
        ])
    };
    assert_eq!(conf("decay:4").0, 0);
    let (code, _, stderr) = conf("nonsense:1");
    assert!(
        code == 2 && stderr.contains("unknown setting 'nonsense'"),
        "{stderr}"
    );
}

#[test]
fn pools_get_their_own_settings_from_the_option_or_the_environment() {
    let file = small(&folder("host_conf"), "run.csv");
    let replay = |more: &[&str], conf: &str| {
        let host = ["replay", &file, "--source", "host", "--rounds", "1"];
        let output = command(&[&host[..], &["--touch", "none"], more].concat())
            .env("MILLPOND_CONF", conf)
            .output()
            .expect("starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    // 60 MiB live at once.
    let refused = |(code, stderr): (Option<i32>, String)| {
        assert!(code == Some(1) && stderr.contains("cannot allocate"), "{stderr}");
        assert!(!stderr.contains("glibc"), "only pools are told: {stderr}");
    };
    refused(replay(&[], "limit:1MiB,decay:3"));
    refused(replay(&["--conf", "limit:1MiB"], "limit:1GiB"));
    assert_eq!(
        replay(&["--conf", "decay:3"], "limit:1MiB"),
        (Some(0), String::new())
    );
    // Each policy gets only its own settings.
    assert_eq!(
        replay(&["-p", "bfc,millpond"], "decay:3"),
        (Some(0), String::new())
    );
    refused(replay(&["-p", "bfc"], "limit:1MiB,decay:3"));
    let (code, stderr) = replay(&[], "limit:lots");
    assert!(
        code == Some(2) && stderr.contains("MILLPOND_CONF: setting 'limit'"),
        "{stderr}"
    );
}

#[test]
fn bench_ignores_pool_settings_of_the_environment() {
    let bench = |conf: &str| {
        let output = command(&["bench", "host", "guda-hot", "--rounds", "1"])
            .env("MILLPOND_CONF", conf)
            .output()
            .expect("starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    // Either setting would end a child that reads it.
    for conf in ["garbage", "limit:1"] {
        let (code, stdout, stderr) = bench(conf);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
        let told = "MILLPOND_CONF is set, but the measured processes run without it.";
        assert!(stdout.contains(told) && stdout.contains("millpond"), "{stdout}");
    }
    let (_, stdout, _) = run(&["bench", "host", "guda-hot", "--rounds", "1"]);
    assert!(!stdout.contains("MILLPOND_CONF"), "{stdout}");
}

#[test]
fn a_child_creates_its_pool_with_the_given_policy() {
    let mut child = command(&["bench", "host", "--tape", "millpond", "none", "no", "nope"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program without calls.
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(&[0; 32]).expect("written");
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && stderr.contains("there is no policy \"nope\""),
        "{stderr}"
    );
}

#[test]
fn a_recording_of_a_real_program_keeps_every_byte() {
    let facts = json(&[
        "replay",
        &trace("cpu_tiny_gpt_varlen"),
        "--source",
        "host",
        "--check",
        "--touch",
        "none",
        "--rounds",
        "1",
        "--json",
    ]);
    assert_eq!(facts["failed"], Value::Array(Vec::new()));
    assert_eq!(facts["allocations"], 41_425);
}

#[test]
fn an_allocator_that_fails_is_named_and_the_others_are_shown() {
    // No process has this many addresses.
    let path = folder("host_refused").join("run.csv");
    let csv = "time_us,action,id,bytes,stream,tag\n0,alloc,1,10,0,\n1,alloc,2,4611686018427387904,0,\n";
    std::fs::write(&path, csv).expect("written");
    let file = path.display().to_string();
    let (code, stdout, stderr) = run(&[
        "replay", &file, "--source", "host", "--touch", "none", "--scale", "1", "--rounds", "1",
    ]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    for allocator in ["glibc", "millpond (millpond)"] {
        let line = format!("millpond: {allocator}: block 2: cannot allocate 4611686018427387904 bytes\n");
        assert!(stderr.contains(&line), "{stderr}");
    }
}

#[test]
fn options_that_do_not_apply_are_refused_in_one_line() {
    let file = small(&folder("host_refuses"), "run.csv");
    let host = ["replay", &file, "--source", "host"];
    let cases: &[(&[&str], &str)] = &[
        (&["--touch", "some"], "'some'"),
        (&["--scale", "0"], "write auto, or by what to divide"),
        (&["--scale", "half"], "write auto, or by what to divide"),
        (&["--rounds", "0"], "1..=1000"),
        (&["--rounds", "many"], "'many'"),
        (&["-p", "bfcc"], "did you mean 'bfc'?"),
        (&["--device", "1G"], "--device is for a simulated device"),
        (&["--paged", "off"], "--paged off is for a simulated device"),
        (&["--fit"], "--fit is for a simulated device"),
        (&["--verify"], "--verify is for a simulated device"),
        (&["--tick", "step"], "--tick is for a simulated device"),
        (&["--html", "x.html"], "--html is for a simulated device"),
        (&["--time-window", "5s..9s"], "--time-window"),
    ];
    for (more, said) in cases {
        let (code, stdout, stderr) = run(&[&host[..], more].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{more:?}: {stderr}");
        assert!(
            stderr.lines().count() == 1 && stderr.contains(said),
            "{more:?}: {stderr}"
        );
    }
    for only in [
        &["--touch", "page"][..],
        &["--check"],
        &["--scale", "2"],
        &["--rounds", "2"],
    ] {
        let (code, _, stderr) = run(&[&["replay", file.as_str()][..], only].concat());
        assert!(
            code == 2 && stderr.contains("add --source host"),
            "{only:?}: {stderr}"
        );
    }
    let (code, _, stderr) = run(&["tune", &file, "--source", "host"]);
    assert!(code == 2 && stderr.contains("simulated device"), "{stderr}");
}

#[test]
fn bench_host_help_lists_each_group_of_workloads() {
    let (code, help, _) = run(&["bench", "host", "--help"]);
    assert_eq!(code, 0);
    for group in [
        "w1  ", "w2  ", "w3  ", "w4  ", "w5  ", "w6  ", "half  ", "seeds  ",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(group)),
            "{group}: {help}"
        );
    }
}

#[test]
fn names_are_replaced_and_several_files_are_a_list() {
    let dir = folder("host_several");
    let (one, two) = (small(&dir, "secretone.csv"), small(&dir, "secrettwo.csv"));
    let facts = json(&[
        "replay", &one, &two, "--source", "host", "--redact", "--touch", "none", "--rounds", "1", "--json",
    ]);
    assert_eq!(facts.as_array().map(Vec::len), Some(2));
    assert!(!facts.to_string().contains("secret"), "{facts}");
    let (code, stdout, stderr) = run(&[
        "replay",
        &one,
        "/nowhere/run.csv",
        "--source",
        "host",
        "--touch",
        "none",
        "--rounds",
        "1",
    ]);
    assert!(code == 2 && stderr.contains("/nowhere/run.csv"), "{stderr}");
    assert!(stdout.is_empty() || stdout.contains("glibc"), "{stdout}");
}

#[test]
fn bench_host_runs_the_host_benchmark() {
    let (code, stdout, stderr) = run(&["bench", "host", "guda-hot", "--rounds", "1"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    for allocator in ["(loop)", "glibc", "gl-tuned", "millpond"] {
        assert!(stdout.contains(allocator), "{allocator}: {stdout}");
    }
    let (code, stdout, _) = run(&["bench", "host", "--help"]);
    assert!(code == 0 && stdout.contains("--once WORKLOAD"), "{stdout}");
    for (arguments, said) in [
        (&["w9"][..], "there is no workload 'w9'"),
        (&["--rounds", "0"], "1 to 1000"),
        (&["--peer", "tcmalloc"], "there is no peer 'tcmalloc'"),
    ] {
        let (code, _, stderr) = run(&[&["bench", "host"][..], arguments].concat());
        assert!(
            code == 2 && stderr.contains(said) && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
    assert_eq!(run(&["bench"]).0, 2);
}

#[test]
fn a_closed_output_is_not_an_error() {
    let mut child = command(&["bench", "host", "guda-hot", "w2", "--rounds", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn bench_seeds_has_a_row_for_every_claim() {
    let (code, stdout, stderr) = run(&["bench", "seeds", "--quick"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    for said in [
        "TensorCore, Allocation Speed",
        "~8.5ms for 10,000 allocations",
        "so its pool takes 3.3 times as long as malloc",
        "TensorCore, Performance Monitoring",
        "tendo, Reuse Tensors",
        "tendo, Pool-Backed Storage",
        "Genesis, Advanced Pooling Strategy",
        "Genesis, Pre-allocate Large Tensors",
        "Genesis, Advanced Memory Control",
        "GUDA, Memory Pool Management",
        "GUDA, Best Practices",
        "GUDA, Common Memory Mistakes",
        "GUDA, Zero-Copy Operations",
        "125 ms (19.6x faster)",
        "so its pool is 19.6 times faster than no pool",
        "bandwidth",
        "50-200 ns",
        "1-10 ms",
        "0.5-5 ms",
        "Not shown:",
    ] {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
    // The programs that measure tensors, layouts and file passes follow. Their output is the same as when they run alone.
    let (claims, tables) = stdout.split_once("\nTensors: ").expect("they follow");
    for said in [
        "\nLayout: ",
        "\nData: ",
        "axpy in place 1 k ",
        "scal into 1 M ",
        "add new 1 M ",
        "TensorCore: temp({100, 100})",
        "products, us for one",
        "64x784 by 784x128",
        "GUDA's particles",
        "% of its budget",
        "tensor: batches",
        "sum mass, half of L2",
        "pass with checksum",
    ] {
        assert!(tables.contains(said), "{said}: {tables}");
    }
    let rows = |name: &str| {
        claims
            .lines()
            .filter(|line| line.split_whitespace().next() == Some(name))
            .count()
    };
    // One row for each of 20 loops, two more for each of the three loops whose halves are timed separately, and one for the
    // held memory.
    for allocator in ["glibc", "mmap", "millpond"] {
        assert_eq!(rows(allocator), 20 + 6 + 1, "{allocator}: {stdout}");
    }
    for name in [
        "w2",
        "tensorcore-fill",
        "tendo-reuse",
        "half",
        "guda-copy",
        "dotcompute-64m-fill",
        "dotcompute-buffer",
    ] {
        assert_eq!(rows(name), 1, "{name}: {stdout}");
    }
    assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    assert_eq!(run(&["bench", "seeds", "--rounds", "0"]).0, 2);
}
