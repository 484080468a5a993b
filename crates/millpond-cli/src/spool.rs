//! Copies standard input to a temporary file, because most commands read a recording several times.

use crate::exit::CliError;
use flate2::read::MultiGzDecoder;
use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The path that stands for `-`.
pub(crate) const STDIN: &str = "/dev/stdin";

/// The most bytes that are copied.
const MOST: u64 = 64 << 30;
/// The most bytes to which a byte of a compressed recording may grow, beyond the first [`UNLIMITED`] bytes.
const EXPANSION: u64 = 100;
/// The size up to which a compressed recording may grow in any case.
const UNLIMITED: u64 = 16 << 20;

/// The first bytes of a Millpond recording.
const RECORDING: [u8; 4] = [0xff; 4];

/// The copy, which has no name. The system removes it when the program ends.
static COPY: OnceLock<(PathBuf, File)> = OnceLock::new();

/// Returns the path at which a recording can be read several times. Standard input is copied first if it is a pipe.
pub(crate) fn rereadable(path: &Path) -> Result<PathBuf, CliError> {
    let is_stdin = path == Path::new(STDIN);
    let open = |source| CliError::Open {
        path: path.to_owned(),
        source,
    };
    if !is_stdin || std::fs::metadata(path).map_err(open)?.is_file() {
        return Ok(path.to_owned());
    }
    if let Some((copy, _)) = COPY.get() {
        return Ok(copy.clone());
    }
    let copied = copy_stdin().map_err(|source| CliError::Open {
        path: "standard input".into(),
        source,
    })?;
    Ok(COPY.get_or_init(|| copied).0.clone())
}

fn copy_stdin() -> io::Result<(PathBuf, File)> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let why = "it is a terminal; pipe a recording into this command";
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let (mut file, bytes) = copy(stdin.lock(), MOST, "it")?;
    if bytes == 0 {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "it is empty; pipe a recording into this command",
        ));
    }
    // A compressed Millpond recording cannot be read in place. Readers of other formats decompress.
    if let Some(mut plain) = decompressed(&mut file)? {
        let mut first = Vec::new();
        plain
            .by_ref()
            .take(RECORDING.len() as u64)
            .read_to_end(&mut first)?;
        if first == RECORDING {
            let most = MOST.min(UNLIMITED.saturating_add(bytes.saturating_mul(EXPANSION)));
            file = copy(first.as_slice().chain(plain), most, "the decompressed recording")?.0;
        }
    }
    Ok((path_of(&file)?, file))
}

/// Returns a reader of the decompressed contents, or `None` if the file is not compressed.
fn decompressed(file: &mut File) -> io::Result<Option<Box<dyn Read>>> {
    let mut first = [0; 4];
    file.seek(SeekFrom::Start(0))?;
    let is_long = file.read_exact(&mut first).is_ok();
    file.seek(SeekFrom::Start(0))?;
    Ok(match first {
        _ if !is_long => None,
        [0x1f, 0x8b, ..] => Some(Box::new(MultiGzDecoder::new(file.try_clone()?))),
        [0x28, 0xb5, 0x2f, 0xfd] => Some(Box::new(zstd::Decoder::new(file.try_clone()?)?)),
        _ => None,
    })
}

/// Copies at most `most` bytes to a new file without a name. Returns the file and the number of bytes.
fn copy(mut from: impl Read, most: u64, what: &str) -> io::Result<(File, u64)> {
    let folder = std::env::temp_dir();
    let full = |error: Error| {
        let why = format!(
            "cannot copy it to {}: {error}; set TMPDIR to a folder with more space",
            folder.display()
        );
        Error::new(error.kind(), why)
    };
    let mut file = unnamed(&folder).map_err(full)?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0u64;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((file, bytes)),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes = bytes.saturating_add(read as u64);
        if bytes > most {
            let why = format!("{what} has more than {most} bytes; save it as a file");
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        let piece = buffer.get(..read).unwrap_or_default();
        file.write_all(piece).map_err(full)?;
    }
}

/// Creates a file that only this program can open, and removes its name.
fn unnamed(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    for attempt in 0..100 {
        let path = folder.join(format!("millpond-{}-{attempt}", std::process::id()));
        match options.open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::from(ErrorKind::AlreadyExists))
}

/// Returns a path that opens the file again.
#[cfg(target_os = "linux")]
fn path_of(file: &File) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    Ok(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
}

#[cfg(not(target_os = "linux"))]
fn path_of(_: &File) -> io::Result<PathBuf> {
    let why = "this system cannot read it several times; save it as a file";
    Err(Error::new(ErrorKind::Unsupported, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_beyond_the_limit_is_an_error() {
        let (mut file, bytes) = copy(&[7u8; 3000][..], 3000, "it").expect("copied");
        file.seek(SeekFrom::Start(0)).expect("a file");
        let mut read = Vec::new();
        file.read_to_end(&mut read).expect("a file");
        assert_eq!((bytes, read), (3000, vec![7; 3000]));
        let error = copy(&[7u8; 3000][..], 2999, "it").expect_err("too long");
        assert!(
            error.to_string().contains("it has more than 2999 bytes"),
            "{error}"
        );
    }

    #[test]
    fn the_error_names_a_folder_that_cannot_be_written() {
        let error = unnamed(Path::new("/nonexistent")).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
