//! What the system says about this process, and the clock of one part of a workload.

use crate::CpuClock;
use crate::host::figures::Time;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

/// Which time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// This thread's on a processor.
    Thread,
    /// The wall's: where threads wait for each other.
    Wall,
}

/// One part of a workload, being timed.
pub(crate) struct Timed {
    clock: Clock,
    faults: u64,
    wall: Instant,
    cpu: CpuClock,
}

impl Timed {
    /// Starts now.
    pub(crate) fn start(clock: Clock) -> Self {
        Self {
            clock,
            faults: minor_faults(),
            wall: Instant::now(),
            cpu: CpuClock::start(),
        }
    }

    /// Nanoseconds since the start.
    pub(crate) fn nanoseconds(&self) -> f64 {
        match self.clock {
            Clock::Thread => self.cpu.nanoseconds(),
            Clock::Wall => self.wall.elapsed().as_nanos() as f64,
        }
    }

    /// Ends the part: so many operations of so many bytes each.
    pub(crate) fn stop(&self, part: &str, operations: u64, bytes: u64) -> Time {
        let each = operations.max(1) as f64;
        let nanoseconds = self.nanoseconds() / each;
        Time {
            part: part.to_owned(),
            nanoseconds,
            operations,
            faults: (minor_faults() - self.faults) as f64 / each,
            bytes,
        }
    }
}

/// Page faults of this process that needed no disk.
fn minor_faults() -> u64 {
    // The name of the program is in parentheses and may hold spaces; the count is the eighth field after it.
    let text = read("/proc/self/stat");
    let fields = text.rsplit(|b| *b == b')').next().unwrap_or_default();
    let field = fields.split(|b| *b == b' ').nth(8).unwrap_or_default();
    std::str::from_utf8(field)
        .ok()
        .and_then(|f| f.parse().ok())
        .unwrap_or(0)
}

/// Bytes of this process in memory now.
pub(crate) fn resident() -> u64 {
    kibibytes(&read("/proc/self/smaps_rollup"), b"Rss:")
}

/// The most there have been.
pub(crate) fn most_resident() -> u64 {
    kibibytes(&read("/proc/self/status"), b"VmHWM:")
}

/// Starts the most there have been anew. Where the system refuses it is that of the whole process.
pub(crate) fn forget_most_resident() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The value of a line of the system's, in bytes.
fn kibibytes(text: &[u8], name: &[u8]) -> u64 {
    let line = text
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(name));
    let digits = line.unwrap_or_default().iter().filter(|b| b.is_ascii_digit());
    digits.fold(0, |sum, d| sum * 10 + u64::from(d - b'0')) * 1024
}

/// The beginning of a file of the system's, on the stack: what is measured may be the heap.
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
    fn reads_what_the_system_says() {
        assert!(minor_faults() > 0);
        let before = minor_faults();
        let touched = vec![1u8; 32 << 20];
        assert!(minor_faults() > before);
        assert!(resident() >= 32 << 20);
        assert!(most_resident() >= 32 << 20);
        drop(touched);
        // Other tests run beside this one, and 32 MiB are more than they hold.
        let before = most_resident();
        forget_most_resident();
        assert!(most_resident() <= before);
    }

    #[test]
    fn a_line_is_read_to_the_byte() {
        assert_eq!(kibibytes(b"a\nRss:   12 kB\nPss: 3 kB\n", b"Rss:"), 12 << 10);
        assert_eq!(kibibytes(b"", b"Rss:"), 0);
    }
}
