//! The ring that carries the events of one thread to the writing thread: words in segments, with one writer and one
//! reader.
//!
//! ```text
//!    order     3     0     1
//!           [..===][=====][==...]      [     ][     ]
//!              taken         put         free: a bit each
//! ```
//!
//! Writing an event never waits. An event that does not fit is dropped and counted with its bytes. Words are atomic and are
//! written with relaxed ordering. The writer publishes the end of a complete event with release ordering, so a reader
//! that acquires it sees the whole event.
//!
//! The design keeps two processors from using the same cache line at the same time, and keeps the lines in their
//! caches. The reader loads the end position once for many events and marks a segment as free when it has left it. The
//! writer loads the free segments when its segment is full, and takes the free segment with the lowest number. As long
//! as the reader keeps up, only a few segments are used and allocated.

#[cfg(test)]
mod tests;

use super::event::{Lost, LostCounters, RingEvent, What};
use millpond_os::metadata::has_room;
use millpond_os::reentrancy::quiet;
use millpond_os::time::Ticks;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The maximum number of segments of a ring. Each has a bit.
const SEGMENTS: usize = 64;
/// The minimum number of words of a segment. It holds some events with complete stacks.
const LEAST: usize = 512;
/// The maximum number of words of the segments with the lower half of the numbers. Threads whose events are taken in time
/// use only these, so their memory stays small even in a large ring.
const SMALL: usize = 1 << 13;
/// The words of a short event, which depends on its predecessor: the kind with the time difference, the address, and
/// the sizes.
const SHORT: usize = 3;
/// The maximum number of words of an event without its stack.
const LONG: usize = 8;
/// The maximum number of stored addresses of a stack, from the innermost.
pub(crate) const FRAMES: usize = 64;

/// The bits in the first word that show which words follow the first three.
mod form {
    /// A word with the pool and the tag, if they differ from the previous event's.
    pub(crate) const WHOSE: u64 = 1 << 16;
    /// A word with the stream, if it differs.
    pub(crate) const STREAM: u64 = 1 << 17;
    /// Two words with the sizes, if they are too large for one.
    pub(crate) const LARGE: u64 = 1 << 18;
    /// A word with the time, if the previous event was long ago.
    pub(crate) const LATE: u64 = 1 << 19;
    pub(crate) const ANY: u64 = WHOSE | STREAM | LARGE | LATE;
}

/// A value on its own cache line, so that counts of two threads do not share one.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Own<T>(T);

#[derive(Debug, Default)]
struct Segment(Vec<AtomicU64>);

/// A position of writing or reading. The lower half contains the word in a segment. The upper half contains the number
/// of the segment in the order of use, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place(u64);

impl Place {
    /// The bit that shows that an event is being written at the position. Segments have fewer words.
    const BUSY: u64 = 1 << 31;

    fn turn(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn at(self) -> usize {
        (self.0 & (Self::BUSY - 1)) as usize
    }

    /// Returns the position some words further in the same segment, which has at least that many.
    fn after(self, words: usize) -> Self {
        Self(self.0 + words as u64)
    }

    /// Returns the start of the next segment in the order of use.
    fn next_turn(self) -> Self {
        Self(u64::from(self.turn().wrapping_add(1)) << 32)
    }
}

/// The fields that an event omits if the previous event of its thread had the same values.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// The time in the clock's ticks, like all times in the ring.
    time: u64,
    pool: u32,
    stream: u32,
    tag: u32,
}

/// The fields that the writing end changes.
#[derive(Debug, Default)]
struct Put {
    /// The end of the complete events, and whether an event is being written.
    place: AtomicU64,
    lost: LostCounters,
}

impl Put {
    /// Marks that an event is being written from this position on. This happens before its time is read: see `is_busy`.
    /// The store has release ordering because it may replace the store that ended the previous event, and a reader may
    /// read that event after it has seen this store.
    fn begin(&self, place: Place) {
        self.place.store(place.0 | Place::BUSY, Ordering::Release);
    }

