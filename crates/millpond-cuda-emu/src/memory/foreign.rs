//! What processes know of each other: files of memory by their name and number, the handles that carry them, and who still lives.
//!
//! A handle says "the file with this number of that process", with a random number that the file has to repeat. Whoever opens one
//! looks the file up in `/proc` and takes nothing that is not named as the emulator names its own: numbers of processes and files
//! come again, and anybody may hand over any bytes. Both processes have to be of one user and see the same `/proc`.
#![forbid(unsafe_code)]

use crate::error::{Answer, Code};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions, read_link, read_to_string};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The bytes of a device.
pub(crate) const DEVICE: &str = "cuda-emu";
/// What is told of an exported block.
pub(crate) const BLOCK: &str = "cuda-emu-block";
/// The state of an event between processes.
pub(crate) const EVENT: &str = "cuda-emu-event";
/// Physical memory that leaves its process as a file; the number of the device follows.
pub(crate) const PHYSICAL: &str = "cuda-emu-physical-";

/// The bytes of `CUipcMemHandle` and `CUipcEventHandle`.
pub(crate) type Raw = [u8; 64];

const MAGIC: [u8; 8] = *b"millpond";

/// Where another process finds what is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) pid: u32,
    /// The file's number in that process.
    pub(crate) number: u32,
    /// What the file has to repeat: the number of a file is given again.
    pub(crate) nonce: u128,
}

impl Handle {
    /// A handle of a file of this process.
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

    /// What the bytes say, if they are those of a handle at all.
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

    /// Whether it was made here.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The file, if that process has one of this name there.
    pub(crate) fn open(&self, name: &str) -> Option<OwnedFd> {
        open(self.pid, self.number, name)
    }
}

/// A number that nobody guesses.
pub(crate) fn nonce() -> Answer<u128> {
    let mut bytes = [0; 16];
    let got = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|_| Code::OPERATING_SYSTEM)?;
    if got < bytes.len() {
        return Err(Code::OPERATING_SYSTEM);
    }
    Ok(u128::from_le_bytes(bytes))
}

/// A file of a process's, by its number there, if it is memory of this name.
pub(crate) fn open(pid: u32, number: u32, name: &str) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{number}");
    // The name comes first: opening anything else may wait, or do something.
    if named(Path::new(&path))? != name {
        return None;
    }
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    // The number may have come to mean another file between the two.
    (name_of(&file).as_deref() == Some(name)).then(|| file.into())
}

/// The same for a file of this process's, of any name that begins so: a number that a client hands over may be nobody's.
pub(crate) fn open_physical(number: u32) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{number}");
    let name = named(Path::new(&path)).filter(|name| name.starts_with(PHYSICAL))?;
    open(std::process::id(), number, &name)
}

/// The name of memory of our own, of whichever process it came from.
pub(crate) fn name_of(file: &impl AsRawFd) -> Option<String> {
    named(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

fn named(path: &Path) -> Option<String> {
    let target = read_link(path).ok()?.into_os_string().into_string().ok()?;
    let name = target.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// What tells two files apart, whoever opened them.
pub(crate) fn identity(file: BorrowedFd<'_>) -> Answer<(u64, u64)> {
    let found = rustix::fs::fstat(file).map_err(|_| Code::OPERATING_SYSTEM)?;
    Ok((found.st_dev, found.st_ino))
}

/// A file that begins with these bytes, of this name.
pub(crate) fn written(name: &str, bytes: &[u8]) -> Answer<OwnedFd> {
    use std::io::Write;
    let made = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(made.map_err(|_| Code::OPERATING_SYSTEM)?);
    file.write_all(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// A process in one word: its number, and above it when it began, since numbers come again. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(pub(crate) u64);

/// The system's numbers of processes are below this power of two.
const PID_BITS: u32 = 22;

impl Process {
    pub(crate) fn own() -> Answer<Self> {
        Self::of(std::process::id()).ok_or(Code::OPERATING_SYSTEM)
    }

    /// The process of this number, while it lives: one that has ended and that nobody has asked after yet does not.
    fn of(pid: u32) -> Option<Self> {
        let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command's name may hold anything, brackets too.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        if matches!(fields.next()?, "Z" | "X" | "x") {
            return None;
        }
        // The 22nd field of the line, the 19th behind the state.
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
    fn a_handle_is_read_as_it_was_written_and_nothing_else_is_one() {
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
    fn a_process_that_has_ended_does_not_live() {
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
