//! What one thread tells, on its way to the thread that writes: words in segments, put in by one thread and taken out by another.
//!
//! ```text
//!    order     3     0     1
//!           [..===][=====][==...]      [     ][     ]
//!              taken         put         free: a bit each
//! ```
//!
//! Who puts in never waits: what has no room is counted, with its bytes, and is lost. Words are atomic and written without
//! order; the place up to which is put in is released when an event is whole, so whoever has acquired it reads what was written.
//!
//! It is made so that two processors seldom want the same line of memory, and that the lines stay in their caches. Who takes out
//! looks once for many events at how far there is something, and says that a segment is free when it has left it; who puts in
//! looks for that when a segment is full, and takes the free one with the lowest number: as long as the other one keeps up, a few
//! segments are all that is ever touched, and all that is ever allocated.

#[cfg(test)]
mod tests;

use super::told::{Lost, Told, What};
use crate::reentrancy::quiet;
use crate::time::Ticks;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Segments of a ring at the most: each has a bit.
const SEGMENTS: usize = 64;
/// Words of a segment at the least: some events with whole stacks.
const LEAST: usize = 512;
/// Words of an event whose neighbours say the rest: what it is and how long after the last one, where, and how large.
const SHORT: usize = 3;
/// Words of an event at the most, but for its stack.
const LONG: usize = 8;
/// Addresses of a stack that are kept, from the innermost.
pub(crate) const FRAMES: usize = 64;

/// What follows the first three words, as bits of the first one.
mod form {
    /// A word with the pool and the tag, which are others than the last event's.
    pub(crate) const WHOSE: u64 = 1 << 16;
    /// A word with the stream, which is another.
    pub(crate) const STREAM: u64 = 1 << 17;
    /// Two words with the sizes, which are too large for one.
    pub(crate) const LARGE: u64 = 1 << 18;
    /// A word with the time: the last event was long ago.
    pub(crate) const LATE: u64 = 1 << 19;
    pub(crate) const ANY: u64 = WHOSE | STREAM | LARGE | LATE;
}

/// Alone on its line of the processor's cache, so that two threads' counts do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Own<T>(T);

#[derive(Debug, Default)]
struct Segment(Vec<AtomicU64>);

/// How far something is put in or taken out: the word in a segment, and above that the segment in the order of their use, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place(u64);

impl Place {
    /// With it: an event is being put in there. Segments are shorter.
    const BUSY: u64 = 1 << 31;

    fn turn(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn at(self) -> usize {
        (self.0 & (Self::BUSY - 1)) as usize
    }

    /// So many words further in the same segment, which has that many.
    fn after(self, words: usize) -> Self {
        Self(self.0 + words as u64)
    }

    /// The beginning of the segment of the next turn.
    fn next_turn(self) -> Self {
        Self(u64::from(self.turn().wrapping_add(1)) << 32)
    }
}

/// What an event need not say if the one before it on its thread said the same.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// In the clock's ticks, as all times on the way.
    time: u64,
    pool: u32,
    stream: u32,
    tag: u32,
}

/// Written by the thread that puts in.
#[derive(Debug, Default)]
struct Put {
    /// Up to where events are whole, and whether one is being put in.
    place: AtomicU64,
    lost: [AtomicU64; 3],
}

impl Put {
    /// An event is being put in from here on. Before its time is read: see `is_busy`. Released as the last one's end, in the place of which
    /// it may be read.
    fn begin(&self, place: Place) {
        self.place.store(place.0 | Place::BUSY, Ordering::Release);
    }

    /// It is whole, or none came of it.
    fn end(&self, place: Place) {
        self.place.store(place.0, Ordering::Release);
    }

    fn is_busy(&self) -> bool {
        self.place.load(Ordering::Acquire) & Place::BUSY != 0
    }

    fn place(&self) -> Place {
        Place(self.place.load(Ordering::Acquire) & !Place::BUSY)
    }
}

