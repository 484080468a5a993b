//! What one thread tells, on its way to the thread that writes: words in a circle, put in by one thread and taken out by another.
//!
//! ```text
//!         taken                  put
//!    ......|=== events =========>|......      both only grow; a word's place is its number modulo the length
//! ```
//!
//! Who puts in never waits: what has no room is counted, with its bytes, and is lost. Words are atomic and written without
//! order; `put` is released when an event is whole, so whoever has acquired it reads what was written.

use crate::time::Time;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What happened, as a number in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    Alloc,
    Free,
    Reserve,
    Release,
    Refused,
    /// The mark with the number in `requested`.
    Mark,
    /// Of a thread's whole run of steps, the one with the number in `requested`.
    Step,
}

impl What {
    fn of(number: u8) -> Option<Self> {
        let all = [
            Self::Alloc,
            Self::Free,
            Self::Reserve,
            Self::Release,
            Self::Refused,
            Self::Mark,
            Self::Step,
        ];
        all.get(usize::from(number)).copied()
    }
}

/// One event, but for its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) what: What,
    pub(super) time: u64,
    pub(super) address: u64,
    pub(super) requested: u64,
    pub(super) bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u32,
    pub(super) tag: u32,
}

/// Words of an event without a stack.
const WORDS: usize = 6;
/// Addresses of a stack that are kept, from the innermost.
pub(super) const FRAMES: usize = 64;

impl Told {
    /// What it is written as, at this time.
    #[inline]
    fn words(&self, time: u64, frames: usize) -> [u64; WORDS] {
        let head = self.what as u64 | (frames as u64) << 8 | u64::from(self.stream) << 32;
        [
            head,
            time,
            self.address,
            self.requested,
            self.bytes,
            u64::from(self.pool) | u64::from(self.tag) << 32,
        ]
    }

    fn of(words: [u64; WORDS]) -> Option<(Self, usize)> {
        let [head, time, address, requested, bytes, whose] = words;
        let told = Self {
            what: What::of(head as u8)?,
            time,
            address,
            requested,
            bytes,
            pool: whose as u32,
            stream: (head >> 32) as u32,
            tag: (whose >> 32) as u32,
        };
        Some((told, (head >> 8) as u8 as usize))
    }
}

/// Alone on its line of the processor's cache, so that two threads' counts do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Own<T>(T);

/// Events that had no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) events: u64,
    /// Bytes that were asked for in those that are allocations.
    pub(super) allocated: u64,
    /// Those in frees.
    pub(super) freed: u64,
}

impl Lost {
    /// What was lost since.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            allocated: self.allocated - before.allocated,
            freed: self.freed - before.freed,
        }
    }
}

/// Written by the thread that puts in.
#[derive(Debug, Default)]
struct Put {
    /// Words put in so far.
    words: AtomicUsize,
    /// Words known to have been taken out: read anew only where there seems to be no room.
    known_taken: AtomicUsize,
    /// Whether an event is being put in.
    busy: AtomicBool,
    lost: [AtomicU64; 3],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ring {
    words: Box<[AtomicU64]>,
    put: Own<Put>,
    taken: Own<AtomicUsize>,
    /// The thread that puts in is gone.
    closed: AtomicBool,
    /// That thread's number, and what the system knows it by.
    pub(super) thread: u32,
    pub(super) task: u32,
}

impl Ring {
    /// Room for events of at least so many words: a power of two.
    pub(super) fn new(words: usize, thread: u32) -> Self {
        let len = words.max(4 * (WORDS + FRAMES)).next_power_of_two();
        Self {
            words: std::iter::repeat_with(AtomicU64::default).take(len).collect(),
            put: Own::default(),
            taken: Own::default(),
            closed: AtomicBool::new(false),
            thread,
            task: crate::os::task(),
        }
    }

    /// Puts an event in, at the time it is now, whatever time it says; `hurry` is called where that leaves less than half the room. Only
    /// ever called by one thread. The event is read where it lies: a copy of what was written just before would wait for that.
    #[inline]
    pub(super) fn put(&self, told: &Told, frames: &[u64], hurry: impl FnOnce()) {
        let put = &self.put.0;
        // Before the time is read: see `busy`.
        put.busy.store(true, Ordering::Relaxed);
        let time = Time::now().nanos();
        let at = put.words.load(Ordering::Relaxed);
        let len = WORDS + frames.len();
        let end = at.wrapping_add(len);
        if end.wrapping_sub(put.known_taken.load(Ordering::Relaxed)) > self.words.len() / 2 {
            self.look_for_room(told, end, hurry);
            if end.wrapping_sub(put.known_taken.load(Ordering::Relaxed)) > self.words.len() {
                put.busy.store(false, Ordering::Release);
                return;
            }
        }
        let words = told.words(time, frames.len());
        let place = at & (self.words.len() - 1);
        if let Some(places) = self.words.get(place..place.wrapping_add(WORDS)) {
            for (place, word) in places.iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
        } else {
            self.store(at, &words);
        }
        if !frames.is_empty() {
            self.store(at.wrapping_add(WORDS), frames);
        }
        put.words.store(end, Ordering::Release);
        put.busy.store(false, Ordering::Release);
    }

