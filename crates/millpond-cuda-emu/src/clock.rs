//! Two clocks that no hardware has: what is ordered before what, and what time it would be on a card.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet};

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

    /// How much of a stream's work it knows.
    pub(crate) fn place(&self, stream: u64) -> u64 {
        self.seen.get(&stream).copied().unwrap_or_default()
    }

    pub(crate) fn see(&mut self, stamp: Stamp) {
        let place = self.seen.entry(stamp.stream).or_default();
        *place = stamp.place.max(*place);
    }

    /// Leaves out streams of whose work nobody will ask again.
    pub(crate) fn forget(&mut self, streams: &HashSet<u64>) {
        self.seen.retain(|stream, _| !streams.contains(stream));
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (&stream, &place) in &other.seen {
            self.see(Stamp { stream, place });
        }
    }
}

/// Modelled bytes a second inside a device.
const DEVICE_SPEED: f64 = 1.5e12;
/// Modelled nanoseconds of anything that runs on a device.
const START: u64 = 2_000;

/// Modelled nanoseconds of a kernel that does little with so many bytes.
pub(crate) fn compute(bytes: u64) -> u64 {
    START + nanoseconds(bytes, DEVICE_SPEED)
}

/// Modelled nanoseconds of a transfer of so many bytes at a speed in bytes a second.
pub(crate) fn nanoseconds(bytes: u64, speed: f64) -> u64 {
    (bytes as f64 / speed * 1e9).ceil() as u64
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
///
/// Each thread of the host has a time of its own: it begins where the latest is when the thread is first seen, and grows by what the
/// thread's calls and its own work take, and to the end of what it waits for. What threads wait for among themselves is not seen: a
/// thread's work counts for another only through streams and events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    threads: BTreeMap<u64, u64>,
    /// The latest of all.
    latest: u64,
    engines: BTreeMap<(u32, u8), u64>,
}

impl Timeline {
    /// A thread's time.
    pub(crate) fn host(&self, thread: u64) -> u64 {
        self.threads.get(&thread).copied().unwrap_or(self.latest)
    }

    /// A thread spends some: every call takes it, and work of its own that it tells of.
    pub(crate) fn host_works(&mut self, thread: u64, time: u64) {
        self.host_waits(thread, self.host(thread).saturating_add(time));
    }

    /// It waits for what it synchronises with.
    pub(crate) fn host_waits(&mut self, thread: u64, until: u64) {
        let now = self.host(thread).max(until);
        self.threads.insert(thread, now);
        self.latest = self.latest.max(now);
    }

    /// When work ends that a thread queues now, that may start at `ready` and takes `length` of an engine.
    pub(crate) fn run(&mut self, thread: u64, device: u32, engine: Engine, ready: u64, length: u64) -> u64 {
        let start = ready.max(self.host(thread));
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
        assert_eq!(time.run(1, 0, Engine::Upload, 0, 100), 100);
        assert_eq!(time.run(1, 0, Engine::Upload, 0, 100), 200);
        assert_eq!(time.run(1, 0, Engine::Download, 50, 100), 150);
        assert_eq!(time.run(1, 1, Engine::Upload, 0, 100), 100);
        time.host_waits(1, 300);
        assert_eq!(time.run(1, 0, Engine::Upload, 0, 100), 400);
    }

    #[test]
    fn each_thread_has_a_time_of_its_own() {
        let mut time = Timeline::default();
        time.host_works(1, 50);
        assert_eq!(
            (time.host(1), time.host(2)),
            (50, 50),
            "one that is new begins with the latest"
        );
        time.host_works(2, 100);
        time.host_works(1, 10);
        assert_eq!((time.host(1), time.host(2)), (60, 150));
        assert_eq!(time.run(1, 0, Engine::Compute, 0, 5), 65);
        assert_eq!(time.run(2, 0, Engine::Compute, 0, 5), 155);
        time.host_waits(1, 155);
        time.host_waits(2, 0);
        assert_eq!((time.host(1), time.host(2)), (155, 150));
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
