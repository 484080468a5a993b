//! The reasons why calls of a pool leave the fast path, and the queue of waiting requests.

use super::biased_lock::{self, BiasedLock};
use super::heap::{CacheRegistry, Heap, lock};
use millpond_os::ranked::{Locked, Order, Rank, Ranked};
use std::collections::VecDeque;
use std::sync::Condvar;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A reason to leave the fast path. All but `Watched` and `Sampled` lead to the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum SlowPathReason {
    /// There are observers: the fast path reports every call.
    Watched = 16,
    /// Some blocks are entered in a ledger, and there is no other observer: the fast path checks whether a block is one of
    /// them.
    Sampled = 64,
    /// Each block has pages of its own.
    Guarded = 32,
    /// A budget counts each block.
    Charged = 1,
    /// Blocks are cleared before they are handed out again.
    Cleared = 2,
    /// A request waits: freed blocks bypass the caches.
    Awaited = 4,
    /// More memory is reserved than the limit allows: freed memory is returned to the source.
    Over = 8,
}

impl SlowPathReason {
    pub(super) fn if_so(self, yes: bool) -> u32 {
        if yes { self as u32 } else { 0 }
    }
}

impl Heap {
    /// Returns whether calls leave the fast path for this reason.
    pub(crate) fn has_reason(&self, why: SlowPathReason) -> bool {
        self.reasons.load(Ordering::Relaxed) & why as u32 != 0
    }

    /// Turns a reason on or off. If it was turned on, all threads have seen it when this returns.
    pub(crate) fn set_reason(&self, why: SlowPathReason, on: bool) {
        self.switch_reason(&lock(&self.registry), why, on);
    }

    /// Turns a reason on or off like [`set_reason`](Self::set_reason), while the caller holds the lock of the list of caches.
    pub(super) fn switch_reason(&self, registry: &CacheRegistry, why: SlowPathReason, on: bool) {
        let before = if on {
            self.reasons.fetch_or(why as u32, Ordering::Relaxed)
        } else {
            self.reasons.fetch_and(!(why as u32), Ordering::Relaxed)
        };
        let after = if on {
            before | why as u32
        } else {
            before & !(why as u32)
        };
        if Ways::of(before) != Ways::of(after) {
            registry.caches.iter().for_each(|cache| self.send(&cache.claim));
            if on {
                biased_lock::barrier();
            }
        }
    }

    /// Sets the flags in a cache's lock according to the current reasons. Called under the lock of the list of caches.
    pub(super) fn send(&self, claim: &BiasedLock) {
        let ways = Ways::of(self.reasons.load(Ordering::Relaxed));
        claim.slow(ways.slow);
        claim.watch(ways.watched);
        claim.sample(ways.sampled);
    }
}

/// The paths that the reasons lead to. Observers alone do not lead to the slow path.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ways {
    slow: bool,
    watched: bool,
    sampled: bool,
}

impl Ways {
    fn of(reasons: u32) -> Self {
        let (watched, sampled) = (SlowPathReason::Watched as u32, SlowPathReason::Sampled as u32);
        Self {
            slow: reasons & !(watched | sampled) != 0,
            watched: reasons & watched != 0,
            sampled: reasons & sampled != 0,
        }
    }
}

/// The queue of requests that wait for a pool's memory, in order of arrival.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    state: Ranked<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    next: u64,
    tickets: VecDeque<u64>,
    /// The number of frees and of requests that left the queue.
    changes: u64,
}

/// The queue while the process forks.
pub(super) struct AtRest(Locked<'static, State>);

impl WaitQueue {
    pub(super) fn new(order: Order) -> Self {
        Self {
            state: order.lock(Rank::WaitQueue, State::default()),
            freed: Condvar::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.state.try_lock().is_some()
    }

    pub(super) fn rest(&'static self) -> AtRest {
        AtRest(lock(&self.state))
    }
}

impl AtRest {
    /// Empties the queue.
    pub(super) fn forget(&mut self) {
        self.0.tickets.clear();
    }
}

/// A place in the queue. Dropping it leaves the queue.
pub(crate) struct Place {
    heap: &'static Heap,
    pub(crate) ticket: u64,
}

impl Heap {
    /// Joins the queue. From now on frees bypass the caches.
    pub(crate) fn join_line(&'static self) -> Place {
        let mut state = lock(&self.line.state);
        let ticket = state.next;
        state.next += 1;
        state.tickets.push_back(ticket);
        let first = state.tickets.len() == 1;
        drop(state);
        let place = Place { heap: self, ticket };
        if first {
            self.set_reason(SlowPathReason::Awaited, true);
        }
        place
    }

    /// Returns whether another request is before this one in the queue.
    pub(crate) fn is_behind(&self, ticket: Option<u64>) -> bool {
        self.has_reason(SlowPathReason::Awaited)
            && lock(&self.line.state)
                .tickets
                .front()
                .is_some_and(|first| Some(*first) != ticket)
    }

    /// Lets frees use the caches again. Other requests may join and leave meanwhile, so this checks the queue after each change of
    /// the reason, until the two match.
    fn stop_awaiting(&self) {
        let mut awaited = false;
        loop {
            self.set_reason(SlowPathReason::Awaited, awaited);
            if awaited {
                // Blocks that were freed while the reason was off are in a cache, and the queue was not notified.
                self.tell_line();
            }
            let now = !lock(&self.line.state).tickets.is_empty();
            if now == awaited {
                return;
            }
            awaited = now;
        }
    }

    /// Notifies the queue that memory was freed.
    pub(crate) fn tell_line(&self) {
        lock(&self.line.state).changes += 1;
        self.line.freed.notify_all();
    }
}

impl Place {
    /// Returns the number of changes, to be passed to [`wait`](Self::wait).
    pub(crate) fn changes(&self) -> u64 {
        lock(&self.heap.line.state).changes
    }

    /// Sleeps until memory was freed or a request left the queue since `changes`, or until the deadline. Returns false at the deadline.
    pub(crate) fn wait(&self, changes: u64, until: Instant) -> bool {
        let mut state = lock(&self.heap.line.state);
        while state.changes == changes {
            let Some(left) = until
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
            else {
                return false;
            };
            state = state.wait_timeout(&self.heap.line.freed, left);
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.heap.line.state);
        state.tickets.retain(|ticket| *ticket != self.ticket);
        state.changes += 1;
        let empty = state.tickets.is_empty();
        drop(state);
        self.heap.line.freed.notify_all();
        if empty {
            self.heap.stop_awaiting();
        }
    }
}
