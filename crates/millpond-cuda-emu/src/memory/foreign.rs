//! Identification of files and processes across processes: files of memory by name and number, the handles that contain them,
//! and whether a process still lives.
//!
//! A handle means "the file with this number in that process". It contains a random number that the file must repeat. The
//! process that opens it looks the file up in `/proc` and accepts only names that the emulator uses, because process and file
//! numbers are reused and a handle may contain any bytes. Both processes must belong to one user and see the same `/proc`.
#![forbid(unsafe_code)]

use crate::error::{Answer, Code};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions, read_link, read_to_string};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The name of the file with a device's memory.
pub(crate) const DEVICE: &str = "cuda-emu";
/// The name of a file that describes an exported block.
pub(crate) const BLOCK: &str = "cuda-emu-block";
/// The name of the file with the state of an event between processes.
pub(crate) const EVENT: &str = "cuda-emu-event";
/// The name of a file with shareable physical memory. The number of the device follows.
pub(crate) const PHYSICAL: &str = "cuda-emu-physical-";

/// The bytes of `CUipcMemHandle` or `CUipcEventHandle`.
pub(crate) type Raw = [u8; 64];

const MAGIC: [u8; 8] = *b"millpond";

/// The location of exported data for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) pid: u32,
    /// The file's number in that process.
    pub(crate) number: u32,
    /// The number that the file must repeat, because file numbers are reused.
    pub(crate) nonce: u128,
}

impl Handle {
    /// Returns a handle of a file of this process.
    pub(crate) fn new(file: BorrowedFd<'_>, nonce: u128) -> Self {
        Self {
            pid: std::process::id(),
            number: file.as_raw_fd().cast_unsigned(),
            nonce,
        }
    }

    pub(crate) fn to_raw(self) -> Raw {
        let mut raw = [0; 64];
        raw[..8].copy_from_slice(&MAGIC);
        raw[8..12].copy_from_slice(&self.pid.to_le_bytes());
        raw[12..16].copy_from_slice(&self.number.to_le_bytes());
        raw[16..32].copy_from_slice(&self.nonce.to_le_bytes());
        raw
    }

    /// Parses a handle. Returns `None` if the bytes are not a handle.
    pub(crate) fn from_raw(raw: &Raw) -> Option<Self> {
        let number = |from: usize| {
            let bytes = raw[from..from + 4].try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let (head, tail) = (raw.get(..8)?, raw.get(32..)?);
        if *head != MAGIC || tail.iter().any(|byte| *byte != 0) {
            return None;
        }
        let handle = Self {
            pid: number(8)?,
            number: number(12)?,
            nonce: u128::from_le_bytes(raw[16..32].try_into().ok()?),
        };
        (handle.pid != 0).then_some(handle)
    }

    /// Returns whether this process created the handle.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Opens the file, if the process has a file with this name and number.
    pub(crate) fn open(&self, name: &str) -> Option<OwnedFd> {
        open(self.pid, self.number, name)
    }
}

/// Returns a number that cannot be guessed.
pub(crate) fn nonce() -> Answer<u128> {
    let mut bytes = [0; 16];
    let got = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|_| Code::OPERATING_SYSTEM)?;
    Code::OPERATING_SYSTEM.when(got < bytes.len())?;
    Ok(u128::from_le_bytes(bytes))
}

/// Opens a file of a process by its number there, if it is memory with this name.
pub(crate) fn open(pid: u32, number: u32, name: &str) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{number}");
    // The name is checked first, because opening another kind of file may block or have side effects.
    if named(Path::new(&path))? != name {
        return None;
    }
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    // The number may refer to another file by now, so the name is checked again.
    (name_of(&file).as_deref() == Some(name)).then(|| file.into())
}

/// Opens a file of this process by its number, if it is physical memory. A client may pass an invalid number.
pub(crate) fn open_physical(number: u32) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{number}");
    let name = named(Path::new(&path)).filter(|name| name.starts_with(PHYSICAL))?;
    open(std::process::id(), number, &name)
}

/// Returns the name of a memory file of the emulator, whichever process created it.
pub(crate) fn name_of(file: &impl AsRawFd) -> Option<String> {
    named(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

fn named(path: &Path) -> Option<String> {
    let target = read_link(path).ok()?.into_os_string().into_string().ok()?;
    let name = target.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Returns numbers that identify a file, whichever process opened it.
pub(crate) fn identity(file: BorrowedFd<'_>) -> Answer<(u64, u64)> {
    let found = rustix::fs::fstat(file).map_err(|_| Code::OPERATING_SYSTEM)?;
    Ok((found.st_dev, found.st_ino))
}

/// Creates a memory file with this name and content.
pub(crate) fn written(name: &str, bytes: &[u8]) -> Answer<OwnedFd> {
    use std::io::Write;
    let made = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(made.map_err(|_| Code::OPERATING_SYSTEM)?);
    file.write_all(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// A process in one word: its number in the low bits, and its start time above, because numbers are reused. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(pub(crate) u64);

/// Process numbers of the system are below this power of two.
const PID_BITS: u32 = 22;

impl Process {
    pub(crate) fn own() -> Answer<Self> {
        Self::of(std::process::id()).ok_or(Code::OPERATING_SYSTEM)
    }

    /// Returns the process with this number if it lives. A zombie does not live.
    fn of(pid: u32) -> Option<Self> {
        let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command's name may contain any characters, including brackets.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        if matches!(fields.next()?, "Z" | "X" | "x") {
            return None;
        }
        // The start time is the 22nd field of the line, 19 fields after the state.
        let began: u64 = fields.nth(18)?.parse().ok()?;
        Some(Self(began << PID_BITS | u64::from(pid)))
    }

    pub(crate) fn lives(self) -> bool {
        let pid = self.0 & ((1 << PID_BITS) - 1);
        u32::try_from(pid).ok().and_then(Self::of) == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_handle_survives_a_round_trip_and_other_bytes_are_refused() {
        let file = written(BLOCK, b"abc").unwrap();
        let handle = Handle::new(file.as_fd(), nonce().unwrap());
        let raw = handle.to_raw();
        assert_eq!(Handle::from_raw(&raw), Some(handle));
        assert_eq!(Handle::from_raw(&[0; 64]), None);
        for index in (0..8).chain(32..64) {
            let mut other = raw;
            other[index] ^= 1;
            assert_eq!(Handle::from_raw(&other), None, "byte {index}");
        }
        assert!(handle.open(BLOCK).is_some() && handle.open(DEVICE).is_none());
        drop(file);
        let gone = handle.open(BLOCK);
        assert!(gone.is_none(), "the number is nobody's, or another file's");
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let own = Process::own().unwrap();
        assert!(own.lives());
        assert!(
            !Process(own.0 + (1 << PID_BITS)).lives(),
            "it began at another time"
        );
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.lives());
        child.kill().unwrap();
        while process.lives() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.lives());
    }
}
