//! Why calls of a pool leave the fast way, and who waits there.

use super::claim::{self, Claim};
use super::heap::{Heap, Roll, lock};
use crate::ranked::{Locked, Order, Rank, Ranked};
use std::collections::VecDeque;
use std::sync::Condvar;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A reason to leave the fast way. All but the first two mean the slow one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Detour {
    /// Someone watches: what the fast way does is told.
    Watched = 16,
    /// Some blocks are entered in an account, and nothing else is watched: the fast way looks whether it is one.
    Sampled = 64,
    /// Each block has pages of its own.
    Guarded = 32,
    /// A budget counts each block.
    Charged = 1,
    /// Blocks are cleared before they are handed out again.
    Cleared = 2,
    /// A request waits: what is freed goes past the caches.
    Awaited = 4,
    /// More is reserved than may be: what is freed goes back to the source.
    Over = 8,
}

impl Detour {
    pub(super) fn if_so(self, yes: bool) -> u32 {
        if yes { self as u32 } else { 0 }
    }
}

impl Heap {
    /// Whether calls go the slow way for this reason.
    pub(crate) fn detours(&self, why: Detour) -> bool {
        self.detours.load(Ordering::Relaxed) & why as u32 != 0
    }

    /// Sends every thread the slow way for a reason, or no longer for it. When this returns, all of them know.
    pub(crate) fn set_detour(&self, why: Detour, on: bool) {
        self.turn_detour(&lock(&self.roll), why, on);
    }

    /// The same where the list's lock is held already.
    pub(super) fn turn_detour(&self, roll: &Roll, why: Detour, on: bool) {
        let before = if on {
            self.detours.fetch_or(why as u32, Ordering::Relaxed)
        } else {
            self.detours.fetch_and(!(why as u32), Ordering::Relaxed)
        };
        let after = if on {
            before | why as u32
        } else {
            before & !(why as u32)
        };
        if Ways::of(before) != Ways::of(after) {
            roll.caches.iter().for_each(|cache| self.send(&cache.claim));
            if on {
                claim::barrier();
            }
        }
    }

    /// Sends a thread the ways that the pool's calls go now; under the lock of the roll.
    pub(super) fn send(&self, claim: &Claim) {
        let ways = Ways::of(self.detours.load(Ordering::Relaxed));
        claim.slow(ways.slow);
        claim.watch(ways.watched);
        claim.sample(ways.sampled);
    }
}

/// What the reasons come to: watchers alone are told beside the fast way.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ways {
    slow: bool,
    watched: bool,
    sampled: bool,
}

impl Ways {
    fn of(detours: u32) -> Self {
        let (watched, sampled) = (Detour::Watched as u32, Detour::Sampled as u32);
        Self {
            slow: detours & !(watched | sampled) != 0,
            watched: detours & watched != 0,
            sampled: detours & sampled != 0,
        }
    }
}

/// The requests that wait for a pool's memory, first come, first served.
#[derive(Debug)]
pub(crate) struct Line {
    state: Ranked<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    next: u64,
    tickets: VecDeque<u64>,
    /// How often something has come back, or the line has moved.
    changes: u64,
}

/// The line while the process forks.
pub(super) struct AtRest(Locked<'static, State>);

impl Line {
    pub(super) fn new(order: Order) -> Self {
        Self {
            state: order.lock(Rank::Line, State::default()),
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
    /// Nobody stands in it any more.
    pub(super) fn forget(&mut self) {
        self.0.tickets.clear();
    }
}

/// A place in the line, left when dropped.
pub(crate) struct Place {
    heap: &'static Heap,
    pub(crate) ticket: u64,
}

impl Heap {
    /// Joins the line: from now on frees go past the caches.
    pub(crate) fn join_line(&'static self) -> Place {
        let mut state = lock(&self.line.state);
        let ticket = state.next;
        state.next += 1;
        state.tickets.push_back(ticket);
        let first = state.tickets.len() == 1;
        drop(state);
        let place = Place { heap: self, ticket };
        if first {
            self.set_detour(Detour::Awaited, true);
        }
        place
    }

    /// Whether someone else waits whose turn comes before this request's.
    pub(crate) fn is_behind(&self, ticket: Option<u64>) -> bool {
        self.detours(Detour::Awaited)
            && lock(&self.line.state)
                .tickets
                .front()
                .is_some_and(|first| Some(*first) != ticket)
    }

    /// Lets frees go to the caches again. Others may join and leave meanwhile, so it looks again after each step: the
    /// last one to change the flag leaves it as the line is.
    fn leave_detour(&self) {
        let mut awaited = false;
        loop {
            self.set_detour(Detour::Awaited, awaited);
            if awaited {
                // What was freed between the two is in a cache, and nobody was told.
                self.tell_line();
            }
            let now = !lock(&self.line.state).tickets.is_empty();
            if now == awaited {
                return;
            }
            awaited = now;
        }
    }

    /// Something came back.
    pub(crate) fn tell_line(&self) {
        lock(&self.line.state).changes += 1;
        self.line.freed.notify_all();
    }
}

impl Place {
    /// What [`wait`](Self::wait) compares with.
    pub(crate) fn changes(&self) -> u64 {
        lock(&self.heap.line.state).changes
    }

    /// Sleeps until something has come back since `changes`, at most until then; answers whether it has.
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
            self.heap.leave_detour();
        }
    }
}
