//! Measures whether the system is slow to find huge pages.
//!
//! A page fault for a huge page usually takes little longer than writing zeros to the page. It takes many times longer if
//! the kernel has to move other memory first, or if this machine is virtual and its host has to find the memory. Page
//! faults for ordinary pages are faster then, because the kernel has pages that were freed recently.
//!
//! A measurement leaves no trace: the memory is returned to the system afterwards.

use millpond_os::{Map, Part, transparent_huge_page};
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
    /// The time of the next measurement. There was none yet if this is `None`.
    next: Option<Instant>,
}

impl Faults {
    /// Returns whether faults for huge pages are slow. If a measurement is due, the first whole huge page of `part` is
    /// measured.
    ///
    /// # Safety
    /// The part must be open and hold only zeros. No other thread may access its bytes during the call.
    pub(super) unsafe fn are_slow(&mut self, map: &Map, part: Part) -> bool {
        let start = Instant::now();
        if self.next.is_some_and(|next| start < next) {
            return self.slow;
        }
        // Linux before 5.14 cannot populate memory, so nothing is measured there.
        let page = first_huge_page(map, part).filter(|page| map.populate(*page).is_ok());
        let Some(page) = page else {
            return self.slow;
        };
        let fault = start.elapsed();
        // SAFETY: the page is inside the part, and the caller promises the same of the part.
        if unsafe { map.zero(page) }.is_ok() {
            self.note(start, fault, start.elapsed() - fault);
        }
        // If the system refuses this, the page stays in memory, and it still holds zeros.
        let _ = map.empty(page);
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

fn first_huge_page(map: &Map, part: Part) -> Option<Part> {
    let huge = transparent_huge_page();
    let first = (map.address() + part.offset).next_multiple_of(huge) - map.address();
    let page = Part {
        offset: first,
        bytes: huge,
    };
    (page.end() <= part.end()).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Host, HostBuilder};
    use super::*;
    use millpond_engine::Source;

    /// Returns an open map with at least one whole huge page.
    fn map() -> Map {
        let huge = transparent_huge_page();
        let map = Map::new(2 * huge, huge).expect("addresses");
        map.open(map.whole()).expect("memory");
        map
    }

    /// Measures, if that is due, in the whole map.
    fn are_slow(faults: &mut Faults, map: &Map) -> bool {
        // SAFETY: the map is open, nothing was written to it, and this thread alone uses it.
        unsafe { faults.are_slow(map, map.whole()) }
    }

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
        let (map, mut held) = (map(), Faults::fixed(true));
        let until = held.next;
        assert!(are_slow(&mut held, &map) && held.next == until, "it still holds");
        let mut due = Faults {
            next: Some(start),
            ..held
        };
        are_slow(&mut due, &map);
        assert_ne!(due.next, Some(start), "it was made again");
    }

    #[test]
    fn a_part_without_a_whole_huge_page_is_not_measured() {
        let (map, mut faults) = (map(), Faults::default());
        let part = Part {
            offset: 4096,
            bytes: transparent_huge_page(),
        };
        // SAFETY: the map is open, nothing was written to it, and this thread alone uses it.
        assert!(!unsafe { faults.are_slow(&map, part) });
        assert_eq!(faults.next, None);
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
    fn a_measured_page_is_returned_to_the_system() {
        let (map, mut faults) = (map(), Faults::default());
        // A mapping of different advice is not joined with its neighbours.
        map.advise_small(map.whole()).expect("Linux knows huge pages");
        are_slow(&mut faults, &map);
        assert!(faults.next.is_some(), "it was measured");
        assert_eq!(field(map.address(), "Rss:"), "0 kB");
    }

    #[test]
    fn a_source_requests_huge_pages_unless_they_are_slow() {
        let huge = transparent_huge_page();
        for (slow, flag) in [(false, "hg"), (true, "nh")] {
            let mut host = Host::builder().build().expect("ordinary pages");
            host.faults = Cell::new(Faults::fixed(slow));
            let range = host.reserve(4 * HostBuilder::SMALL_BYTES).expect("addresses");
            let (page, small) = (host.page_bytes(), HostBuilder::SMALL_BYTES);
            if huge > page {
                return;
            }
            host.commit(&range, 0, small, page).expect("memory");
            host.commit(&range, small, small, page).expect("memory");
            host.commit(&range, 2 * small, page, page).expect("memory");
            let places = [0, small, 2 * small - 1, 2 * small].map(|at| range.address() + at);
            let has = places.map(|at| field(at, "VmFlags:").split(' ').any(|of| of == flag));
            assert_eq!(has, [false, true, true, false], "{flag}");
        }
    }
}
