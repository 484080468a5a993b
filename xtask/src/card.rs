//! Builds the probes, tests, benches and replays for a real card into one folder, and runs them if this machine has a device. The
//! folder needs neither Rust nor a network on the machine where it runs.

use crate::shell::{Result, build_emulator, link, shell, target};
use std::fs;
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

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

fn wanted(args: &[String]) -> Result<Wanted> {
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
            _ => return Err(USAGE.into()),
        }
    }
    if wanted.build_only && wanted.rehearse {
        return Err(USAGE.into());
    }
    Ok(wanted)
}

pub(crate) fn run(args: &[String]) -> Result {
    let wanted = wanted(args)?;
    let sh = &shell()?;
    let folder = target().join("card");
    build(sh, &folder, wanted.dev)?;
    if wanted.nvrtc {
        nvrtc(sh, &folder.join("lib"))?;
    }
    let archive = pack(sh, &folder)?;
    let bytes = fs::metadata(&archive)
        .map_err(|e| format!("{}: {e}", archive.display()))?
        .len();
    println!(
        "{}: {:.1} MiB",
        archive.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > MOST {
        return Err(format!("the compressed folder has {bytes} bytes, and the limit is {MOST}").into());
    }
    if wanted.build_only {
        return Ok(());
    }
    let runner = folder.join("millpond-card");
    let more = wanted.more;
    if wanted.rehearse {
        let stage = target().join("card-rehearsal");
        let (driver, out) = (emulated(sh, &stage)?, stage.join("out"));
        // The emulated driver runs work on its own threads, so that it is asynchronous as on a card.
        cmd!(
            sh,
            "{runner} run {more...} --rehearse --driver {driver} --out {out}"
        )
        .env("MILLPOND_CUDA_EMU", "streams:threads,memory:80G")
        .run()?;
        return Ok(());
    }
    let found = cmd!(sh, "{runner} device").quiet().ignore_status().output()?;
    if !found.status.success() {
        println!(
            "{}\nCopy {} to a machine with a card and run ./run there, or rehearse it here with --rehearse.",
            String::from_utf8_lossy(&found.stderr).trim_end(),
            folder.display()
        );
        return Ok(());
    }
    cmd!(sh, "{runner} run {more...}").run()?;
    Ok(())
}

/// Puts everything that runs on the other machine into the folder.
fn build(sh: &Shell, folder: &Path, dev: bool) -> Result {
    sh.remove_path(folder)?;
    for inside in ["tests", "traces"] {
        sh.create_dir(folder.join(inside))?;
    }
    let (profile, built) = if dev {
        ("dev", "debug")
    } else {
        ("release", "release")
    };
    cmd!(
        sh,
        "cargo build -p millpond-card -p millpond-cli --features millpond-cli/bench --bins --profile {profile}"
    )
    .run()?;
    for name in ["millpond-card", "millpond"] {
        strip(sh, &target().join(built).join(name), &folder.join(name))?;
    }
    for arguments in [crate::test::CUDA, EMULATED] {
        for (name, path) in tests(sh, arguments)? {
            strip(sh, &path, &folder.join("tests").join(name))?;
        }
    }
    for name in RECORDINGS {
        sh.copy_file(format!("traces/{name}.csv.zst"), folder.join("traces"))?;
    }
    for file in ["torch_replay.py", "torch_train.py", "run"] {
        sh.copy_file(format!("xtask/card/{file}"), folder)?;
    }
    Ok(())
}

/// Copies NVRTC into the folder. It comes from its Python package, as for `cargo xtask ptx`, and is not part of this repository.
fn nvrtc(sh: &Shell, to: &Path) -> Result {
    crate::ptx::offer();
    let library = crate::ptx::installed().ok_or("NVRTC is not installed")?;
    let from = library.parent().unwrap_or(&library);
    sh.create_dir(to)?;
    for file in sh.read_dir(from)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("libnvrtc") {
            sh.copy_file(&file, to)?;
        }
    }
    Ok(())
}

/// The emulated driver's tests that a real driver passes too.
const EMULATED: &str = "test -p millpond-cuda-emu --test captures --test found_by_clients";

/// Builds the test programs of these arguments to cargo and returns their names and paths.
fn tests(sh: &Shell, arguments: &str) -> Result<Vec<(String, PathBuf)>> {
    let arguments: &[&str] = &arguments.split(' ').collect::<Vec<_>>();
    cmd!(sh, "cargo {arguments...} --no-run").run()?;
    // The programs are built by now, so this call only returns their paths.
    let said = cmd!(sh, "cargo {arguments...} --no-run --message-format=json")
        .quiet()
        .ignore_stderr()
        .read()?;
    let found: Vec<_> = said.lines().filter_map(program).collect();
    let wanted = arguments.iter().filter(|argument| **argument == "--test").count();
    if found.len() != wanted {
        return Err(format!("cargo names {} test programs instead of {wanted}", found.len()).into());
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

/// Copies a program without its symbols and debug information.
fn strip(sh: &Shell, from: &Path, to: &Path) -> Result {
    if cmd!(sh, "strip -o {to} {from}").quiet().run().is_err() {
        // The unstripped program is larger and works as well.
        sh.copy_file(from, to)?;
    }
    Ok(())
}

/// Packs the folder into an archive next to it, to be copied to the other machine, and returns the archive.
fn pack(sh: &Shell, folder: &Path) -> Result<PathBuf> {
    let archive = folder.with_extension("tar.gz");
    let (parent, name) = (
        folder.parent().unwrap_or(folder),
        folder.file_name().unwrap_or_default(),
    );
    cmd!(sh, "tar -czf {archive} -C {parent} {name}").quiet().run()?;
    Ok(archive)
}

/// Puts the emulated driver where a rehearsal finds it. The probes use it unchanged. The tests use a copy in which all of its own
/// functions except [`KERNELS`] are hidden, so that they find what they find on a card.
fn emulated(sh: &Shell, stage: &Path) -> Result<PathBuf> {
    let library = sh.read_binary_file(build_emulator(sh)?)?;
    let hidden = hide(library.clone());
    for (folder, library) in [(stage.to_path_buf(), library), (stage.join("bare"), hidden)] {
        sh.create_dir(&folder)?;
        sh.write_file(folder.join(DRIVER), library)?;
        // Both names refer to one file, because two files would be loaded as two drivers.
        link(DRIVER, &folder.join("libcuda.so"))?;
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
