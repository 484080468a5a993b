//! The C library as users install it: the shared library, its headers, and the files for pkg-config and CMake.

mod install;

use crate::shell::{Result, root, shell, target};
use std::path::PathBuf;
use xshell::cmd;

/// Builds the C library and installs it, by default below `target/c-library`.
pub(crate) fn run(arguments: &[String]) -> Result {
    let (mut prefix, mut release) = (target().join("c-library"), false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.as_slice().first()) {
            ("--release", _) => release = true,
            ("--prefix", Some(folder)) => {
                prefix = std::path::absolute(PathBuf::from(folder))?;
                arguments.next();
            }
            _ => {
                return Err("`cargo xtask c-library` takes --prefix FOLDER and --release, or nothing".into());
            }
        }
    }
    let sh = shell()?;
    let (profile, folder) = match release {
        true => (Some("--release"), "release"),
        false => (None, "debug"),
    };
    cmd!(sh, "cargo build -p millpond-c {profile...}").run()?;
    let archive = target().join(folder).join("libmillpond_c.a");
    let library = install::install(&archive, &root().join("crates/millpond-c"), &prefix)?;
    println!("installed {}", library.display());
    Ok(())
}
