//! Facts about the machine and the process, read on request.

use std::fs::{self, File};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the bytes of the system's page.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns the number of memory mappings of this process, or `None` if the system does not report it.
pub fn mappings() -> Option<u64> {
    let mut file = File::open("/proc/self/maps").ok()?;
    let mut buffer = [0; 1 << 14];
    let mut lines = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Some(lines),
            Ok(read) => lines += buffer[..read].iter().filter(|b| **b == b'\n').count() as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Returns the maximum number of memory mappings of a process, or `None` if the system does not report it.
pub fn mappings_limit() -> Option<u64> {
    number("/proc/sys/vm/max_map_count")
}

/// Returns the bytes that this process may lock, or `None` if there is no limit.
pub fn locked_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Returns the bytes of addresses that this process may map, or `None` if there is no limit.
pub fn address_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::As).current
}

/// Returns the bytes of data that this process may have, or `None` if there is no limit. Memory that is mapped for writing counts.
pub fn data_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Data).current
}

/// Returns the bytes that this process has locked, as the system counts them.
pub fn locked_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Returns the free and the total bytes of the machine's memory.
pub fn machine_memory() -> (u64, u64) {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit);
    (info.freeram as u64 * unit, info.totalram as u64 * unit)
}

/// Returns the bytes of a transparent huge page.
pub fn transparent_huge_page() -> u64 {
    // Not a `OnceLock`: if another thread is initialising it during a fork, the child waits for it forever.
    static BYTES: AtomicU64 = AtomicU64::new(0);
    let known = BYTES.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let bytes = number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .filter(|bytes| bytes.is_power_of_two())
        .unwrap_or(2 << 20);
    BYTES.store(bytes, Ordering::Relaxed);
    bytes
}

/// Returns how many explicit huge pages of this size the system has or can make, or `None` if it does not support the
/// size.
pub fn explicit_huge_pages(bytes: u64) -> Option<u64> {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", bytes >> 10);
    let kept = number(&format!("{folder}/nr_hugepages"))?;
    let extra = number(&format!("{folder}/nr_overcommit_hugepages")).unwrap_or(0);
    Some(kept.saturating_add(extra))
}

/// Returns the NUMA nodes that are online in the system's format: `0` or `0-1,3`.
pub fn online_nodes() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/node/online").ok()?;
    Some(text.trim().to_owned())
}

/// Returns the bytes of this process in main memory, or `None` if the system does not report them.
pub fn resident_bytes() -> Option<u64> {
    let sums = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = sums.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(page_bytes())
}

/// Returns the system's id of this thread.
pub fn task() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Returns the name of a thread of this process, or an empty string if the thread has ended.
pub fn task_name(task: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{task}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_reports_its_facts() {
        assert!(page_bytes().is_power_of_two());
        assert!(mappings().is_some_and(|n| n > 10));
        assert!(mappings_limit().is_some_and(|n| n > 1000));
        let (free, total) = machine_memory();
        assert!(free <= total && total > 64 << 20);
        assert!(locked_bytes().is_some());
    }
}
