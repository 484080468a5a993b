//! Two clocks that no hardware has: what is ordered before what, and what time it would be on a card.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// A piece of work's place in its stream's order, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) stream: u64,
    pub(crate) place: u64,
}

/// For every stream, how much of its work is known to come before: a vector clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    seen: BTreeMap<u64, u64>,
}

impl Clock {
    pub(crate) fn covers(&self, stamp: Stamp) -> bool {
        self.seen
            .get(&stamp.stream)
            .is_some_and(|place| *place >= stamp.place)
    }

    pub(crate) fn see(&mut self, stamp: Stamp) {
        let place = self.seen.entry(stamp.stream).or_default();
        *place = stamp.place.max(*place);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (&stream, &place) in &other.seen {
            self.see(Stamp { stream, place });
        }
    }
}

/// What of a card does a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Nothing: order only.
    None,
    /// Copies to the device.
    Upload,
    /// Copies from it.
    Download,
    /// Kernels, fills and copies inside the device, one after another.
    Compute,
}

/// Modelled time, in nanoseconds from the first call. It depends on the calls alone, never on when their work really runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    host: u64,
    engines: BTreeMap<(u32, u8), u64>,
}

impl Timeline {
    /// The host's time: every call takes some, and it waits for what it synchronises with.
    pub(crate) fn call(&mut self, cost: u64) {
        self.host += cost;
    }

    pub(crate) fn host_waits(&mut self, until: u64) {
        self.host = self.host.max(until);
    }

    /// When work ends that may start at `ready` and takes `length` of an engine.
    pub(crate) fn run(&mut self, device: u32, engine: Engine, ready: u64, length: u64) -> u64 {
        let start = ready.max(self.host);
        if engine == Engine::None {
            return start + length;
        }
        let free = self.engines.entry((device, engine as u8)).or_default();
        *free = start.max(*free) + length;
        *free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_one_way_queue_and_both_ways_overlap() {
        let mut time = Timeline::default();
        assert_eq!(time.run(0, Engine::Upload, 0, 100), 100);
        assert_eq!(time.run(0, Engine::Upload, 0, 100), 200);
        assert_eq!(time.run(0, Engine::Download, 50, 100), 150);
        assert_eq!(time.run(1, Engine::Upload, 0, 100), 100);
        time.host_waits(300);
        assert_eq!(time.run(0, Engine::Upload, 0, 100), 400);
    }

    #[test]
    fn a_clock_knows_what_it_was_told() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        let stamp = Stamp { stream: 4, place: 2 };
        a.see(stamp);
        assert!(!b.covers(stamp));
        b.join(&a);
        assert!(
            b.covers(stamp)
                && b.covers(Stamp { place: 1, ..stamp })
                && !b.covers(Stamp { place: 3, ..stamp })
        );
    }
}
