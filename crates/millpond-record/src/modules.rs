//! Lists the code modules of this process, so that addresses on stacks can be resolved later.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

/// A code file that is mapped in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// The first address of its code.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The address at which its first byte would be.
    pub(super) base: u64,
    pub(super) path: String,
    /// The build id in hexadecimal digits, or empty if there is none.
    pub(super) build_id: String,
}

/// Returns the addresses of the code module that contains an address.
pub(super) fn around(address: u64) -> Option<Range<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut ranges = maps
        .lines()
        .filter_map(line)
        .map(|module| module.address..module.address.saturating_add(module.bytes));
    ranges.find(|range| range.contains(&address))
}

/// Returns all code modules that come from files, sorted by address. The list is empty if the system does not provide
/// it.
pub(super) fn all() -> Vec<Module> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut modules: Vec<Module> = Vec::new();
    for mut module in maps.lines().filter_map(line) {
        let known = modules.iter().find(|other| other.path == module.path);
        module.build_id = known.map_or_else(
            || build_id(&module.path).unwrap_or_default(),
            |known| known.build_id.clone(),
        );
        modules.push(module);
    }
    modules
}

/// Parses a line of the list of mappings, if it describes code of a file.
fn line(line: &str) -> Option<Module> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = line.split_ascii_whitespace().nth(5)?;
    // A path may contain spaces.
    let path = line.get(line.find(path)?..)?;
    if !rights.contains('x') || !path.starts_with('/') {
        return None;
    }
    let (from, to) = (
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
    );
    Some(Module {
        address: from,
        bytes: to.checked_sub(from)?,
        base: from.wrapping_sub(offset),
        path: path.to_owned(),
        build_id: String::new(),
    })
}

/// Reads the build id from a file's notes.
fn build_id(path: &str) -> Option<String> {
    const MOST: usize = 64 << 10;
    const NOTE: u32 = 4;
    let mut file = File::open(path).ok()?;
    let mut header = [0; 64];
    file.read_exact(&mut header).ok()?;
    // Only 64-bit little-endian files are supported.
    if !header.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return None;
    }
    let (table, entry, entries) = (long(&header, 32)?, short(&header, 54)?, short(&header, 56)?);
    let mut headers = vec![0; usize::from(entry) * usize::from(entries)];
    file.seek(SeekFrom::Start(table)).ok()?;
    file.read_exact(&mut headers).ok()?;
    let notes = headers
        .chunks_exact(usize::from(entry).max(1))
        .filter(|part| word(part, 0) == Some(NOTE));
    for note in notes {
        let (offset, bytes) = (long(note, 8)?, long(note, 32)?);
        let mut notes = vec![0; usize::try_from(bytes).ok()?.min(MOST)];
        file.seek(SeekFrom::Start(offset)).ok()?;
        file.read_exact(&mut notes).ok()?;
        if let Some(id) = id_in(&notes) {
            return Some(id);
        }
    }
    None
}

/// Finds the build id in a sequence of notes.
fn id_in(mut notes: &[u8]) -> Option<String> {
    const BUILD_ID: u32 = 3;
    loop {
        let (name, value, kind) = (
            word(notes, 0)? as usize,
            word(notes, 4)? as usize,
            word(notes, 8)?,
        );
        let value_at = 12 + name.next_multiple_of(4);
        let found = notes.get(value_at..value_at.checked_add(value)?)?;
        if kind == BUILD_ID && notes.get(12..12 + name) == Some(b"GNU\0") {
            return Some(found.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(value_at + value.next_multiple_of(4)..)?;
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings_are_parsed() {
        let code = "55d0c0a00000-55d0c0b00000 r-xp 00002000 08:01 131 /usr/bin/a program";
        let module = line(code).expect("code");
        assert_eq!((module.address, module.bytes), (0x55d0_c0a0_0000, 0x10_0000));
        assert_eq!(
            (module.base, &*module.path),
            (0x55d0_c09f_e000, "/usr/bin/a program")
        );
        for other in [
            "55d0c0a00000-55d0c0b00000 rw-p 00002000 08:01 131 /usr/bin/a",
            "7ffd0000-7ffd1000 r-xp 00000000 00:00 0 [vdso]",
            "7ffd0000-7ffd1000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no mappings")]
    fn this_program_is_found() {
        let here = this_program_is_found as fn() as usize as u64;
        let all = all();
        let found = all
            .iter()
            .find(|module| (module.address..module.address + module.bytes).contains(&here));
        let path = std::env::current_exe().expect("a path");
        assert_eq!(found.map(|module| module.path.as_str()), path.to_str());
    }

    #[test]
    fn build_ids_are_found_among_notes() {
        let mut notes = Vec::new();
        let mut note = |kind: u32, name: &[u8], value: &[u8]| {
            for word in [name.len() as u32, value.len() as u32, kind] {
                notes.extend(word.to_le_bytes());
            }
            for part in [name, value] {
                notes.extend(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        };
        note(1, b"GNU\0", &[9; 16]);
        note(3, b"Go\0", &[8; 5]);
        note(3, b"GNU\0", &[0xab, 0x01, 0xcd]);
        assert_eq!(id_in(&notes).as_deref(), Some("ab01cd"));
        assert_eq!(id_in(&notes[..notes.len() - 4]), None);
        assert_eq!(id_in(&[0xff; 40]), None);
    }
}
