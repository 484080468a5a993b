//! Runs other programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the workspace's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns cargo's target folder.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// Prints a command and runs it in the workspace's folder.
pub(crate) fn step(program: &str, args: &[&str]) -> Result<(), String> {
    step_with(program, args, &[])
}

/// Like [`step`], with environment variables.
pub(crate) fn step_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let line = format!("{program} {}", args.join(" "));
    println!("\n$ {line}");
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).envs(env.iter().copied());
    if std::env::var_os("CI").is_some() {
        // CI builds everything once, so incremental compilation would only fill the disk.
        command.env("CARGO_INCREMENTAL", "0");
    }
    let status = command
        .status()
        .map_err(|e| format!("'{line}' could not start: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("'{line}' failed ({status})"))
    }
}

/// Returns whether a command runs and succeeds. Its output is not shown.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).current_dir(root()).output();
    output.is_ok_and(|o| o.status.success())
}
