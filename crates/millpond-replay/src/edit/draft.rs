//! A program as the lives of its blocks, which edits can change.

use super::error::EditError;
use crate::program::{handled_before, is_servable};
use millpond_trace::{Action, Event, InitialBlock, Strings, Trace};
use std::collections::HashMap;

/// The largest size that a trace may contain.
const LARGEST: u64 = 1 << 62;

/// The most blocks of a changed program. If the recording has more than half as many, the limit is twice its blocks.
const MOST_LIVES: usize = 1 << 23;

/// A moment of the program. Moments that an edit adds lie before or after a recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// Index into [`Trace::events`].
    pub(super) event: usize,
    /// Negative before the event, 0 at the event, and positive after it.
    rank: i64,
}

impl Moment {
    /// Returns the moment of a recorded event.
    pub(super) const fn at(event: usize) -> Self {
        Self { event, rank: 0 }
    }
}

/// A block from its allocation to its free.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) bytes: u64,
    pub(super) tag: u32,
    pub(super) stream: u16,
    pub(super) pool: u16,
    /// `None` for a block that lived before the first event.
    pub(super) made: Option<Moment>,
    /// `None` if the program never frees it.
    pub(super) freed: Option<Moment>,
    /// The moment at which the streams that used it have finished, if it is recorded.
    pub(super) completed: Option<Moment>,
    /// Whether another stream may still use it when it is freed.
    waits: bool,
    /// Whether it was freed before the first event and still waits for a stream.
    pub(super) pending: bool,
    pub(super) removed: bool,
}

impl Life {
    /// Returns the index of the event that made the block.
    pub(super) fn made_at(&self) -> Option<usize> {
        self.made.map(|made| made.event)
    }

    /// Returns the index of the event that freed the block, or `usize::MAX`.
    pub(super) fn freed_at(&self) -> usize {
        self.freed.map_or(usize::MAX, |freed| freed.event)
    }
}

/// A program that is being changed.
#[derive(Debug)]
pub(super) struct Draft {
    /// The blocks that lived before the first event, then the others in the order in which they were made.
    pub(super) lives: Vec<Life>,
    tags: Strings,
    /// The tags of recomputed blocks, by the tag of the original.
    again: HashMap<u32, u32>,
    /// The number of blocks of the recording. Those that an edit adds come after them.
    recorded: usize,
    limit: usize,
    added: i64,
}

impl Draft {
    /// Reads the blocks of a recording. A request that was refused becomes a block that is freed at once, unless the program has
    /// handled the refusal.
    pub(super) fn new(trace: &Trace) -> Self {
        let mut lives: Vec<Life> = Vec::with_capacity(trace.allocations as usize);
        let mut number = vec![usize::MAX; trace.allocations as usize];
        for block in &trace.initial_blocks {
            if let Some(number) = number.get_mut(block.allocation as usize) {
                *number = lives.len();
            }
            lives.push(Life {
                bytes: block.requested,
                tag: block.tag,
                stream: block.stream,
                pool: block.pool,
                made: None,
                freed: None,
                completed: None,
                waits: false,
                pending: block.pending,
                removed: false,
            });
        }
        let handled = handled_before(trace);
        for (at, event) in trace.events.iter().enumerate() {
            let made = Life {
                bytes: event.bytes,
                tag: event.tag,
                stream: event.stream,
                pool: event.pool,
                made: Some(Moment::at(at)),
                freed: None,
                completed: None,
                waits: false,
                pending: false,
                removed: false,
            };
            if event.action == Action::OutOfMemory && at >= handled && is_servable(0, event.bytes) {
                let freed = Some(Moment { event: at, rank: 1 });
                lives.push(Life { freed, ..made });
                continue;
            }
            let Some(number) = number.get_mut(event.allocation as usize) else {
                continue;
            };
            if event.action == Action::Alloc {
                *number = lives.len();
                lives.push(made);
                continue;
            }
            let Some(life) = lives.get_mut(*number) else {
                continue;
            };
            match event.action {
                Action::Free | Action::FreeRequested => {
                    life.freed = Some(Moment::at(at));
                    life.waits = event.action == Action::FreeRequested;
                }
                Action::FreeCompleted => life.completed = Some(Moment::at(at)),
                _ => {}
            }
        }
        Self {
            recorded: lives.len(),
            limit: MOST_LIVES.max(lives.len().saturating_mul(2)),
            lives,
            tags: trace.tags.clone(),
            again: HashMap::new(),
            added: 0,
        }
    }

