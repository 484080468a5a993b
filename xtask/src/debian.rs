//! Installs programs that tests use from Debian's packages, if they are missing. Tests skip checks whose programs are missing.
//!
//! A package with one program is unpacked into the target folder, which needs no privileges. A browser needs libraries of its own, so
//! it is installed, and only by root, because people who work as root on Debian mostly do so in a container.

use crate::shell::{Result, shell, target, works};
use std::path::{Path, PathBuf};
use std::process::Command;
use xshell::cmd;

/// The variable with the folder in which tests look for Prometheus, in addition to the path.
const PROMETHEUS: &str = "MILLPOND_PROMETHEUS";

/// The programs that tests of pages use, and their packages.
const BROWSER: [(&str, &str); 3] = [
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("node", "nodejs"),
];

/// Installs missing programs, or reports which tests are skipped. Returns environment variables for the tests.
pub(crate) fn offer() -> Vec<(&'static str, String)> {
    if let Err(why) = browser() {
        eprintln!("skipped: tests of pages in a browser: {why}");
    }
    match prometheus() {
        Ok(None) => Vec::new(),
        Ok(Some(folder)) => vec![(PROMETHEUS, folder.display().to_string())],
        Err(why) => {
            eprintln!("skipped: the test with Prometheus: {why}");
            Vec::new()
        }
    }
}

fn browser() -> Result {
    let missing: Vec<&str> = BROWSER
        .into_iter()
        .filter(|(program, _)| !works(program, &["--version"]))
        .map(|(_, package)| package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !works("apt-get", &["--version"]) || !is_root() {
        return Err(format!("install {}", missing.join(" and ")).into());
    }
    let sh = shell()?;
    let install = cmd!(sh, "apt-get install --yes --no-install-recommends {missing...}");
    if install.run().is_err() {
        cmd!(sh, "apt-get update").run()?;
        install.run()?;
    }
    Ok(())
}

/// Returns the folder with Prometheus, or `None` if it is on the path or the environment already names its folder.
fn prometheus() -> Result<Option<PathBuf>> {
    if std::env::var_os(PROMETHEUS).is_some() || works("prometheus", &["--version"]) {
        return Ok(None);
    }
    let folder = target().join("debian");
    let programs = folder.join("usr/bin");
    if !programs.join("prometheus").is_file() {
        unpack("prometheus", &folder)?;
    }
    Ok(Some(programs))
}

/// Downloads a package and extracts its files into a folder.
fn unpack(package: &str, folder: &Path) -> Result {
    if !works("apt-get", &["--version"]) || !works("dpkg-deb", &["--version"]) {
        return Err(format!("install {package}").into());
    }
    let sh = shell()?;
    sh.create_dir(folder)?;
    sh.change_dir(folder);
    let download = cmd!(sh, "apt-get download {package}");
    let again = || is_root() && cmd!(sh, "apt-get update").run().is_ok() && download.run().is_ok();
    if !(download.run().is_ok() || again()) {
        return Err(format!("apt-get cannot download {package}").into());
    }
    let of_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    };
    let file = sh.read_dir(folder)?.into_iter().find(of_it);
    let file = file.ok_or_else(|| format!("apt-get downloaded no {package}"))?;
    cmd!(sh, "dpkg-deb --extract {file} {folder}").run()?;
    Ok(())
}

fn is_root() -> bool {
    let told = Command::new("id").arg("-u").output();
    told.is_ok_and(|told| told.stdout.trim_ascii() == b"0")
}
