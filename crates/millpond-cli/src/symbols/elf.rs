//! The files that contain a module's names, and their sections. Any file may be hostile. No content of a file can make a buffer
//! exceed the limits below, and a file that cannot be parsed gives no names.

use crate::files;
use flate2::read::ZlibDecoder;
use millpond_trace::history::Module;
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Endianness, Object, ObjectSection, ReadCache, ReadRef};
use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes of all sections that are read from one file, decompressed. PyTorch's largest library has half of this.
const MOST_SECTIONS: u64 = 4 << 30;
/// The bytes that the sections of any file may have, however small the file is.
const SHARE: u64 = 64 << 20;
/// The additional bytes that the sections may have for each byte of the file. Decompressed line tables are four times as long, and
/// shared names are copied.
const PER_BYTE: u64 = 16;
/// The folder where distributions install separate debug files, by build id.
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// The reason why a module has no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The recording does not contain its build id.
    NotRecorded,
    /// No file exists at its path.
    Gone,
    /// The file has another build id.
    Differs,
    /// The file has no build id.
    Missing,
    /// The file cannot be parsed.
    Unreadable,
}

impl Refused {
    pub(super) const ALL: [Self; 5] = [
        Self::NotRecorded,
        Self::Gone,
        Self::Differs,
        Self::Missing,
        Self::Unreadable,
    ];
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRecorded => "the recording has no build id for it, so its file cannot be verified",
            Self::Gone => "its file is not on this machine; copy it there, or install its debug file",
            Self::Differs => {
                "its file has another build id now; restore the old file, or install its debug file"
            }
            Self::Missing => "its file no longer has a build id; link it with --build-id",
            Self::Unreadable => "its file is not readable as 64-bit ELF",
        })
    }
}

/// An open file. Only the needed parts of it are read.
pub(super) struct Elf {
    cache: ReadCache<File>,
}

/// A parsed file.
pub(super) type Parsed<'a> = ElfFile64<'a, Endianness, &'a ReadCache<File>>;

impl Elf {
    pub(super) fn open(path: &Path) -> Option<Self> {
        // The path may come from a recording. A relative path refers to a folder of the recorded program. Devices and pipes have no end.
        if !path.is_absolute() {
            return None;
        }
        let file = files::open_regular(path).ok()?;
        Some(Self {
            cache: ReadCache::new(file),
        })
    }

    pub(super) fn parse(&self) -> Option<Parsed<'_>> {
        ElfFile64::parse(&self.cache).ok()
    }

    fn build_id(&self) -> Option<Option<String>> {
        let file = self.parse()?;
        let id = file.build_id().ok()?;
        Some(id.map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// The files that certainly belong to a module: the file itself, and its separate debug file.
pub(super) struct Files {
    pub(super) own: Option<Elf>,
    pub(super) debug: Option<Elf>,
}

/// Searches for a module's files.
pub(super) fn find(module: &Module) -> Result<Files, Refused> {
    let wanted = module.build_id.to_ascii_lowercase();
    if wanted.is_empty() {
        return Err(Refused::NotRecorded);
    }
    let same = |elf: &Elf| matches!(elf.build_id(), Some(Some(found)) if found == wanted);
    let debug = debug_file(&wanted).and_then(|path| Elf::open(&path)).filter(same);
    let own = Elf::open(Path::new(&module.path));
    let why = match &own {
        None => Some(Refused::Gone),
        Some(elf) => match elf.build_id() {
            None => Some(Refused::Unreadable),
            Some(None) => Some(Refused::Missing),
            Some(Some(found)) if found != wanted => Some(Refused::Differs),
            Some(Some(_)) => None,
        },
    };
    match (why, &debug) {
        (None, _) => Ok(Files { own, debug }),
        (Some(_), Some(_)) => Ok(Files { own: None, debug }),
        (Some(why), None) => Err(why),
    }
}

/// Returns the path of the debug file for a build id. Returns `None` if the build id is not hexadecimal.
fn debug_file(id: &str) -> Option<PathBuf> {
    let digits = id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (first, rest) = id.split_at_checked(2).filter(|_| digits)?;
    Some(Path::new(DEBUG).join(first).join(format!("{rest}.debug")))
}

/// The bytes that may still be read from all sections of a file together. A tiny file can claim gigabytes for each of its sections.
pub(super) struct Room(Cell<u64>);

impl Room {
    pub(super) fn of(file: &Parsed<'_>) -> Self {
        let bytes = ReadRef::len(file.data()).unwrap_or(0);
        let room = SHARE.saturating_add(bytes.saturating_mul(PER_BYTE));
        Self(Cell::new(room.min(MOST_SECTIONS)))
    }

    /// Takes `bytes` of the remaining bytes. Returns `None` if fewer are left.
    pub(super) fn take(&self, bytes: u64) -> Option<()> {
        self.0.set(self.0.get().checked_sub(bytes)?);
        Some(())
    }
}

/// Returns the decompressed bytes of a section. They are empty if the section does not exist or `room` is too small for it.
pub(super) fn section(file: &Parsed<'_>, name: &str, room: &Room) -> Arc<[u8]> {
    bytes(file, name, room).unwrap_or_default().into()
}

fn bytes(file: &Parsed<'_>, name: &str, room: &Room) -> Option<Vec<u8>> {
    let section = file.section_by_name(name)?;
    let range = section.compressed_file_range().ok()?;
    room.take(range.uncompressed_size)?;
    let data = section.compressed_data().ok()?;
    let mut plain = Vec::new();
    match data.format {
        CompressionFormat::None => plain.extend_from_slice(data.data),
        CompressionFormat::Zlib => {
            let limited = ZlibDecoder::new(data.data).take(range.uncompressed_size);
            read(limited, &mut plain)?;
        }
        CompressionFormat::Zstandard => {
            let limited = zstd::Decoder::with_buffer(data.data).ok()?;
            read(limited.take(range.uncompressed_size), &mut plain)?;
        }
        _ => return None,
    }
    Some(plain)
}

/// Reads to the end. The buffer grows with the data that is read, not with a claimed size.
fn read(mut from: impl Read, into: &mut Vec<u8>) -> Option<()> {
    from.read_to_end(into).ok().map(drop)
}
