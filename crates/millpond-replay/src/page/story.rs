//! Encodes the recording as columns: the action, allocation, size and tag of each event.
//!
//! Programs repeat themselves. So each value is first guessed from the value that followed the same
//! predecessors last time. A correct guess is a zero, and runs of zeros deflate to almost nothing. `story.js`
//! makes the same guesses in the same order.

use std::collections::HashMap;

use millpond_trace::{Action, NO_ALLOCATION, Trace};

use super::encode::{Blob, Column, difference, zigzag};

/// The facts about each allocation that the rest of the page needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    /// Bytes that the program requested.
    pub(crate) requested: u64,
    /// Event that allocated it. 0 for blocks older than the recording.
    pub(crate) birth: u32,
    /// Event at which the program freed it, or the number of events if it never did.
    pub(crate) death: u32,
    /// Event after which its memory was free.
    pub(crate) gone: u32,
    pub(crate) tag: u32,
    stream: u16,
    seen: bool,
    /// Whether the program had freed it before the first event, so no event subtracts it from the held bytes.
    waiting: bool,
}

impl Life {
    /// Returns bytes times events, which is the area that the block covers in the picture.
    pub(crate) fn area(&self) -> f64 {
        self.requested as f64 * f64::from(self.gone - self.birth)
    }
}

/// Returns the life of every allocation, by serial number.
pub(crate) fn lives(trace: &Trace) -> Vec<Life> {
    let end = trace.events.len() as u32;
    let fresh = Life {
        death: end,
        gone: end,
        ..Life::default()
    };
    let mut lives = vec![fresh; trace.allocations as usize];
    for block in &trace.initial_blocks {
        if let Some(life) = lives.get_mut(block.allocation as usize) {
            let death = if block.pending { 0 } else { end };
            *life = Life {
                requested: block.requested,
                birth: 0,
                death,
                gone: end,
                tag: block.tag,
                stream: block.stream,
                seen: true,
                waiting: block.pending,
            };
        }
    }
    for (index, event) in trace.events.iter().enumerate() {
        let index = index as u32;
        let Some(life) = lives.get_mut(event.allocation as usize) else {
            continue;
        };
        match event.action {
            Action::Alloc if !life.seen => {
                life.requested = event.bytes;
                life.birth = index;
                life.tag = event.tag;
                life.stream = event.stream;
                life.seen = true;
            }
            Action::FreeRequested => life.death = life.death.min(index),
            Action::Free | Action::FreeCompleted => {
                life.death = life.death.min(index);
                life.gone = life.gone.min(index);
            }
            _ => {}
        }
    }
    lives
}

/// Returns the sum of `bytes` over the allocations that the program holds, after every event.
pub(crate) fn held(trace: &Trace, lives: &[Life], bytes: impl Fn(usize) -> u64) -> Vec<u64> {
    let older = trace.initial_blocks.iter().filter(|block| !block.pending);
    let mut now = older.fold(0u64, |now, block| {
        now.saturating_add(bytes(block.allocation as usize))
    });
    let mut after = Vec::with_capacity(trace.events.len());
    for (index, event) in trace.events.iter().enumerate() {
        let serial = event.allocation as usize;
        if let Some(life) = lives.get(serial) {
            if event.action == Action::Alloc {
                if life.birth as usize == index {
                    now = now.saturating_add(bytes(serial));
                }
            } else if life.death as usize == index && !life.waiting {
                now = now.saturating_sub(bytes(serial));
            }
        }
        after.push(now);
    }
    after
}

/// Encodes the recording's columns in the order in which `story.js` reads them.
pub(crate) fn blob(trace: &Trace, lives: &[Life]) -> Blob {
    let mut blob = Blob::default();
    let actions: Vec<u8> = trace.events.iter().map(|event| event.action as u8).collect();
    blob.section(&actions);
    let (subjects, others) = subjects(trace);
    blob.section(subjects.bytes());
    blob.section(others.bytes());
    blob.section(tags(lives).bytes());
    blob.section(sizes(lives).bytes());
    let mut streams = Column::default();
    for life in lives {
        streams.put(u64::from(life.stream));
    }
    blob.section(streams.bytes());
    blob
}

/// Returns the allocation of each event, as a distance from the newest one, and the bytes of events without
/// an allocation.
fn subjects(trace: &Trace) -> (Column, Column) {
    let mut subjects = Column::default();
    let mut others = Column::default();
    let mut newest = trace.initial_blocks.len() as i64 - 1;
    for event in &trace.events {
        if event.allocation == NO_ALLOCATION {
            others.put(event.bytes);
            subjects.put(0);
        } else if event.action == Action::Alloc {
            // Serial numbers are dense in order of appearance, so the difference is 1 and the number a
            // constant.
            let serial = i64::from(event.allocation);
            subjects.put(1 + zigzag(serial - newest));
            newest = newest.max(serial);
        } else {
            subjects.put(1 + zigzag(newest - i64::from(event.allocation)));
        }
    }
    (subjects, others)
}

/// Encodes tags by allocation. The code is 0 if the same tag followed the two previous ones last time, and
/// otherwise the tag's index plus 1.
fn tags(lives: &[Life]) -> Column {
    let mut column = Column::default();
    let mut followers = HashMap::new();
    let (mut last, mut before) = (0, 0);
    for life in lives {
        let guess = followers.insert((before, last), life.tag);
        if guess == Some(life.tag) {
            column.put(0);
        } else {
            column.put(1 + u64::from(life.tag));
        }
        (before, last) = (last, life.tag);
    }
    column
}

/// Encodes bytes by allocation. The code is 0 if this tag had the same size after the same previous size last
/// time, and otherwise 1 plus the difference from the tag's last size.
fn sizes(lives: &[Life]) -> Column {
    let mut column = Column::default();
    let mut followers = HashMap::new();
    let mut of_tag = HashMap::new();
    let mut last = 0;
    for life in lives {
        let guess = followers.insert((life.tag, last), life.requested);
        let base = of_tag.insert(life.tag, life.requested).unwrap_or(0);
        if guess == Some(life.requested) {
            column.put(0);
        } else {
            column.put(1 + zigzag(difference(life.requested, base)));
        }
        last = life.requested;
    }
    column
}

/// Encodes recorded times as differences. Returns `None` if the recording has no usable clock.
pub(crate) fn times(trace: &Trace) -> Option<Blob> {
    let first = trace.events.first()?.time_us;
    let last = trace.events.last()?.time_us;
    if last <= first {
        return None;
    }
    let mut column = Column::default();
    let mut now = first;
    for event in &trace.events {
        // A clock that steps back would fold the time axis. So the previous time is kept.
        let time = event.time_us.max(now);
        column.put(time - now);
        now = time;
    }
    let mut blob = Blob::default();
    blob.section(column.bytes());
    Some(blob)
}