/// What both threads have of it.
#[derive(Debug)]
pub(crate) struct Ring {
    put: Own<Put>,
    /// Segments that hold nothing, a bit each. Set by the thread that takes out, cleared by the other.
    free: Own<AtomicU64>,
    /// Each is allocated when it is first needed.
    segments: Box<[OnceLock<Arc<Segment>>]>,
    /// Which segment is used in which turn, modulo their number: each that is in use has a place, since it is in use once.
    order: Box<[AtomicU8]>,
    /// Words of a segment.
    len: usize,
    /// The thread that puts in is gone.
    closed: AtomicBool,
    /// That thread's number, and what the system knows it by.
    pub(crate) thread: u32,
    pub(crate) task: u32,
}

impl Ring {
    /// Room for so many words, or some more.
    pub(crate) fn new(words: usize, thread: u32) -> Self {
        let words = words.clamp(2 * LEAST, 1 << 28).next_power_of_two();
        let segments = (words / LEAST).min(SEGMENTS);
        Self {
            put: Own::default(),
            free: Own(AtomicU64::new(u64::MAX >> (SEGMENTS - segments))),
            segments: std::iter::repeat_with(OnceLock::new).take(segments).collect(),
            order: std::iter::repeat_with(AtomicU8::default).take(segments).collect(),
            len: words / segments,
            closed: AtomicBool::new(false),
            thread,
            task: crate::os::task(),
        }
    }

    /// A segment, unless there is no memory for it.
    fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        let place = self.segments.get(number as usize)?;
        if let Some(segment) = place.get() {
            return Some(Arc::clone(segment));
        }
        let _quiet = quiet();
        let mut words = Vec::new();
        words.try_reserve_exact(self.len).ok()?;
        words.resize_with(self.len, AtomicU64::default);
        Some(Arc::clone(place.get_or_init(|| Arc::new(Segment(words)))))
    }

    fn turn(&self, turn: u32) -> Option<&AtomicU8> {
        self.order.get(turn as usize & (self.order.len() - 1))
    }

    /// What had no room so far.
    pub(crate) fn lost(&self) -> Lost {
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
    pub(crate) fn is_busy(&self) -> bool {
        self.put.0.is_busy()
    }
}

/// The thread's side that puts in. When it is dropped it will put in no more.
#[derive(Debug)]
pub(crate) struct Putter {
    ring: Arc<Ring>,
    segment: Arc<Segment>,
    place: Place,
    before: Before,
}

impl Putter {
    pub(crate) fn new(ring: &Arc<Ring>) -> Self {
        Self {
            ring: Arc::clone(ring),
            // One that has no room.
            segment: Arc::default(),
            place: Place::default(),
            before: Before::default(),
        }
    }

    /// Puts an event in at the time it is now, whatever time it says, if it can be told in few words and there is room for them. Nearly
    /// all can: part of its callers, so that what is told need not be written down before.
    #[inline(always)]
    pub(crate) fn put_short(&mut self, told: &Told) -> bool {
        let before = &mut self.before;
        let at = self.place.at();
        if (told.requested | told.bytes) >> 32 != 0
            || told.pool != before.pool
            || told.stream != before.stream
            || (told.what != What::Free && told.tag != before.tag)
        {
            return false;
        }
        let Some([head, address, sizes]) = self.segment.0.get(at..at + SHORT) else {
            return false;
        };
        let put = &self.ring.put.0;
        put.begin(self.place);
        let time = Ticks::now().0;
        let since = time.wrapping_sub(before.time);
        if since >> 32 != 0 {
            put.end(self.place);
            return false;
        }
        head.store(told.what as u64 | since << 32, Ordering::Relaxed);
        address.store(told.address, Ordering::Relaxed);
        sizes.store(told.requested | told.bytes << 32, Ordering::Relaxed);
        before.time = time;
        self.place = self.place.after(SHORT);
        put.end(self.place);
        true
    }

