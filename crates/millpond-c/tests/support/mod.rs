//! The C library as `cargo xtask c-library` installs it, and programs that use it.

#![allow(dead_code, reason = "each test program uses a part of this")]

#[path = "../../../../xtask/src/c_library/install.rs"]
mod install;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// Returns the folder of the crate.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns an empty folder for a test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Installs the library that this build made below a folder.
pub(crate) fn install(prefix: &Path) -> PathBuf {
    install::install(&archive(), package(), prefix).expect("installed")
}

/// Returns the static library of this build, which is the newest one: Cargo's name for it differs between sets of features.
fn archive() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let beside = fs::read_dir(test.parent().expect("a folder")).expect("the folder of this test");
    let time = |path: &PathBuf| {
        fs::metadata(path)
            .and_then(|of| of.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    beside
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with("libmillpond_c-") && name.ends_with(".a")
        })
        .max_by_key(time)
        .expect("Cargo has built libmillpond_c.a")
}

/// Makes a folder in which a loader finds the emulated CUDA driver.
pub(crate) fn emulated_driver(inside: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let driver = inside.join("driver");
    fs::create_dir_all(&driver).expect("a folder");
    for name in ["libcuda.so.1", "libcuda.so"] {
        let link = driver.join(name);
        let _ = fs::remove_file(&link);
        symlink(test.with_file_name("libmillpond_cuda_emu.so"), link).expect("linked");
    }
    driver
}

/// Returns whether a program is installed. Otherwise prints that the test is skipped.
pub(crate) fn is_installed(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok();
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}

/// Returns a command that finds the library below a prefix and the emulated driver when it runs.
pub(crate) fn command(program: impl AsRef<OsStr>, prefix: &Path) -> Command {
    let driver = emulated_driver(prefix);
    let path = std::env::join_paths([prefix.join("lib"), driver]).expect("paths");
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", path)
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .env_remove("MILLPOND_CONF")
        .env_remove("MILLPOND_RECORD");
    command
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let done: Output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (output, errors) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert!(
        done.status.success(),
        "{command:?}: {}\n{output}\n{errors}",
        done.status
    );
    output.into_owned()
}

/// Compiles a program of C or C++ with the library, without warnings, and returns its path.
pub(crate) fn compile(compiler: &str, prefix: &Path, source: &Path, flags: &[&str]) -> PathBuf {
    let program = prefix.join(source.file_stem().expect("a name"));
    let mut compile = Command::new(compiler);
    compile
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(prefix.join("include"))
        .arg("-L")
        .arg(prefix.join("lib"))
        .args(["-lmillpond", "-ldl"]);
    run(&mut compile);
    program
}
