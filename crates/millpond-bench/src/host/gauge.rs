//! Reads the system's figures about this process, and times one part of a workload.

use crate::host::figures::Time;
use crate::measure::{Clock, Timer};
use std::fs::File;
use std::io::Read;

/// A part of a workload that is being timed.
pub(crate) struct Timed {
    faults: u64,
    timer: Timer,
}

impl Timed {
    /// Starts the timer.
    pub(crate) fn start(clock: Clock) -> Self {
        Self {
            faults: minor_faults(),
            timer: Timer::start(clock),
        }
    }

    /// Ends the part, which consisted of `operations` operations of `bytes` bytes each.
    pub(crate) fn stop(&self, part: &str, operations: u64, bytes: u64) -> Time {
        let each = operations.max(1) as f64;
        let nanoseconds = self.timer.nanoseconds() / each;
        Time {
            part: part.to_owned(),
            nanoseconds,
            operations,
            faults: (minor_faults() - self.faults) as f64 / each,
            bytes,
        }
    }
}

/// Returns the minor page faults of this process.
fn minor_faults() -> u64 {
    // The program's name is in parentheses and may contain spaces. The count is the eighth field after it.
    let text = read("/proc/self/stat");
    let fields = text.rsplit(|b| *b == b')').next().unwrap_or_default();
    let field = fields.split(|b| *b == b' ').nth(8).unwrap_or_default();
    std::str::from_utf8(field)
        .ok()
        .and_then(|f| f.parse().ok())
        .unwrap_or(0)
}

/// Returns the resident bytes of this process.
pub(crate) fn resident() -> u64 {
    kibibytes(&read("/proc/self/smaps_rollup"), b"Rss:")
}

/// Returns the peak of resident bytes.
pub(crate) fn most_resident() -> u64 {
    kibibytes(&read("/proc/self/status"), b"VmHWM:")
}

/// Resets the peak of resident bytes. If the system refuses, the peak is that of the whole process.
pub(crate) fn forget_most_resident() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the value of a line of a system file, in bytes.
fn kibibytes(text: &[u8], name: &[u8]) -> u64 {
    let line = text
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(name));
    let digits = line.unwrap_or_default().iter().filter(|b| b.is_ascii_digit());
    digits.fold(0, |sum, d| sum * 10 + u64::from(d - b'0')) * 1024
}

/// Reads the beginning of a system file to the stack, because the heap may be under measurement.
fn read(path: &str) -> [u8; 4096] {
    let mut text = [0; 4096];
    let mut filled = 0;
    if let Ok(mut file) = File::open(path) {
        while let Ok(more @ 1..) = file.read(&mut text[filled..]) {
            filled += more;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_and_resident_memory_are_measured() {
        assert!(minor_faults() > 0);
        let before = minor_faults();
        let touched = vec![1u8; 32 << 20];
        assert!(minor_faults() > before);
        assert!(resident() >= 32 << 20);
        assert!(most_resident() >= 32 << 20);
        drop(touched);
        // Other tests run at the same time, but they hold less than 32 MiB.
        let before = most_resident();
        forget_most_resident();
        assert!(most_resident() <= before);
    }

    #[test]
    fn a_line_in_kibibytes_is_converted_to_bytes() {
        assert_eq!(kibibytes(b"a\nRss:   12 kB\nPss: 3 kB\n", b"Rss:"), 12 << 10);
        assert_eq!(kibibytes(b"", b"Rss:"), 0);
    }
}
