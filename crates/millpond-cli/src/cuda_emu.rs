//! `millpond cuda-emu`: runs a command with the emulated CUDA driver in place of the real one.

use crate::args::CudaEmuArgs;
use crate::exit::{CliError, Exit};
use crate::program::library;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file name of the emulator's library, as cargo builds it.
const LIBRARY: &str = "libmillpond_cuda_emu.so";
/// The variable that contains the path of the library.
const LIBRARY_VARIABLE: &str = "MILLPOND_CUDA_EMU_LIB";
/// The variable with the emulator's options.
const OPTIONS_VARIABLE: &str = "MILLPOND_CUDA_EMU";
/// The file names by which clients find the driver and its management library. The emulator has a few functions of that library.
const DRIVER: [&str; 3] = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"];

pub(crate) fn command(args: &CudaEmuArgs) -> Result<Exit, CliError> {
    let library = library(LIBRARY, "millpond-cuda-emu", LIBRARY_VARIABLE)?;
    let folder = Folder::with(&library)?;
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| CliError::Usage("cuda-emu takes a command, after --".to_owned()))?;
    let mut command = Command::new(program);
    command.args(arguments).env(
        "LD_LIBRARY_PATH",
        folder.before(std::env::var_os("LD_LIBRARY_PATH")),
    );
    if !args.options.is_empty() {
        command.env(OPTIONS_VARIABLE, args.options.join(","));
    }
    let status = command.status().map_err(|source| CliError::Open {
        path: PathBuf::from(program),
        source,
    })?;
    // Like shells, this returns 128 plus the signal's number for a command that a signal ended.
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    Ok(Exit::Other(u8::try_from(code).unwrap_or(1)))
}

/// A folder in which a loader finds the emulator under the driver's names. Dropping this removes the folder.
struct Folder(PathBuf);

impl Folder {
    fn with(library: &Path) -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("millpond-cuda-emu-{}", std::process::id()));
        let failed = |source| CliError::Write {
            what: path.display().to_string(),
            source,
        };
        // A folder that already exists may belong to another user, and the loader would load files from it.
        fs::create_dir(&path).map_err(failed)?;
        let folder = Self(path.clone());
        for name in DRIVER {
            symlink(library, folder.0.join(name)).map_err(failed)?;
        }
        Ok(folder)
    }

    /// Returns the loader's path with this folder first.
    fn before(&self, others: Option<OsString>) -> OsString {
        let mut path = self.0.clone().into_os_string();
        if let Some(others) = others.filter(|others| !others.is_empty()) {
            path.push(":");
            path.push(others);
        }
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