    /// Returns the number of recorded blocks that were made before an event.
    pub(super) fn made_before(&self, event: usize) -> usize {
        self.lives[..self.recorded].partition_point(|life| life.made_at().is_none_or(|at| at < event))
    }

    /// Returns a moment before an event, and after all moments that earlier calls put before this event.
    pub(super) fn before(&mut self, event: usize) -> Moment {
        self.added += 1;
        Moment {
            event,
            rank: i64::MIN / 2 + self.added,
        }
    }

    /// Returns a moment after an event, and after all moments that earlier calls put after this event.
    pub(super) fn after(&mut self, event: usize) -> Moment {
        self.added += 1;
        Moment {
            event,
            rank: self.added,
        }
    }

    /// Adds a block that is like another one.
    pub(super) fn add(
        &mut self,
        like: usize,
        bytes: u64,
        made: Moment,
        freed: Option<Moment>,
    ) -> Result<(), EditError> {
        if self.lives.len() >= self.limit {
            return Err(EditError::TooLong { limit: self.limit });
        }
        self.lives.push(Life {
            bytes,
            made: Some(made),
            freed,
            completed: None,
            waits: false,
            pending: false,
            removed: false,
            ..self.lives[like].clone()
        });
        Ok(())
    }

    /// Marks the block that was added last as recomputed. Its phase becomes `rec`, if its tag names a phase.
    pub(super) fn mark_made_again(&mut self) {
        let Some(life) = self.lives.last_mut() else {
            return;
        };
        let tags = &mut self.tags;
        life.tag = *self.again.entry(life.tag).or_insert_with(|| {
            let again = tags
                .get(life.tag)
                .split_once(';')
                .map(|(_, rest)| format!("rec;{rest}"));
            again.map_or(life.tag, |again| tags.push(&again))
        });
    }

    /// Ends a block earlier or later than recorded. If the streams that used it have finished by then, the free
    /// waits for no stream.
    pub(super) fn end(&mut self, life: usize, freed: Moment) {
        let life = &mut self.lives[life];
        life.freed = Some(freed);
        if life.completed.is_some_and(|completed| completed <= freed) {
            life.completed = None;
            life.waits = false;
        }
    }

    /// Returns the changed program.
    pub(super) fn finish(&self, trace: &Trace) -> Trace {
        let times: Vec<u64> = trace.events.iter().map(|event| event.time_us).collect();
        let mut trace = Trace {
            origin: trace.origin.clone(),
            events: Vec::with_capacity(2 * self.lives.len()),
            allocations: 0,
            tags: self.tags.clone(),
            streams: trace.streams.clone(),
            pools: trace.pools.clone(),
            initial_segments: Vec::new(),
            initial_blocks: Vec::new(),
            settings: trace.settings.clone(),
            final_reserved_bytes: None,
            recorded_peak_reserved: None,
            unlisted_bytes: 0,
            cautions: trace.cautions.clone(),
        };
        let mut calls: Vec<(Moment, usize, Action)> = Vec::new();
        let mut numbers = vec![u32::MAX; self.lives.len()];
        for (index, life) in self.lives.iter().enumerate() {
            let never = life.made.is_some() && life.freed.is_some() && life.freed <= life.made;
            if life.removed || never {
                continue;
            }
            match life.made {
                Some(made) => calls.push((made, index, Action::Alloc)),
                None => {
                    numbers[index] = trace.initial_blocks.len() as u32;
                    trace.initial_blocks.push(InitialBlock {
                        address: 0,
                        requested: life.bytes.min(LARGEST),
                        bytes: None,
                        allocation: numbers[index],
                        tag: life.tag,
                        stream: life.stream,
                        pool: life.pool,
                        pending: life.pending,
                    });
                }
            }
            let free = if life.waits {
                Action::FreeRequested
            } else {
                Action::Free
            };
            calls.extend(life.freed.map(|freed| (freed, index, free)));
            calls.extend(
                life.completed
                    .map(|completed| (completed, index, Action::FreeCompleted)),
            );
        }
        calls.sort_by_key(|(moment, index, _)| (*moment, *index));
        trace.allocations = trace.initial_blocks.len() as u32;
        for (moment, index, action) in calls {
            if action == Action::Alloc {
                numbers[index] = trace.allocations;
                trace.allocations += 1;
            }
            let life = &self.lives[index];
            trace.events.push(Event {
                time_us: times.get(moment.event).or(times.last()).copied().unwrap_or(0),
                bytes: life.bytes.min(LARGEST),
                address: 0,
                allocation: numbers[index],
                tag: if action == Action::Alloc { life.tag } else { 0 },
                stream: life.stream,
                pool: life.pool,
                action,
            });
        }
        trace
    }
}
