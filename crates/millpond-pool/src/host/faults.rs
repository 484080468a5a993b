//! Measures whether the system is slow to find huge pages.
//!
//! A fault for a huge page normally takes little longer than writing zeros to it. It takes many times longer if the
//! kernel first has to move other memory out of the way, or if the machine is virtual and its host has to find the
//! memory. Faults for ordinary pages are faster then, because the kernel has recently freed ones.

use millpond_os::{Map, Part, transparent_huge_page};
use std::time::{Duration, Instant};

/// A fault for a huge page is slow if it takes more than this many times as long as writing zeros to the page.
/// 512 faults for ordinary pages take about as long.
const SLOW: u32 = 8;
/// After a measurement, none is made for this many times its duration. Measurements therefore take at most 1/64 of the
/// time.
const PAUSE: u32 = 64;

/// The latest measurement of a fault for a huge page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    slow: bool,
    /// When the next measurement may be made.
    next: Option<Instant>,
}

impl Faults {
    /// Returns whether faults for huge pages are slow. If a measurement is due, this makes one with the first whole huge
    /// page of `part`, which must be open, fresh and used by nobody else, and for which huge pages are requested.
    pub(super) fn are_slow(&mut self, map: &Map, part: Part) -> bool {
        let start = Instant::now();
        if self.next.is_some_and(|next| start < next) {
            return self.slow;
        }
        let Some(page) = first_huge_page(map, part) else {
            return self.slow;
        };
        // Linux before 5.14 cannot populate, and tells nothing about its faults.
        if map.populate(page).is_err() {
            return self.slow;
        }
        let faulted = Instant::now();
        // SAFETY: the part is open and fresh, so it holds zeros, and no other thread knows it.
        if unsafe { map.zero(page) }.is_ok() {
            self.note(start, faulted - start, faulted.elapsed());
        }
        self.slow
    }

    /// Records that a fault and a write to the page took these times.
    fn note(&mut self, start: Instant, fault: Duration, write: Duration) {
        self.slow = fault > write * SLOW;
        let taken = fault + write;
        self.next = start.checked_add(taken + taken * PAUSE);
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
    use super::*;

    const WRITE: Duration = Duration::from_micros(100);
    const HUGE: u64 = 4 << 20;

    /// Returns an open map with enough memory for a huge page.
    fn map() -> Map {
        let map = Map::new(2 * HUGE, HUGE).expect("addresses");
        map.open(map.whole()).expect("memory");
        map
    }

    #[test]
    fn a_fault_is_slow_if_it_takes_many_times_as_long_as_a_write() {
        for (fault, slow) in [(100, false), (700, false), (900, true), (5000, true)] {
            let mut faults = Faults::default();
            faults.note(Instant::now(), Duration::from_micros(fault), WRITE);
            assert_eq!(faults.slow, slow, "{fault} us");
        }
    }

    #[test]
    fn a_measurement_holds_for_64_times_its_duration() {
        if transparent_huge_page() > HUGE {
            return;
        }
        let map = map();
        let mut faults = Faults::default();
        let fault = Duration::from_secs(1);
        faults.note(Instant::now(), fault, WRITE);
        assert!(faults.are_slow(&map, map.whole()), "it was measured just now");
        let (hour_ago, now) = (Duration::from_secs(3600), Instant::now());
        faults.note(
            now.checked_sub(hour_ago).unwrap_or(now),
            Duration::from_nanos(1),
            WRITE,
        );
        let before = faults.next;
        faults.are_slow(&map, map.whole());
        assert_ne!(faults.next, before, "it is due again");
    }

    #[test]
    fn a_measurement_leaves_zeros_and_needs_a_whole_huge_page() {
        if transparent_huge_page() > HUGE {
            return;
        }
        let map = map();
        let mut faults = Faults::default();
        let small = Part {
            offset: 4096,
            bytes: 4096,
        };
        assert!(!faults.are_slow(&map, small));
        assert_eq!(faults.next, None, "no huge page fits");
        faults.are_slow(&map, map.whole());
        assert!(faults.next.is_some() || map.populate(map.whole()).is_err());
    }
}
