//! Hostile recordings, each made by a few lines of code. Every command ends soon, uses little memory, and refuses in one line.
//!
//! Each test prints the time and memory of its runs: `cargo test -p millpond-cli --test hostile -- --nocapture`.

#![cfg(target_os = "linux")]

mod support;

#[path = "hostile/build.rs"]
mod build;
#[path = "hostile/limits.rs"]
mod limits;

use build::{Extra, Made};
use limits::{MOST_MEMORY, Ran, limited};
use millpond_trace::recording::Kind;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::folder;

/// The commands that are run on each file. `OUT.pickle` stands for the name of an output file.
const COMMANDS: [&[&str]; 4] = [
    &["info"],
    &["report"],
    &["replay", "--quiet", "--threads", "2"],
    &["convert", "OUT.pickle"],
];

/// Runs all commands on a file. Returns the exit code and output of each.
fn all(name: &str, path: &Path) -> Vec<Ran> {
    let bytes = std::fs::metadata(path).expect("it is there").len();
    let out = path.with_extension("out.pickle").display().to_string();
    let ran = COMMANDS.map(|command| {
        let (first, rest) = command.split_first().expect("a command");
        let mut arguments = vec![(*first).to_owned(), path.display().to_string()];
        arguments.extend(rest.iter().map(|word| match *word {
            "OUT.pickle" => out.clone(),
            word => word.to_owned(),
        }));
        let ran = limited(&arguments);
        println!(
            "{name:<28} {bytes:>9} B  {first:<8} {:>6.2} s {:>5} MiB  exit {}",
            ran.took.as_secs_f64(),
            ran.memory >> 20,
            ran.code
        );
        ran.check(name);
        if bytes < 5 << 20 {
            assert!(
                ran.memory <= MOST_MEMORY,
                "{name}: {arguments:?} took {} bytes for {bytes}",
                ran.memory
            );
        }
        ran
    });
    let _ = std::fs::remove_file(out);
    ran.into()
}

/// Writes a file and runs all commands on it.
fn attack(name: &str, bytes: &[u8]) -> Vec<Ran> {
    let path = folder(&format!("hostile-{name}")).join(format!("{name}.mpr"));
    std::fs::write(&path, bytes).expect("room for a small file");
    let ran = all(name, &path);
    let _ = std::fs::remove_file(path);
    ran
}

/// Asserts that every run refused its file and that the message contains `part`.
#[track_caller]
fn refused(ran: &[Ran], part: &str) {
    for one in ran {
        assert_eq!(one.code, 2, "{}", one.stderr);
        assert!(one.stderr.contains(part), "{}", one.stderr);
    }
}