    /// Writes words from a place on, and further from the beginning where they come to the end.
    fn store(&self, at: usize, words: &[u64]) {
        let at = at & (self.words.len() - 1);
        let places = self.words.get(at..).unwrap_or_default();
        let (here, rest) = words.split_at(words.len().min(places.len()));
        for (place, word) in places.iter().zip(here) {
            place.store(*word, Ordering::Relaxed);
        }
        for (place, word) in self.words.iter().zip(rest) {
            place.store(*word, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_for_room(&self, told: &Told, end: usize, hurry: impl FnOnce()) {
        let put = &self.put.0;
        let taken = self.taken.0.load(Ordering::Acquire);
        put.known_taken.store(taken, Ordering::Relaxed);
        let used = end.wrapping_sub(taken);
        if used > self.words.len() / 2 {
            hurry();
        }
        if used > self.words.len() {
            let [events, allocated, freed] = &put.lost;
            let add = |to: &AtomicU64, much: u64| {
                // One thread writes it.
                to.store(to.load(Ordering::Relaxed).wrapping_add(much), Ordering::Relaxed);
            };
            add(events, 1);
            match told.what {
                What::Alloc => add(allocated, told.requested),
                What::Free => add(freed, told.requested),
                _ => {}
            }
        }
    }

    /// What had no room so far.
    pub(super) fn lost(&self) -> Lost {
        let [events, allocated, freed] = self
            .put
            .0
            .lost
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed));
        Lost {
            events,
            allocated,
            freed,
        }
    }

    /// Whether an event is being put in: its time may be read already, and it cannot be taken yet.
    pub(super) fn is_busy(&self) -> bool {
        self.put.0.busy.load(Ordering::Acquire)
    }

    /// The thread that puts in will put in no more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether it never has anything again.
    pub(super) fn is_over(&self) -> bool {
        self.closed.load(Ordering::Acquire) && self.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.taken.0.load(Ordering::Relaxed) == self.put.0.words.load(Ordering::Acquire)
    }

    fn word(&self, at: usize) -> u64 {
        let place = self.words.get(at & (self.words.len() - 1));
        place.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The next event that is to be taken, and the number of addresses of its stack. Only ever called by one thread, as is `take`.
    pub(super) fn next(&self) -> Option<(Told, usize)> {
        let at = self.taken.0.load(Ordering::Relaxed);
        if at == self.put.0.words.load(Ordering::Acquire) {
            return None;
        }
        Told::of(std::array::from_fn(|index| self.word(at.wrapping_add(index))))
    }

    /// Takes the next event out, with its stack.
    pub(super) fn take(&self, frames: usize, stack: &mut Vec<u64>) {
        let at = self.taken.0.load(Ordering::Relaxed).wrapping_add(WORDS);
        stack.clear();
        stack.extend((0..frames).map(|index| self.word(at.wrapping_add(index))));
        self.taken.0.store(at.wrapping_add(frames), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    fn told(address: u64) -> Told {
        Told {
            what: What::Alloc,
            time: 0,
            address,
            requested: 3,
            bytes: u64::MAX,
            pool: u32::MAX,
            stream: 7,
            tag: 9,
        }
    }

    #[test]
    fn what_is_put_in_is_taken_out() {
        let ring = Ring::new(512, 1);
        let mut stack = Vec::new();
        for number in 0..1000_u64 {
            let frames: Vec<u64> = (0..number % 64).collect();
            ring.put(&told(number), &frames, || ());
            let (found, len) = ring.next().expect("one");
            ring.take(len, &mut stack);
            assert_eq!(stack, frames);
            let expected = Told {
                time: found.time,
                ..told(number)
            };
            assert_eq!(found, expected);
            assert_eq!(ring.next(), None);
        }
        assert_eq!(ring.lost(), Lost::default());
        ring.close();
        assert!(ring.is_over());
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let ring = Ring::new(0, 1);
        let room = ring.words.len() / WORDS;
        let hurries = AtomicU32::new(0);
        for number in 0..room as u64 + 5 {
            ring.put(&told(number), &[], || {
                hurries.fetch_add(1, Ordering::Relaxed);
            });
        }
        let lost = Lost {
            events: 5,
            allocated: 15,
            freed: 0,
        };
        assert_eq!(ring.lost(), lost);
        assert!(hurries.into_inner() as usize >= room / 2);
        let mut stack = Vec::new();
        let mut addresses = 0..room as u64;
        while let Some((told, frames)) = ring.next() {
            assert_eq!(Some(told.address), addresses.next());
            ring.take(frames, &mut stack);
        }
        assert_eq!(addresses.next(), None);
    }

    #[test]
    fn two_threads_agree() {
        let ring = Arc::new(Ring::new(1 << 12, 1));
        let many: u64 = if cfg!(miri) { 300 } else { 200_000 };
        let putter = {
            let ring = Arc::clone(&ring);
            std::thread::spawn(move || {
                for number in 0..many {
                    ring.put(&told(number), &[number, !number], || ());
                }
                ring.close();
            })
        };
        let (mut last, mut seen, mut stack) = (None, 0, Vec::new());
        while !ring.is_over() {
            let Some((told, frames)) = ring.next() else {
                std::thread::yield_now();
                continue;
            };
            ring.take(frames, &mut stack);
            assert!(last < Some(told.address), "in order");
            assert_eq!(stack, [told.address, !told.address]);
            last = Some(told.address);
            seen += 1;
        }
        putter.join().expect("it does not panic");
        assert_eq!(seen + ring.lost().events, many);
    }
}
