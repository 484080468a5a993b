//! Builds the probes, tests, benches and replays for a real card into one folder, and runs them if this machine has a device. The
//! folder needs neither Rust nor a network on the machine where it runs.

use crate::shell::{root, step, target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The recordings that the folder contains.
const RECORDINGS: [&str; 2] = ["gnn_sage_sampled", "llama8b_fsdp_streams"];
/// The prefix of the functions that only the emulated driver has.
const OWN: &[u8] = b"millpond_emu_";
/// The names, after the prefix, of the functions that replace the code of kernels. A card runs that code and the emulated driver does not,
/// so tests that launch kernels need these functions in a rehearsal.
const KERNELS: [&[u8]; 3] = [b"register\0", b"read\0", b"write\0"];
/// The prefix that replaces [`OWN`]. It has the same length, and no program looks for it.
const HIDDEN: &[u8] = b"millpond_hid_";
/// The name by which programs ask the loader for the driver.
const DRIVER: &str = "libcuda.so.1";
/// The largest size of the compressed folder, in bytes.
const MOST: u64 = 48 << 20;

const USAGE: &str = "usage: cargo xtask card [--build] [--rehearse] [--quick] [--dev] [--nvrtc] [--steps 1,3,6] [--minutes N]";

/// The parsed arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    build_only: bool,
    rehearse: bool,
    dev: bool,
    /// Whether the folder contains NVRTC, for a machine without it.
    nvrtc: bool,
    /// The arguments that are passed to the runner.
    more: Vec<String>,
}

fn wanted(args: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--build" => wanted.build_only = true,
            "--rehearse" => wanted.rehearse = true,
            "--dev" => wanted.dev = true,
            "--nvrtc" => wanted.nvrtc = true,
            "--quick" => wanted.more.push(arg.clone()),
            "--steps" | "--minutes" => {
                let value = args.next().ok_or(USAGE)?;
                wanted.more.extend([arg.clone(), value.clone()]);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    if wanted.build_only && wanted.rehearse {
        return Err(USAGE.to_owned());
    }
    Ok(wanted)
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let wanted = wanted(args)?;
    let folder = target().join("card");
    build(&folder, wanted.dev)?;
    if wanted.nvrtc {
        nvrtc(&folder.join("lib"))?;
    }
    let bytes = pack(&folder)?;
    println!(
        "{}: {:.1} MiB",
        folder.with_extension("tar.gz").display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > MOST {
        return Err(format!(
            "the compressed folder has {bytes} bytes, and the limit is {MOST}"
        ));
    }
    if wanted.build_only {
        return Ok(());
    }
    let runner = text(&folder.join("millpond-card"));
    let mut arguments = vec!["run".to_owned()];
    arguments.extend(wanted.more);
    if wanted.rehearse {
        let stage = target().join("card-rehearsal");
        let driver = emulated(&stage)?;
        arguments.extend(
            [
                "--rehearse",
                "--driver",
                &text(&driver),
                "--out",
                &text(&stage.join("out")),
            ]
            .map(str::to_owned),
        );
        // The emulated driver runs work on its own threads, so that it is asynchronous as on a card.
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        return crate::shell::step_with(
            &runner,
            &arguments,
            &[("MILLPOND_CUDA_EMU", "streams:threads,memory:80G")],
        );
    }
    let found = Command::new(&runner)
        .arg("device")
        .output()
        .map_err(|e| format!("{runner} could not start: {e}"))?;
    if !found.status.success() {
        println!(
            "{}\nCopy {} to a machine with a card and run ./run there, or rehearse it here with --rehearse.",
            String::from_utf8_lossy(&found.stderr).trim_end(),
            folder.display()
        );
        return Ok(());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    step(&runner, &arguments)
}

/// Puts everything that runs on the other machine into the folder.
fn build(folder: &Path, dev: bool) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    for inside in ["tests", "traces"] {
        fs::create_dir_all(folder.join(inside)).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let programs = "build -p millpond-card -p millpond-cli --features millpond-cli/bench --bins";
    let programs: Vec<&str> = programs.split(' ').collect();
    let profile = if dev { "dev" } else { "release" };
    step("cargo", &[&programs[..], &["--profile", profile]].concat())?;
    let built = target().join(if dev { "debug" } else { "release" });
    for name in ["millpond-card", "millpond"] {
        strip(&built.join(name), &folder.join(name))?;
    }
    for (name, path) in tests()? {
        strip(&path, &folder.join("tests").join(name))?;
    }
    for name in RECORDINGS {
        let file = format!("{name}.csv.zst");
        copy(
            &root().join("traces").join(&file),
            &folder.join("traces").join(&file),
        )?;
    }
    copy(
        &root().join("xtask/card/torch_replay.py"),
        &folder.join("torch_replay.py"),
    )?;
    copy(&root().join("xtask/card/run"), &folder.join("run"))
}

/// Copies NVRTC into the folder. It comes from its Python package, as for `cargo xtask ptx`, and is not part of this repository.
fn nvrtc(to: &Path) -> Result<(), String> {
    crate::ptx::offer();
    let library = crate::ptx::installed().ok_or("NVRTC is not installed")?;
    let from = library.parent().unwrap_or(&library);
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    let files = fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))?;
    for file in files.flatten().map(|file| file.path()) {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        if let Some(name) = name.filter(|name| name.starts_with("libnvrtc")) {
            copy(&file, &to.join(name))?;
        }
    }
    Ok(())
}

/// Builds the test programs of CUDA devices and returns their names and paths.
fn tests() -> Result<Vec<(String, PathBuf)>, String> {
    let arguments: Vec<&str> = crate::test::CUDA.split(' ').collect();
    step("cargo", &[&arguments[..], &["--no-run"]].concat())?;
    // The programs are built by now, so this call only returns their paths.
    let output = Command::new("cargo")
        .args(&arguments)
        .args(["--no-run", "--message-format=json"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo could not start: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let found: Vec<_> = said.lines().filter_map(program).collect();
    let wanted = arguments.iter().filter(|argument| **argument == "--test").count();
    if found.len() != wanted {
        return Err(format!(
            "cargo names {} test programs instead of {wanted}",
            found.len()
        ));
    }
    Ok(found)
}

/// Returns the name and the path of the test program that a line of cargo's messages is about.
fn program(line: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let path = message["executable"].as_str()?;
    let name = message["target"]["name"].as_str()?;
    (message["target"]["kind"][0] == "test").then(|| (name.to_owned(), PathBuf::from(path)))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to)
        .map(|_| ())
        .map_err(|e| format!("{}: {e}", from.display()))
}

/// Copies a program without its symbols and debug information.
fn strip(from: &Path, to: &Path) -> Result<(), String> {
    let stripped = Command::new("strip").arg("-o").arg(to).arg(from).status();
    match stripped {
        Ok(status) if status.success() => Ok(()),
        // The unstripped program is larger and works as well.
        _ => copy(from, to),
    }
}

/// Packs the folder into an archive next to it, to be copied to the other machine, and returns the archive's size in bytes.
fn pack(folder: &Path) -> Result<u64, String> {
    let archive = folder.with_extension("tar.gz");
    let made = Command::new("tar")
        .arg("-czf")
        .arg(&archive)
        .arg("-C")
        .arg(folder.parent().unwrap_or(folder))
        .arg(folder.file_name().unwrap_or_default())
        .status();
    let bytes = match made {
        Ok(status) if status.success() => fs::metadata(&archive).map(|file| file.len()),
        Ok(status) => return Err(format!("tar failed ({status})")),
        Err(error) => Err(error),
    };
    bytes.map_err(|e| format!("{}: {e}", archive.display()))
}

/// Puts the emulated driver where a rehearsal finds it. The probes use it unchanged. The tests use a copy in which all of its own
/// functions except [`KERNELS`] are hidden, so that they find what they find on a card.
fn emulated(stage: &Path) -> Result<PathBuf, String> {
    step("cargo", &["build", "-p", "millpond-cuda-emu"])?;
    let bare = stage.join("bare");
    fs::create_dir_all(&bare).map_err(|e| format!("{}: {e}", bare.display()))?;
    let library = target().join("debug/libmillpond_cuda_emu.so");
    let bytes = fs::read(&library).map_err(|e| format!("{}: {e}", library.display()))?;
    let write =
        |path: &Path, bytes: &[u8]| fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()));
    let hidden = hide(bytes.clone());
    for (folder, bytes) in [(stage, &bytes), (bare.as_path(), &hidden)] {
        write(&folder.join(DRIVER), bytes)?;
        // Both names refer to one file, because two files would be loaded as two drivers.
        let link = folder.join("libcuda.so");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(DRIVER, &link).map_err(|e| format!("{}: {e}", link.display()))?;
    }
    Ok(stage.join(DRIVER))
}

