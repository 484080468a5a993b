//! The events of a trace while they are numbered in place.
//!
//! ```text
//! events   | numbered | free | not yet numbered |
//!          0      written   read              len
//! ```
//!
//! Numbering rarely produces more events than it reads. A second list would need the same memory again, and none of it
//! would be in a cache.

use crate::Event;

/// Events with `written <= read <= events.len()`.
#[derive(Default)]
pub(crate) struct Tape {
    events: Vec<Event>,
    written: usize,
    read: usize,
}

impl Tape {
    /// Adds events to be numbered. All earlier ones must have been read.
    pub(crate) fn load(&mut self, events: Vec<Event>) {
        if self.written == 0 {
            *self = Self {
                events,
                ..Self::default()
            };
        } else {
            self.events.truncate(self.written);
            self.read = self.written;
            self.events.extend(events);
        }
    }

    /// Returns the next event to be numbered.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.next_if(|_| true)
    }

    /// Returns the next event to be numbered if `wanted` accepts it.
    #[inline]
    pub(crate) fn next_if(&mut self, wanted: impl FnOnce(&Event) -> bool) -> Option<Event> {
        let event = self.events.get(self.read).filter(|event| wanted(event))?;
        self.read += 1;
        Some(*event)
    }

    /// Adds a numbered event.
    #[inline]
    pub(crate) fn push(&mut self, event: Event) {
        if self.written == self.read {
            return self.push_whole(event);
        }
        self.events[self.written] = event;
        self.written += 1;
    }

    /// Adds an event when there is no free slot.
    fn push_whole(&mut self, event: Event) {
        let waiting = self.events.len() - self.read;
        if waiting > 0 {
            self.widen(waiting, event);
            self.events[self.written] = event;
        } else {
            self.events.push(event);
            self.read += 1;
        }
        self.written += 1;
    }

    /// Makes space for this event, and for some of the waiting events to become two. The space is proportional, so that
    /// all moves together cost a small multiple of the events. `filler` fills it until then.
    #[cold]
    fn widen(&mut self, waiting: usize, filler: Event) {
        let waits = self.read..self.events.len();
        let room = waiting / 8 + 1;
        self.events.reserve_exact(room);
        self.events.resize(waits.end + room, filler);
        self.events.copy_within(waits, self.read + room);
        self.read += room;
    }

    /// Returns the number of numbered events.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.written
    }

    /// Returns a numbered event.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&Event> {
        self.events[..self.written].get(at)
    }

    /// Returns whether no event was numbered.
    pub(crate) fn is_empty(&self) -> bool {
        self.written == 0
    }

    /// Returns all numbered events.
    pub(crate) fn finish(mut self) -> Vec<Event> {
        self.events.truncate(self.written);
        self.events.shrink_to_fit();
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;

    fn event(bytes: u64) -> Event {
        Event {
            bytes,
            ..Event::new(Action::Alloc)
        }
    }

    /// Reads all events and writes each as often as `times` says.
    fn copied(raw: &[u64], times: impl Fn(u64) -> usize) -> Vec<u64> {
        let mut tape = Tape::default();
        tape.load(raw.iter().map(|&bytes| event(bytes)).collect());
        while let Some(read) = tape.next() {
            for _ in 0..times(read.bytes) {
                tape.push(read);
            }
        }
        tape.finish().iter().map(|event| event.bytes).collect()
    }

    #[test]
    fn events_are_numbered_in_place() {
        assert_eq!(copied(&[1, 2, 3], |_| 1), [1, 2, 3]);
        assert_eq!(copied(&[1, 2, 3], |bytes| usize::from(bytes != 2)), [1, 3]);
        assert_eq!(copied(&[], |_| 1), [0; 0]);
    }

    #[test]
    fn events_that_become_two_overwrite_no_unread_events() {
        assert_eq!(copied(&[1, 2, 3], |_| 2), [1, 1, 2, 2, 3, 3]);
        let mixed = |bytes| (bytes % 3) as usize;
        let raw: Vec<u64> = (0..100).collect();
        let expected: Vec<u64> = raw.iter().flat_map(|&bytes| vec![bytes; mixed(bytes)]).collect();
        assert_eq!(copied(&raw, mixed), expected);
    }

    #[test]
    fn without_unread_events_new_events_are_appended() {
        let mut tape = Tape::default();
        assert!(tape.is_empty());
        tape.push(event(1));
        tape.load(vec![event(2)]);
        assert_eq!(tape.next_if(|event| event.bytes == 1), None);
        let read = tape.next().expect("one waits");
        tape.push(read);
        tape.push(event(3));
        let all: Vec<u64> = tape.finish().iter().map(|event| event.bytes).collect();
        assert_eq!(all, [1, 2, 3]);
    }
}
