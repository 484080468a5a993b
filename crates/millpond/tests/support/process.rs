//! The system's information about this process's memory, page by page.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;

/// Returns the permitted accesses to `[address, address + bytes)`: `rw-p`, `---p`, the same with `s` for shared memory,
/// or `none` for addresses without a mapping.
pub(crate) fn access(address: u64, bytes: u64) -> BTreeSet<String> {
    let (mut at, end) = (address, address + bytes);
    let mut found = BTreeSet::new();
    for line in fs::read_to_string("/proc/self/maps").expect("maps").lines() {
        let mut words = line.split_whitespace();
        let (range, access) = (words.next().expect("range"), words.next().expect("access"));
        let (first, last) = range.split_once('-').expect("range");
        let first = u64::from_str_radix(first, 16).expect("hex");
        let last = u64::from_str_radix(last, 16).expect("hex");
        if last <= at || end <= first {
            continue;
        }
        if first > at {
            found.insert("none".to_owned());
        }
        found.insert(access.to_owned());
        at = last.min(end);
    }
    if at < end {
        found.insert("none".to_owned());
    }
    found
}

pub(crate) fn is_open(address: u64, bytes: u64) -> bool {
    access(address, bytes)
        .iter()
        .all(|access| access.starts_with("rw-"))
}

pub(crate) fn is_closed(address: u64, bytes: u64) -> bool {
    access(address, bytes)
        .iter()
        .all(|access| access.starts_with("---"))
}

/// Returns the resident bytes of `[address, address + bytes)`.
pub(crate) fn resident(address: u64, bytes: u64) -> u64 {
    let file = File::open("/proc/self/pagemap").expect("pagemap");
    let mut entries = vec![0; (bytes / PAGE * 8) as usize];
    file.read_exact_at(&mut entries, address / PAGE * 8)
        .expect("entries");
    let present = entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0);
    present.count() as u64 * PAGE
}

/// Returns a figure in bytes from the process's status.
pub(crate) fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")).expect(name);
    kib.parse::<u64>().expect("number") << 10
}

/// Returns true if all of `[address, address + bytes)` has a flag of the system, such as `lo` for locked.
pub(crate) fn has_flag(address: u64, bytes: u64, flag: &str) -> bool {
    let (mut at, end) = (address, address + bytes);
    let mut inside = false;
    for line in fs::read_to_string("/proc/self/smaps").expect("smaps").lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if inside && !flags.split_whitespace().any(|word| word == flag) {
                return false;
            }
        } else if let Some((first, last)) = line.split(' ').next().and_then(|word| word.split_once('-')) {
            let first = u64::from_str_radix(first, 16).expect("hex");
            let last = u64::from_str_radix(last, 16).expect("hex");
            inside = first < end && at < last;
            if inside && first > at {
                return false;
            }
            at = if inside { last } else { at };
        }
    }
    at >= end
}
