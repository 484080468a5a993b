//! Programs that this command starts with a preloaded library.

use crate::exit::CliError;
use object::read::elf::FileHeader;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the error for a program that could not be started.
pub(crate) fn not_started(program: &OsStr, source: std::io::Error) -> CliError {
    match source.kind() {
        ErrorKind::NotFound => {
            let name = program.display();
            // The system returns the same error if the program exists but its interpreter or loader does not.
            CliError::Usage(match found(program).filter(|path| path.exists()) {
                Some(path) => format!(
                    "{} is there, but {} is not",
                    path.display(),
                    interpreter(&path).map_or_else(
                        || "the interpreter or loader that it names".to_owned(),
                        |interpreter| format!("its interpreter {interpreter}")
                    )
                ),
                None => {
                    format!("there is no program {name}; write the program and its arguments after --")
                }
            })
        }
        _ => CliError::Open {
            path: PathBuf::from(program),
            source,
        },
    }
}

/// Returns the path of a library of this workspace: the value of `variable`, or the file next to this program.
pub(crate) fn library(name: &str, package: &str, variable: &str) -> Result<PathBuf, CliError> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .map_err(|source| CliError::Open { path, source });
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.to_path_buf()));
    let places = beside
        .iter()
        .flat_map(|folder| ["", "deps", "../lib"].map(|place| folder.join(place).join(name)));
    let found = places.filter_map(|place| place.canonicalize().ok()).next();
    found.ok_or_else(|| {
        CliError::Usage(format!(
            "{name} is not in the folder of this program: build it with `cargo build -p {package}`, or name it in {variable}"
        ))
    })
}

/// Returns the libraries to preload: ours, and those that are preloaded anyway.
pub(crate) fn preload(library: &Path) -> Result<OsString, CliError> {
    let mut all = library.as_os_str().to_os_string();
    if all
        .as_encoded_bytes()
        .iter()
        .any(|byte| matches!(byte, b' ' | b':'))
    {
        return Err(CliError::Usage(format!(
            "the loader cannot preload {}, because its path has a space or a colon; use another folder",
            all.display()
        )));
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(all)
}

/// Returns the reason why the loader preloads nothing into a program, if there is one.
pub(crate) fn why_not_preloaded(program: &OsStr) -> Option<String> {
    let path = found(program)?;
    let name = program.display();
    if fs::metadata(&path).is_ok_and(|file| file.mode() & 0o6000 != 0) {
        return Some(format!(
            "{name} runs with another user's rights, so the loader preloads nothing into it; run the program that it starts directly"
        ));
    }
    is_static(&path).then(|| {
        format!(
            "{name} is linked statically, so the loader preloads nothing into it; only dynamically linked programs that it starts are covered"
        )
    })
}

/// Returns the file that a program's name means.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// Returns the first bytes of a file, which name its interpreter or loader.
fn start(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .ok()?
        .take(64 << 10)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Returns the interpreter that the first line of a script names.
fn interpreter(path: &Path) -> Option<String> {
    let start = start(path)?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    // The system takes a carriage return as a part of the name, so it is shown.
    let name = line
        .trim_ascii_start()
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .next()?;
    Some(name.escape_ascii().to_string())
}

/// Returns whether a file is a program without a loader.
fn is_static(path: &Path) -> bool {
    use object::elf::{FileHeader64, PT_INTERP};
    use object::read::elf::ProgramHeader;
    let Some(bytes) = start(path) else { return false };
    let Ok(header) = FileHeader64::<object::Endianness>::parse(&*bytes) else {
        return false;
    };
    let Ok(endian) = header.endian() else { return false };
    header
        .program_headers(endian, &*bytes)
        .is_ok_and(|headers| headers.iter().all(|header| header.p_type(endian) != PT_INTERP))
}
