//! Those who watch a pool: subscribers, and the account of live blocks.

use super::ask::Ask;
use super::detour::Detour;
use super::heap::{Heap, Taken, lock};
use crate::error::AllocError;
use crate::event::{EventKind, Facts, Watchers};
use crate::global::inside;
use crate::ledger::{Ledger, WrongFree};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that went through the gate and were not told yet.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) taken: AtomicU64,
    pub(crate) given: AtomicU64,
}

/// The watchers that this thread used last, of which pool, and of which of its changes.
struct Known {
    heap: *const Heap,
    change: u64,
    watchers: Arc<Watchers>,
}

thread_local! {
    /// Taken out while they are called, so that a call within finds none and looks them up.
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
}

impl Heap {
    /// Those who watch, as they are now.
    pub(crate) fn watchers(&self) -> Arc<Watchers> {
        Arc::clone(&lock(&self.watchers))
    }

    /// Has others watch. Every call that begins after this one has returned is told to them.
    pub(crate) fn change_watchers<R>(&self, change: impl FnOnce(&Watchers) -> (Watchers, R)) -> R {
        let (before, answer) = {
            let _inside = inside();
            // First the list of caches, then the watchers, as a fork takes them.
            let roll = lock(&self.roll);
            let mut now = lock(&self.watchers);
            let (made, answer) = change(&now);
            let watched = !made.is_empty();
            let before = std::mem::replace(&mut *now, Arc::new(made));
            self.watch_changes.fetch_add(1, Ordering::Release);
            self.turn_detour(&roll, Detour::Watched, watched);
            (before, answer)
        };
        // A subscriber's own code may run: outside every lock.
        drop(before);
        answer
    }

    fn with_watchers<R>(&self, work: impl FnOnce(&Watchers) -> R) -> R {
        let change = self.watch_changes.load(Ordering::Acquire);
        let known = KNOWN.try_with(Cell::take).ok().flatten();
        let known = known.filter(|known| ptr::eq(known.heap, self) && known.change == change);
        let known = known.unwrap_or_else(|| Known {
            heap: self,
            change,
            watchers: self.watchers(),
        });
        let answer = work(&known.watchers);
        // At the end of the thread it goes.
        let _ = KNOWN.try_with(|place| place.set(Some(known)));
        answer
    }

    /// Tells of a block that was handed out, or of a request that was refused.
    pub(super) fn tell_allocated(&self, ask: Ask, outcome: &Result<Taken, AllocError>) {
        let facts = |taken: Option<Taken>| Facts {
            address: taken.map_or(0, |taken| taken.address),
            requested: ask.requested,
            bytes: taken.map_or(0, |taken| taken.bytes),
            align: ask.align,
        };
        self.with_watchers(|watchers| match outcome {
            Ok(taken) => watchers.allocated(&facts(Some(*taken))),
            Err(_) => watchers.note(EventKind::Refused, &facts(None)),
        });
        self.tell_flow();
    }

    /// Tells of a block that comes back, before anyone else can be given it. An alignment of 0: the caller does not say.
    pub(super) fn tell_freed(
        &self,
        taken: Taken,
        requested: usize,
        align: usize,
    ) -> Result<(), Box<WrongFree>> {
        let facts = Facts {
            address: taken.address,
            requested,
            bytes: taken.bytes,
            align,
        };
        self.with_watchers(|watchers| watchers.freed(&facts))
    }

    /// Says on standard error what is wrong with a block, for callers that cannot be answered. Outside every lock.
    #[cold]
    pub(super) fn say_wrong(&self, wrong: &WrongFree) {
        let _inside = inside();
        crate::os::say(&format!("millpond: {wrong}\n"));
    }

    /// Tells what is wrong with a block.
    pub(super) fn tell_wrong_to_watchers(&self, wrong: &WrongFree) {
        if self.is_watched() {
            self.with_watchers(|watchers| watchers.wrong(wrong));
        }
    }

    /// Tells what came from the source and went back to it since this was last told.
    pub(super) fn tell_flow(&self) {
        for (kind, bytes) in [
            (EventKind::Refilled, &self.flow.taken),
            (EventKind::Trimmed, &self.flow.given),
        ] {
            if bytes.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let bytes = bytes.swap(0, Ordering::Relaxed);
            if bytes > 0 && self.detours(Detour::Watched) {
                let facts = Facts {
                    bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                    ..Facts::default()
                };
                self.with_watchers(|watchers| watchers.note(kind, &facts));
            }
        }
    }

    /// Whether someone watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.detours(Detour::Watched)
    }

    /// The account of live blocks, if there is one.
    pub(crate) fn ledger(&self) -> Option<Arc<Ledger>> {
        lock(&self.watchers).ledger().cloned()
    }
}
