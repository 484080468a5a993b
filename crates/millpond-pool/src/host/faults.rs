//! Measures whether the system is slow to find huge pages.
//!
//! A page fault for a huge page usually takes little longer than writing zeros to the page. It takes many times longer if
//! the kernel has to move other memory first, or if this machine is virtual and its host has to find the memory. Page
//! faults for ordinary pages are faster then, because the kernel has pages that were freed recently.
//!
//! A measurement uses a page of its own, which is returned to the system afterwards.

use millpond_os::{Map, transparent_huge_page};
use std::time::{Duration, Instant};

/// A fault for a huge page is slow if it takes more than this many times as long as writing zeros to the page. The faults
/// for 512 ordinary pages take about as long.
const SLOW: u32 = 8;
/// A measurement holds for this many times its duration. Measurements therefore take at most 1/64 of the time.
const PAUSE: u32 = 64;

/// The latest measurement of a fault for a huge page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    slow: bool,
    /// The time of the next measurement, or `None` before the first one.
    next: Option<Instant>,
}

impl Faults {
    /// Returns whether faults for huge pages are slow. Makes a new measurement if one is due. If the system has no memory for it, the
    /// previous one counts.
    pub(super) fn are_slow(&mut self) -> bool {
        let start = Instant::now();
        if self.next.is_none_or(|next| start >= next)
            && let Some((fault, write)) = measure()
        {
            self.note(start, fault, write);
        }
        self.slow
    }

    /// Stores a measurement that began at `start`: the time of the fault, and the time of writing zeros.
    fn note(&mut self, start: Instant, fault: Duration, write: Duration) {
        self.slow = fault > write * SLOW;
        self.next = start.checked_add((fault + write) * (PAUSE + 1));
    }

    /// Creates a measurement that holds for an hour.
    #[cfg(test)]
    pub(super) fn fixed(slow: bool) -> Self {
        Self {
            slow,
            next: Instant::now().checked_add(Duration::from_secs(3600)),
        }
    }
}

/// Returns the time of a fault for a huge page, and the time of writing zeros to the page. Linux before 5.14 cannot populate memory, so
/// nothing is measured there.
fn measure() -> Option<(Duration, Duration)> {
    let huge = transparent_huge_page();
    let map = Map::new(huge, huge).ok()?;
    let page = map.whole();
    map.open(page).ok()?;
    map.advise_huge(page).ok()?;
    let start = Instant::now();
    map.populate(page).ok()?;
    let fault = start.elapsed();
    // SAFETY: the map was just opened, nothing was written to it, and this function alone knows it.
    unsafe { map.zero(page) }.ok()?;
    Some((fault, start.elapsed() - fault))
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Host, HostBuilder};
    use super::*;
    use crate::memory::MemorySource;
    use millpond_engine::Source;

    #[test]
    fn a_fault_is_slow_if_it_takes_many_times_as_long_as_a_write() {
        for (fault, slow) in [(100, false), (700, false), (900, true), (5000, true)] {
            let mut faults = Faults::default();
            let write = Duration::from_micros(100);
            faults.note(Instant::now(), Duration::from_micros(fault), write);
            assert_eq!(faults.slow, slow, "{fault} us");
        }
    }

    #[test]
    fn a_measurement_holds_for_64_times_its_duration() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        faults.note(start, Duration::from_micros(300), Duration::from_micros(100));
        assert_eq!(faults.next, Some(start + Duration::from_micros(400 * 65)));
        let mut held = Faults::fixed(true);
        let until = held.next;
        assert!(held.are_slow() && held.next == until, "it still holds");
        let mut due = Faults {
            next: Some(start),
            ..held
        };
        due.are_slow();
        assert_ne!(due.next, Some(start), "it was made again");
    }

    /// Returns a field of the system's record of the mapping at an address.
    fn field(address: u64, name: &str) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("the list of mappings");
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| u64::from_str_radix(text, 16).ok();
            if let Some((Some(first), Some(end))) = range.map(|(first, end)| (number(first), number(end))) {
                inside = (first..end).contains(&address);
            } else if let Some(value) = line.strip_prefix(name).filter(|_| inside) {
                return value.trim().to_owned();
            }
        }
        panic!("{address:#x} is not mapped, or has no field {name}")
    }

    #[test]
    fn huge_pages_are_requested_for_fully_used_parts_unless_faults_are_slow() {
        let huge = transparent_huge_page();
        for slow in [false, true] {
            let mut host = Host::builder().build().expect("ordinary pages");
            host.faults = Cell::new(Faults::fixed(slow));
            let range = host.reserve(4 * HostBuilder::SMALL_BYTES).expect("addresses");
            let (page, small) = (host.page_bytes(), HostBuilder::SMALL_BYTES);
            if huge > page {
                return;
            }
            let first = range.address();
            host.commit(&range, 0, small, page).expect("memory");
            host.expect_use(first, small);
            host.commit(&range, small, small, page).expect("memory");
            // All of the first huge page, and half of the second and of the fourth.
            host.expect_use(first + small, huge + huge / 2);
            host.expect_use(first + small + 2 * huge, huge + huge / 2);
            let pages = [0, huge, 2 * huge, 3 * huge].map(|at| small + at);
            let has = |at| field(first + at, "VmFlags:").split(' ').any(|flag| flag == "hg");
            assert_eq!(pages.map(has), [!slow, false, !slow, false], "{slow}");
            assert!(!has(0), "a small source");
        }
    }

    #[test]
    fn huge_pages_are_requested_for_memory_that_is_populated_at_commit() {
        let mut host = Host::builder().populate(true).build().expect("ordinary pages");
        host.faults = Cell::new(Faults::fixed(false));
        let (page, small) = (host.page_bytes(), HostBuilder::SMALL_BYTES);
        let range = host.reserve(4 * small).expect("addresses");
        if transparent_huge_page() > page {
            return;
        }
        host.commit(&range, 0, 2 * small, page).expect("memory");
        assert!(
            field(range.address(), "VmFlags:")
                .split(' ')
                .any(|flag| flag == "hg")
        );
    }
}
