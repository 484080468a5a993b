//! Runs other programs.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use xshell::{Shell, cmd};

/// The result of a task. The error is shown to the user.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Returns the workspace's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns cargo's target folder.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// Returns a shell in the workspace's folder. It prints the commands that it runs.
pub(crate) fn shell() -> Result<Shell> {
    let sh = Shell::new()?;
    sh.change_dir(root());
    if std::env::var_os("CI").is_some() {
        // CI builds everything once, so incremental compilation would only fill the disk.
        sh.set_var("CARGO_INCREMENTAL", "0");
    }
    Ok(sh)
}

/// Prints a command and runs it in the workspace's folder.
pub(crate) fn step(program: &str, args: &[&str]) -> std::result::Result<(), String> {
    step_with(program, args, &[])
}

/// Like [`step`], with environment variables.
pub(crate) fn step_with(
    program: &str,
    args: &[&str],
    env: &[(&str, &str)],
) -> std::result::Result<(), String> {
    let sh = shell().map_err(|e| e.to_string())?;
    let command = cmd!(sh, "{program} {args...}").envs(env.iter().copied());
    command.run().map_err(|e| e.to_string())
}

/// Returns whether a command runs and succeeds. Its output is not shown.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).current_dir(root()).output();
    output.is_ok_and(|o| o.status.success())
}

/// Installs the nightly toolchain if it is missing.
pub(crate) fn need_nightly(sh: &Shell) -> Result {
    if !works("cargo", &["+nightly", "--version"]) {
        cmd!(sh, "rustup toolchain install nightly --profile minimal").run()?;
    }
    Ok(())
}

/// Builds the emulated CUDA driver. Returns the path of the library.
pub(crate) fn build_emulator(sh: &Shell) -> Result<PathBuf> {
    cmd!(sh, "cargo build -p millpond-cuda-emu").run()?;
    Ok(target().join("debug/libmillpond_cuda_emu.so"))
}

/// Builds the emulated CUDA driver and returns a folder in which a loader finds it.
pub(crate) fn emulated_driver(sh: &Shell) -> Result<PathBuf> {
    link_emulator(&build_emulator(sh)?)
}

/// Makes a folder in which a loader finds the emulator under the names of the driver and of its management library. Cargo does not add
/// this folder to the loader's path.
pub(crate) fn link_emulator(library: &Path) -> Result<PathBuf> {
    let folder = target().join("emulated-driver");
    std::fs::create_dir_all(&folder)?;
    for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        link(library, &folder.join(name))?;
    }
    Ok(folder)
}

/// Returns the files of a folder whose names have this extension, sorted.
pub(crate) fn files(sh: &Shell, folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = sh.read_dir(folder)?;
    files.retain(|file| file.extension().is_some_and(|e| e == extension));
    Ok(files)
}

/// Makes a symbolic link, which replaces an older one.
pub(crate) fn link(to: impl AsRef<Path>, link: &Path) -> Result {
    let _ = std::fs::remove_file(link);
    std::os::unix::fs::symlink(to, link).map_err(|e| format!("{}: {e}", link.display()))?;
    Ok(())
}