    /// Puts any event in, with the addresses of its stack; `hurry` is called where not much room is left.
    #[inline(never)]
    pub(crate) fn put(&mut self, told: &Told, frames: &[u64], hurry: impl FnOnce()) {
        self.ring.put.0.begin(self.place);
        let (words, before) = self.words(told, Ticks::now().0, frames.len());
        let len = words.len() + frames.len();
        if self.place.at() + len <= self.segment.0.len() || self.go_on(hurry) {
            let places = self.segment.0.get(self.place.at()..).unwrap_or_default();
            for (place, word) in places.iter().zip(words.iter().chain(frames)) {
                place.store(*word, Ordering::Relaxed);
            }
            self.before = before;
            self.place = self.place.after(len);
        } else {
            self.lose(told);
        }
        self.ring.put.0.end(self.place);
    }

    /// What an event is written as, and what the one after it need not say.
    fn words(&self, told: &Told, time: u64, frames: usize) -> (Words, Before) {
        let before = self.before;
        let tag = if told.what == What::Free {
            before.tag
        } else {
            told.tag
        };
        let mut words = Words::default();
        let mut form = 0;
        let mut sizes = [told.requested, told.bytes];
        let mut since = time.wrapping_sub(before.time);
        for _ in 0..SHORT {
            words.push(0);
        }
        if (told.pool, tag) != (before.pool, before.tag) {
            form |= form::WHOSE;
            words.push(u64::from(told.pool) | u64::from(tag) << 32);
        }
        if told.stream != before.stream {
            form |= form::STREAM;
            words.push(u64::from(told.stream));
        }
        if sizes.iter().any(|size| size >> 32 > 0) {
            form |= form::LARGE;
            words.push(told.requested);
            words.push(told.bytes);
            sizes = [0; 2];
        }
        if since >> 32 > 0 {
            form |= form::LATE;
            words.push(time);
            since = 0;
        }
        let [requested, bytes] = sizes;
        words.words[0] = told.what as u64 | (frames as u64) << 8 | form | since << 32;
        words.words[1] = told.address;
        words.words[2] = requested | bytes << 32;
        let now = Before {
            time,
            pool: told.pool,
            stream: told.stream,
            tag,
        };
        (words, now)
    }

    /// Goes on in another segment, if one is free.
    #[cold]
    fn go_on(&mut self, hurry: impl FnOnce()) -> bool {
        let ring = &*self.ring;
        let free = ring.free.0.load(Ordering::Acquire);
        if free.count_ones() as usize <= ring.segments.len() / 2 {
            hurry();
        }
        let number = free.trailing_zeros();
        // There is none with the number 64.
        let Some(segment) = ring.segment(number) else {
            return false;
        };
        ring.free.0.fetch_and(!(1 << number), Ordering::Relaxed);
        // Nothing begins with it: the event is in the next one.
        if let Some(rest) = self.segment.0.get(self.place.at()) {
            rest.store(0, Ordering::Relaxed);
        }
        self.segment = segment;
        self.place = self.place.next_turn();
        if let Some(turn) = ring.turn(self.place.turn()) {
            turn.store(number as u8, Ordering::Relaxed);
        }
        true
    }