    /// Marks that the event is complete or was abandoned.
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

/// The part that both ends share.
#[derive(Debug)]
pub struct Ring {
    put: Own<Put>,
    /// The segments that are empty, one bit each. The reader sets bits, and the writer clears them.
    free: Own<AtomicU64>,
    /// The segments. Each is allocated when it is first needed.
    segments: Box<[OnceLock<Arc<Segment>>]>,
    /// The segment of each turn, modulo the number of segments. Every segment in use has an entry because it is used
    /// for one turn at a time.
    order: Box<[AtomicU8]>,
    /// The mean number of words of a segment.
    len: usize,
    /// True if the writer is gone.
    closed: AtomicBool,
    /// The number of the writer's thread, and the system's id of it.
    pub thread: u32,
    pub task: u32,
}

impl Ring {
    /// Makes a ring with space for at least the given number of words.
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
            task: millpond_os::task(),
        }
    }

    /// Returns the words of a segment.
    fn len_of(&self, number: u32) -> usize {
        let small = self.len.min(SMALL);
        if (number as usize) < self.segments.len() / 2 {
            small
        } else {
            2 * self.len - small
        }
    }

    /// Returns a segment, or `None` if memory is short.
    fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        let place = self.segments.get(number as usize)?;
        if let Some(segment) = place.get() {
            return Some(Arc::clone(segment));
        }
        let _quiet = quiet();
        let mut words = Vec::new();
        let len = self.len_of(number);
        if !has_room(len * size_of::<AtomicU64>()) {
            return None;
        }
        words.try_reserve_exact(len).ok()?;
        words.resize_with(len, AtomicU64::default);
        Some(Arc::clone(place.get_or_init(|| Arc::new(Segment(words)))))
    }

    fn turn(&self, turn: u32) -> Option<&AtomicU8> {
        self.order.get(turn as usize & (self.order.len() - 1))
    }

    /// Returns the counts of the events that did not fit so far.
    pub fn lost(&self) -> Lost {
        self.put.0.lost.get()
    }

    /// Returns true if an event is being written. Its time may have been read already, and it cannot be taken yet.
    pub fn is_busy(&self) -> bool {
        self.put.0.is_busy()
    }
}

/// The writing end. Dropping it closes the ring.
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
            // An empty segment, which has no space.
            segment: Arc::default(),
            place: Place::default(),
            before: Before::default(),
        }
    }

    /// Writes a short event with the current time instead of its own, if it can be expressed in few words and the
    /// segment has space. Nearly all events can. The function is inlined into its callers so that the event need not be
    /// stored in memory first.
    #[inline(always)]
    pub(crate) fn put_short(&mut self, told: &RingEvent) -> bool {
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

    /// Writes any event with the addresses of its stack. Calls `hurry` if not much space is left.
    #[inline(never)]
    pub(crate) fn put(&mut self, told: &RingEvent, frames: &[u64], hurry: impl FnOnce()) {
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
            self.ring.put.0.lost.count(told);
        }
        self.ring.put.0.end(self.place);
    }

    /// Returns the number of the writer's thread.
    pub(crate) fn thread(&self) -> u32 {
        self.ring.thread
    }

    /// Returns true if less than a quarter of the segments is free.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let free = self.ring.free.0.load(Ordering::Relaxed).count_ones() as usize;
        4 * free < self.ring.segments.len()
    }

    /// Encodes an event. Also returns the fields that the next event may omit.
    fn words(&self, told: &RingEvent, time: u64, frames: usize) -> (Words, Before) {
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

    /// Continues in another segment, if one is free.
    #[cold]
    fn go_on(&mut self, hurry: impl FnOnce()) -> bool {
        let ring = &*self.ring;
        let free = ring.free.0.load(Ordering::Acquire);
        if free.count_ones() as usize <= ring.segments.len() / 2 {
            hurry();
        }
        let number = free.trailing_zeros();
        // The number 64 means that no segment is free, and there is no such segment.
        let Some(segment) = ring.segment(number) else {
            return false;
        };
        ring.free.0.fetch_and(!(1 << number), Ordering::Relaxed);
        // A zero word ends the segment: the event is in the next one.
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
}

impl Drop for Putter {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

/// A short list of words.
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

/// The reading end.
#[derive(Debug)]
pub struct Taker {
    /// The ring that is read.
    pub ring: Arc<Ring>,
    segment: Arc<Segment>,
    /// The number of the current segment, if it belongs to the ring.
    number: Option<u8>,
    place: Place,
    /// The end of the available events when it was last loaded.
    end: Place,
    before: Before,
    /// The next event and the number of addresses of its stack, which are the next words.
    head: Option<(RingEvent, usize)>,
}

impl Taker {
    /// Creates a reader at the beginning of the ring.
    pub fn new(ring: Arc<Ring>) -> Self {
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

    /// Loads the end of the available events. Later events are not returned before the next call.
    pub fn look(&mut self) {
        self.end = self.ring.put.0.place();
        if self.head.is_none() {
            self.head = self.read();
        }
    }

    /// Returns the time of the next event.
    #[inline]
    pub fn time(&self) -> Option<u64> {
        self.head.map(|(told, _)| told.time)
    }

    /// Takes the next event with its stack.
    #[inline]
    pub fn take(&mut self, stack: &mut Vec<u64>) -> Option<RingEvent> {
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

    /// Returns true if no more events can follow.
    pub fn is_over(&mut self) -> bool {
        self.ring.closed.load(Ordering::Acquire) && {
            self.look();
            self.head.is_none()
        }
    }

    /// Reads the event at the position.
    #[inline]
    fn read(&mut self) -> Option<(RingEvent, usize)> {
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
                let mut told = RingEvent {
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

    /// Continues in the segment of the next turn, and releases this one, which is completely read.
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

/// Decodes the words of an event after its first three. Returns their number.
fn tell_more(told: &mut RingEvent, time: &mut u64, head: u64, words: &[AtomicU64]) -> usize {
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
