//! `millpond cuda-emu`: what the command sees, and how it ends.

mod support;

use support::{command, folder};

/// Runs a shell with a file in the emulator's place, and answers code, output and complaints.
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
fn a_signal_and_a_command_that_is_none_are_told() {
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