    #[cold]
    fn lose(&self, told: &Told) {
        let [events, allocated, freed] = &self.ring.put.0.lost;
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

impl Drop for Putter {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

/// A few words in a row.
#[derive(Default)]
struct Words {
    words: [u64; LONG],
    len: usize,
}

impl Words {
    fn push(&mut self, word: u64) {
        if let Some(place) = self.words.get_mut(self.len) {
            *place = word;
            self.len += 1;
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn iter(&self) -> impl Iterator<Item = &u64> {
        self.words.iter().take(self.len)
    }
}

/// The side of the thread that takes out.
#[derive(Debug)]
pub(crate) struct Taker {
    pub(crate) ring: Arc<Ring>,
    segment: Arc<Segment>,
    /// What the segment is known by, if it is one of the ring's.
    number: Option<u8>,
    place: Place,
    /// Up to where there is something, as was last looked.
    end: Place,
    before: Before,
    /// The next event, and the number of addresses of its stack, which are the next words.
    head: Option<(Told, usize)>,
}

impl Taker {
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        Self {
            ring,
            segment: Arc::default(),
            number: None,
            place: Place::default(),
            end: Place::default(),
            before: Before::default(),
            head: None,
        }
    }

    /// Looks how far there is something by now: what comes later is not taken before this is called again.
    pub(crate) fn look(&mut self) {
        self.end = self.ring.put.0.place();
        if self.head.is_none() {
            self.head = self.read();
        }
    }

    /// The time of the next event.
    #[inline]
    pub(crate) fn time(&self) -> Option<u64> {
        self.head.map(|(told, _)| told.time)
    }

    /// Takes the next event out, with its stack.
    #[inline]
    pub(crate) fn take(&mut self, stack: &mut Vec<u64>) -> Option<Told> {
        let (told, frames) = self.head?;
        stack.clear();
        if frames > 0 {
            let at = self.place.at();
            let words = self.segment.0.get(at..at + frames).unwrap_or_default();
            stack.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
            self.place = self.place.after(frames);
        }
        self.head = self.read();
        Some(told)
    }

    /// Whether there is never anything again.
    pub(crate) fn is_over(&mut self) -> bool {
        self.ring.closed.load(Ordering::Acquire) && {
            self.look();
            self.head.is_none()
        }
    }

    /// The event at the place.
    #[inline]
    fn read(&mut self) -> Option<(Told, usize)> {
        loop {
            let is_last = self.place.turn() == self.end.turn();
            let len = if is_last {
                self.end.at()
            } else {
                self.segment.0.len()
            };
            let places = self.segment.0.get(self.place.at()..len);
            if let Some([head, address, sizes, rest @ ..]) = places
                && let head = head.load(Ordering::Relaxed)
                && let Some(what) = What::of(head as u8)
            {
                let sizes = sizes.load(Ordering::Relaxed);
                let mut time = self.before.time.wrapping_add(head >> 32);
                let mut told = Told {
                    what,
                    time: 0,
                    address: address.load(Ordering::Relaxed),
                    requested: sizes & u64::from(u32::MAX),
                    bytes: sizes >> 32,
                    pool: self.before.pool,
                    stream: self.before.stream,
                    tag: self.before.tag,
                };
                let more = if head & form::ANY == 0 {
                    0
                } else {
                    tell_more(&mut told, &mut time, head, rest)
                };
                self.place = self.place.after(SHORT + more);
                told.time = Ticks(time).time().nanos();
                self.before = Before {
                    time,
                    pool: told.pool,
                    stream: told.stream,
                    tag: told.tag,
                };
                return Some((told, usize::from((head >> 8) as u8)));
            }
            if is_last {
                return None;
            }
            self.go_on();
        }
    }

    /// Goes on in the segment of the next turn: nobody takes anything from this one any more.
    #[cold]
    fn go_on(&mut self) {
        if let Some(number) = self.number {
            self.ring.free.0.fetch_or(1 << number, Ordering::Release);
        }
        self.place = self.place.next_turn();
        let turn = self.ring.turn(self.place.turn());
        self.number = turn.map(|turn| turn.load(Ordering::Relaxed));
        let place = self
            .number
            .and_then(|number| self.ring.segments.get(usize::from(number)));
        self.segment = place.and_then(OnceLock::get).cloned().unwrap_or_default();
    }
}

/// What an event says in the words after its first three; how many those are.
fn tell_more(told: &mut Told, time: &mut u64, head: u64, words: &[AtomicU64]) -> usize {
    let mut next = 0;
    let mut word = || {
        let word = words.get(next).map_or(0, |word| word.load(Ordering::Relaxed));
        next += 1;
        word
    };
    if head & form::WHOSE != 0 {
        let whose = word();
        (told.pool, told.tag) = (whose as u32, (whose >> 32) as u32);
    }
    if head & form::STREAM != 0 {
        told.stream = word() as u32;
    }
    if head & form::LARGE != 0 {
        (told.requested, told.bytes) = (word(), word());
    }
    if head & form::LATE != 0 {
        *time = word();
    }
    next
}
