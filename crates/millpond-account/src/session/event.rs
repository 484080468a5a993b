//! The events that threads send to a recording, as values.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kind of an event, as a number in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// A block was allocated.
    Alloc = 1,
    /// A block was freed.
    Free,
    /// Memory was taken from the source.
    Reserve,
    /// Memory was returned to the source.
    Release,
    /// A request failed.
    Refused,
    /// A mark. `requested` contains its number.
    Mark,
    /// The beginning of a step of the whole program. `requested` contains its number.
    Step,
}

impl What {
    pub(crate) fn of(number: u8) -> Option<Self> {
        let all = [
            Self::Alloc,
            Self::Free,
            Self::Reserve,
            Self::Release,
            Self::Refused,
            Self::Mark,
            Self::Step,
        ];
        all.get(usize::from(number).wrapping_sub(1)).copied()
    }
}

/// One event without its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingEvent {
    /// The kind of the event.
    pub what: What,
    /// The time in ticks.
    pub time: u64,
    /// The address of the block or the memory.
    pub address: u64,
    /// The requested bytes.
    pub requested: u64,
    /// The bytes of the block or the memory.
    pub bytes: u64,
    /// The number of the pool.
    pub pool: u32,
    /// The number of the stream.
    pub stream: u32,
    /// The tag. It is not used for a free, because the allocation contains it.
    pub tag: u32,
}

/// The counts of events that did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The number of lost events.
    pub events: u64,
    /// The requested bytes of the lost allocations.
    pub allocated: u64,
    /// The bytes of the lost frees.
    pub freed: u64,
}

impl Lost {
    /// Returns the losses since an earlier value.
    pub fn since(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            allocated: self.allocated - before.allocated,
            freed: self.freed - before.freed,
        }
    }
}

/// The counters of events that did not fit. The bytes of an event are counted before the event itself, so a reader never
/// sees an event without its bytes.
#[derive(Debug, Default)]
pub(super) struct LostCounters {
    events: AtomicU64,
    allocated: AtomicU64,
    freed: AtomicU64,
}

impl LostCounters {
    #[cold]
    pub(super) fn count(&self, event: &RingEvent) {
        match event.what {
            What::Alloc => self.allocated.fetch_add(event.requested, Ordering::Relaxed),
            What::Free => self.freed.fetch_add(event.requested, Ordering::Relaxed),
            _ => 0,
        };
        self.events.fetch_add(1, Ordering::Release);
    }

    pub(super) fn get(&self) -> Lost {
        Lost {
            events: self.events.load(Ordering::Acquire),
            allocated: self.allocated.load(Ordering::Relaxed),
            freed: self.freed.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_event_is_seen_without_its_bytes() {
        const EVENTS: u64 = if cfg!(miri) { 1_000 } else { 1_000_000 };
        let counters = LostCounters::default();
        let event = RingEvent {
            what: What::Alloc,
            time: 0,
            address: 0,
            requested: 3,
            bytes: 3,
            pool: 0,
            stream: 0,
            tag: 0,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..EVENTS).for_each(|_| counters.count(&event)));
            loop {
                let lost = counters.get();
                assert!(lost.allocated >= 3 * lost.events, "{lost:?}");
                if lost.events == EVENTS {
                    break;
                }
            }
        });
    }
}