/// Renames the emulator's own functions, except [`KERNELS`], so that no program finds them. Returns the changed library.
fn hide(mut library: Vec<u8>) -> Vec<u8> {
    let places: Vec<usize> = library
        .windows(OWN.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == OWN)
        .map(|(at, _)| at)
        .filter(|at| {
            let rest = &library[at + OWN.len()..];
            !KERNELS.iter().any(|name| rest.starts_with(name))
        })
        .collect();
    for at in places {
        library[at..at + OWN.len()].copy_from_slice(HIDDEN);
    }
    library
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests_of_card {
    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments_are_read() {
        let read = wanted(&args("--rehearse --quick --steps 1,3")).expect("they are right");
        assert!(read.rehearse && !read.build_only);
        assert_eq!(read.more, args("--quick --steps 1,3"));
        for bad in ["--steps", "--rehearsal", "7", "--build --rehearse"] {
            assert!(wanted(&args(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn functions_are_hidden_by_names_of_the_same_length() {
        assert_eq!(OWN.len(), HIDDEN.len());
        let hidden = hide(b"\0millpond_emu_calls\0millpond_emu_read\0millpond_emu_resident\0".to_vec());
        assert_eq!(
            hidden,
            b"\0millpond_hid_calls\0millpond_emu_read\0millpond_hid_resident\0"
        );
    }

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"cuda"},"executable":"/x/cuda-1"}"#;
        assert_eq!(
            program(line),
            Some(("cuda".to_owned(), PathBuf::from("/x/cuda-1")))
        );
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
