//! Tests `millpond cuda-emu`: the environment of the command, and its exit code.

mod support;

use support::{command, folder};

/// Runs a shell with a file in place of the emulator. Returns exit code, stdout and stderr.
fn shell(name: &str, options: &[&str], script: &str) -> (i32, String, String) {
    let library = folder(name).join("libemu.so");
    std::fs::write(&library, "").expect("written");
    let arguments = [&["cuda-emu"], options, &["--", "sh", "-c", script]].concat();
    let output = command(&arguments)
        .env("MILLPOND_CUDA_EMU_LIB", &library)
        .env("LD_LIBRARY_PATH", "/elsewhere")
        .output()
        .expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code().expect("no signal"),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_command_finds_the_emulator_as_the_driver() {
    let script = "echo $LD_LIBRARY_PATH; d=${LD_LIBRARY_PATH%%:*}; readlink $d/libcuda.so $d/libcuda.so.1; \
                  echo $MILLPOND_CUDA_EMU; exit 7";
    let (code, stdout, stderr) = shell("cuda_emu_finds", &["-o", "devices:3"], script);
    assert_eq!((code, stderr.as_str()), (7, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{stdout}");
    let place = lines[0]
        .strip_suffix(":/elsewhere")
        .expect("the others come behind");
    assert!(!std::path::Path::new(place).exists(), "{place} is left");
    assert!(
        lines[1].ends_with("cuda_emu_finds/libemu.so") && lines[1] == lines[2],
        "{stdout}"
    );
    assert_eq!(lines[3], "devices:3");
}

#[test]
fn signals_and_a_missing_library_or_command_are_reported() {
    let (code, _, _) = shell("cuda_emu_signal", &[], "kill -9 $$");
    assert_eq!(code, 128 + 9);
    let missing = command(&["cuda-emu", "--", "true"])
        .env("MILLPOND_CUDA_EMU_LIB", "/nowhere/lib.so")
        .output();
    let missing = missing.expect("the program starts");
    assert_eq!(missing.status.code(), Some(2));
    let stderr = String::from_utf8(missing.stderr).expect("UTF-8");
    assert!(
        stderr.contains("/nowhere/lib.so") && stderr.lines().count() == 1,
        "{stderr}"
    );
    let (code, _, stderr) = support::run(&["cuda-emu", "--"]);
    assert!(code == 2 && stderr.lines().count() == 1, "{stderr}");
}

/// Returns the path of the emulator that cargo builds next to this test.
#[cfg(feature = "bench")]
fn emulator() -> std::path::PathBuf {
    let here = std::env::current_exe().expect("a program");
    let library = here.with_file_name("libmillpond_cuda_emu.so");
    assert!(library.exists(), "the emulator is not built");
    library
}

#[test]
#[cfg(feature = "bench")]
fn bench_transfer_compares_copies_with_the_link() {
    let bench = [env!("CARGO_BIN_EXE_millpond"), "bench", "transfer", "--quick"];
    let run = |more: &[&str]| {
        let arguments = [&["cuda-emu", "-o", "link:2", "--"], bench.as_slice(), more].concat();
        let mut command = command(&arguments);
        let output = command.env("MILLPOND_CUDA_EMU_LIB", emulator()).output();
        let output = output.expect("the program starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = run(&[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(
        stdout.contains("The link: 2.0 GB/s") && stdout.contains("modelled"),
        "{stdout}"
    );
    for kind in [
        "weights, bf16",
        "token ids, i64",
        "95 % zeros, f32",
        "one number, f32",
    ] {
        let rows = stdout.lines().filter_map(|line| line.strip_prefix(kind));
        let rows: Vec<Vec<f64>> = rows
            .map(|row| {
                row.split_whitespace()
                    .map(|figure| figure.parse().expect("a figure"))
                    .collect()
            })
            .collect();
        let [packed, whole] = &rows[..] else {
            panic!("{kind}: {stdout}");
        };
        assert!(packed.len() == 11 && packed[0] < 0.7, "{stdout}");
        // For each link: the plain copy, and the chosen one.
        assert!(
            whole.len() == 6 && whole.iter().all(|rate| *rate > 0.0),
            "{stdout}"
        );
    }
    let line = stdout.lines().find_map(|line| line.strip_prefix("16 MiB"));
    let rates: Vec<f64> = line
        .expect("a size")
        .split_whitespace()
        .map(|rate| rate.parse().expect("a rate"))
        .collect();
    // Pinned, staged and ordinary memory, first to the device and then back.
    for way in rates.chunks_exact(3) {
        let (pinned, staged, ordinary) = (way[0], way[1], way[2]);
        assert!(
            pinned > 1.8 && pinned <= 2.0 && staged >= 0.9 * pinned,
            "{stdout}"
        );
        assert!(ordinary < 0.55 * pinned, "{stdout}");
    }
    assert_eq!(rates.len(), 7, "{stdout}");
    let (code, _, stderr) = run(&["--device", "cuda:7"]);
    assert!(
        code == Some(1) && stderr.contains("there is no CUDA device 7"),
        "{stderr}"
    );
    let (code, _, stderr) = run(&["--device", "gpu"]);
    assert!(code == Some(2) && stderr.contains("cuda:0"), "{stderr}");
}
