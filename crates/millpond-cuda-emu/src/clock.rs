//! Two clocks that no hardware has: the order of work, and the time it would take on a card.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet};

/// The position of some work in the order of its stream, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) stream: u64,
    pub(crate) place: u64,
}

/// A vector clock: for every stream, the last position that is known to come before.
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

    /// Returns the last known position of a stream.
    pub(crate) fn place(&self, stream: u64) -> u64 {
        self.seen.get(&stream).copied().unwrap_or_default()
    }

    pub(crate) fn see(&mut self, stamp: Stamp) {
        let place = self.seen.entry(stamp.stream).or_default();
        *place = stamp.place.max(*place);
    }

    /// Removes streams whose work will not be queried again.
    pub(crate) fn forget(&mut self, streams: &HashSet<u64>) {
        self.seen.retain(|stream, _| !streams.contains(stream));
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (&stream, &place) in &other.seen {
            self.see(Stamp { stream, place });
        }
    }
}

/// Modelled speed inside a device, in bytes per second.
const DEVICE_SPEED: f64 = 1.5e12;
/// Modelled start-up time of anything that runs on a device, in nanoseconds.
const START: u64 = 2_000;

/// Returns the modelled time of a simple kernel that accesses `bytes` bytes, in nanoseconds.
pub(crate) fn compute(bytes: u64) -> u64 {
    START + nanoseconds(bytes, DEVICE_SPEED)
}

/// Returns the modelled time of a transfer at a speed in bytes per second, in nanoseconds.
fn nanoseconds(bytes: u64, speed: f64) -> u64 {
    (bytes as f64 / speed * 1e9).ceil() as u64
}

/// The part of a card that does some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// None. The work only orders other work.
    None,
    /// Copies to the device.
    Upload,
    /// Copies from the device.
    Download,
    /// Kernels, fills and copies inside the device, one after the other.
    Compute,
}

/// Modelled time, in nanoseconds from the first call. It depends only on the calls, never on when their work
/// really runs.
///
/// Each host thread has its own time. It begins at the latest time of all threads when the thread is first
/// seen. It grows by the duration of the thread's calls and of its own work, and advances to the end of
/// everything that it waits for. Waits between host threads are not visible here. The work of one thread
/// affects another one only through streams and events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// Nanoseconds before the first byte of a transfer between host and device, and its speed in bytes per second.
    latency: u64,
    link: f64,
    threads: BTreeMap<u64, u64>,
    /// The latest time of all threads.
    latest: u64,
    engines: BTreeMap<(u32, u8), u64>,
}

impl Timeline {
    pub(crate) fn new(latency: u64, link: f64) -> Self {
        Self {
            latency,
            link,
            ..Self::default()
        }
    }

    /// Returns the length of a transfer that passes `bytes` bytes between host and device `ways` times.
    pub(crate) fn transfer(&self, bytes: u64, ways: u64) -> u64 {
        self.latency + ways * nanoseconds(bytes, self.link)
    }

    /// Returns the time of a thread.
    pub(crate) fn host(&self, thread: u64) -> u64 {
        self.threads.get(&thread).copied().unwrap_or(self.latest)
    }

    /// Advances a thread by the time of a call, or of host work that it reports.
    pub(crate) fn host_works(&mut self, thread: u64, time: u64) {
        self.host_waits(thread, self.host(thread).saturating_add(time));
    }

    /// Advances a thread to the end of what it waits for.
    pub(crate) fn host_waits(&mut self, thread: u64, until: u64) {
        let now = self.host(thread).max(until);
        self.threads.insert(thread, now);
        self.latest = self.latest.max(now);
    }

    /// Returns the end time of work that a thread queues now. The work may start at `ready` and occupies an
    /// engine for `length`.
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
    fn each_thread_has_its_own_time() {
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
    fn a_joined_clock_covers_the_positions_of_the_other() {
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