#[test]
fn long_names_of_many_addresses_are_kept_once_and_cut() {
    let mut made = Made::new();
    let addresses: Vec<u64> = (1..=2_000).collect();
    made.stack(1, &addresses);
    let long = format!("{}\n{}\n7", "f".repeat(3 << 20), "a".repeat(3 << 20));
    made.frame(&long, &addresses);
    made.blocks(100, 1);
    for one in attack("long-names", &made.finish()) {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
}

#[test]
fn many_functions_at_many_addresses_are_kept_once_and_cut() {
    let mut made = Made::new();
    let addresses: Vec<u64> = (1..=2_000).collect();
    made.stack(1, &addresses);
    made.frame(&"f\nf.rs\n1\n".repeat(300_000), &addresses);
    made.blocks(100, 1);
    for one in attack("many-functions", &made.finish()) {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
}

#[test]
fn stacks_that_share_long_names_are_named_once() {
    let mut made = Made::new();
    let name = "f".repeat(8 << 10);
    made.frame(&vec![name.as_str(); 3 * 200].join("\n"), &[1]);
    for number in 1..=20_000 {
        made.stack(number, &[1; 20]);
    }
    made.blocks(20_000, 20_000);
    let ran = attack("shared-names", &made.finish());
    let (convert, others) = ran.split_last().expect("several commands");
    for one in others {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
    // A snapshot repeats the 4,000 names of a stack for each block.
    refused(std::slice::from_ref(convert), "its events would take more than");
}

#[test]
fn addresses_that_share_long_names_are_refused() {
    let mut made = Made::new();
    let name = "f".repeat(8 << 10);
    let addresses: Vec<u64> = (1..=20_000).collect();
    made.frame(&vec![name.as_str(); 3 * 200].join("\n"), &addresses);
    for address in addresses {
        made.stack(address as u32, &[address]);
    }
    made.blocks(20_000, 20_000);
    let ran = attack("shared-by-addresses", &made.finish());
    refused(&ran, "the names of its addresses would take more than");
}

#[test]
fn millions_of_rows_in_a_few_kilobytes_are_refused() {
    let file = build::raw(4 << 20, |_| Kind::Alloc as u8, -1, &[]);
    assert!(file.len() < 100 << 10, "{}", file.len());
    refused(
        &attack("rows-in-a-batch", &file),
        "a batch claims to have 4194304 rows",
    );
    let mut made = Made::new();
    made.blocks(4 << 20, 0);
    refused(&attack("rows-in-many-batches", &made.finish()), "refused: ");
}

#[test]
fn blocks_that_all_live_at_once_stay_within_the_bound_or_are_refused() {
    let mut made = Made::new();
    made.random_blocks(200_000);
    let file = made.finish();
    assert!(file.len() < 5 << 20, "{}", file.len());
    attack("all-live", &file);
}

#[test]
fn a_name_longer_than_a_batch_is_refused() {
    let mut made = Made::new();
    made.tag(1, &"t".repeat(200 << 20));
    made.blocks(10, 0);
    refused(&attack("long-tag", &made.finish()), "a column claims to have");
    let mut made = Made::new();
    for number in 1..=10 {
        made.tag(number, &"t".repeat(20 << 20));
    }
    made.tagged(1_000, 10, 1);
    for one in attack("long-tags", &made.finish()) {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
}

#[test]
fn a_long_fact_is_refused_and_not_kept_for_each_device() {
    let mut made = Made::with_fact(&"x".repeat(3 << 20));
    made.devices(1_000);
    refused(&attack("long-fact", &made.finish()), "its facts have 3145");
}

#[test]
fn names_are_kept_once_and_not_for_each_device() {
    let mut made = Made::new();
    made.devices(1_000);
    for number in 1..=30 {
        made.tag(number, &format!("{number:09}{}", "t".repeat(4_000)));
    }
    made.tagged(30_000, 30, 1_000);
    for one in attack("names-of-devices", &made.finish()) {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
}

#[test]
fn more_devices_than_any_machine_has_are_refused() {
    for (name, devices) in [("devices-20000", 20_000), ("devices-100000", 100_000)] {
        let mut made = Made::new();
        made.devices(devices);
        refused(&attack(name, &made.finish()), "more than 1024 devices");
    }
}

#[test]
fn a_million_pools_of_one_device_take_limited_memory() {
    let mut made = Made::new();
    made.pools(1 << 20, |_| 0);
    let file = made.finish();
    assert!(file.len() > 5 << 20, "{}", file.len());
    for one in attack("pools-1048576", &file) {
        assert!([0, 2].contains(&one.code), "{}: {}", one.code, one.stderr);
    }
}

#[test]
fn a_thousand_devices_are_read_and_converted() {
    let mut made = Made::new();
    made.devices(1_000);
    made.tagged(20_000, 1, 1_000);
    for one in attack("devices-1000", &made.finish()) {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
}

#[test]
fn unknown_columns_are_not_decoded() {
    for (name, extra) in [
        ("unaligned-large-list", Extra::UnalignedLargeList),
        ("union-without-types", Extra::UnionWithoutTypes),
    ] {
        let file = build::raw(1_001, |_| Kind::Alloc as u8, -1, &[extra]);
        for one in attack(name, &file) {
            assert_eq!(one.code, 0, "{}", one.stderr);
        }
    }
}

/// Makes a named pipe.
fn pipe(path: &Path) {
    let _ = std::fs::remove_file(path);
    let made = Command::new("mkfifo")
        .arg(path)
        .status()
        .expect("mkfifo is there");
    assert!(made.success());
}

/// Returns a recording of some blocks whose stack is in a module of that path.
fn with_module(path: &str) -> Vec<u8> {
    let mut made = Made::new();
    made.module("aabbccdd", path);
    made.stack(1, &[0x1500]);
    made.blocks(3, 1);
    made.finish()
}

#[test]
fn modules_that_are_not_regular_files_are_not_opened() {
    let own = folder("hostile-modules");
    let fifo = own.join("fifo.so");
    pipe(&fifo);
    let fifo = fifo.display().to_string();
    for (name, path) in [
        ("module-fifo", fifo.as_str()),
        ("module-device", "/dev/zero"),
        ("module-relative", "Cargo.toml"),
    ] {
        let ran = attack(name, &with_module(path));
        for one in &ran {
            assert_eq!(one.code, 0, "{}", one.stderr);
        }
        let convert = ran.last().expect("commands were run");
        assert!(
            convert.stderr.contains("its file is not on this machine"),
            "{}",
            convert.stderr
        );
    }
}

#[test]
fn sections_of_a_module_together_are_bounded() {
    let path = folder("hostile-sections").join("bomb.so");
    let elf = build::elf(0xaabb_ccdd, 1 << 30);
    assert!(elf.len() < 300 << 10, "{}", elf.len());
    std::fs::write(&path, elf).expect("room for a small file");
    for one in attack("module-sections", &with_module(&path.display().to_string())) {
        assert_eq!(one.code, 0, "{}", one.stderr);
    }
}

/// Writes a recording of two blocks as CSV and returns its path.
fn two_blocks(folder: &Path) -> String {
    support::small(folder, "two.csv")
}

#[test]
fn endless_plans_and_costs_are_refused() {
    let own = folder("hostile-plans");
    let recording = two_blocks(&own);
    let fifo = own.join("fifo");
    pipe(&fifo);
    let fifo = fifo.display().to_string();
    let long = own.join("long");
    File::create(&long)
        .and_then(|file| file.set_len(100 << 30))
        .expect("a file with a hole");
    let long = long.display().to_string();
    for option in ["--plan", "--costs"] {
        for path in [fifo.as_str(), "/dev/zero", long.as_str()] {
            let words = ["replay", &recording, "-p", "planned", option, path];
            let ran = limited(&words.map(str::to_owned));
            ran.check(option);
            assert_eq!(ran.code, 2, "{option} {path}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_plan_whose_blocks_share_one_place_is_read_in_time() {
    let own = folder("hostile-plan");
    let recording = two_blocks(&own);
    let plan = own.join("plan");
    let lines = "512 0 1 0\n".repeat(300_000);
    std::fs::write(&plan, format!("millpond-plan 1\n{lines}")).expect("room");
    let plan = plan.display().to_string();
    let ran = limited(&["replay", &recording, "-p", "planned", "--plan", &plan].map(str::to_owned));
    ran.check("plan");
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("plan"), "{}", ran.stderr);
}

#[test]
fn a_sparse_json_file_is_refused_at_once() {
    let own = folder("hostile-json");
    for (name, begins) in [("word", "["), ("text", "[\""), ("skipped", "{\"a\": [\"")] {
        let path: PathBuf = own.join(format!("{name}.json"));
        let mut file = File::create(&path).expect("a file");
        file.write_all(begins.as_bytes()).expect("room");
        file.set_len(100 << 30).expect("a file with a hole");
        let ran = limited(&["info".to_owned(), path.display().to_string()]);
        ran.check(name);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
    }
}

#[test]
fn sums_beyond_64_bits_are_reported() {
    let path = folder("hostile-sums").join("sums.csv");
    let rows: String = (0..6)
        .map(|id| format!("{id},alloc,{id},4611686018427387904\n"))
        .collect();
    std::fs::write(&path, format!("time_us,action,id,bytes\n{rows}")).expect("room");
    let info = limited(&["info".to_owned(), path.display().to_string()]);
    assert_eq!(info.code, 0, "{}", info.stderr);
    let words = info.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("more than 2^64 bytes were held after 3 allocations; sums stop at that number"),
        "{words}"
    );
}
