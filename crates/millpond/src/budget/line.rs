//! The line of requests that wait, one for all budgets that a charge of any of them reaches.
//!
//! Whoever gives bytes back that someone waits for serves the line: under its lock it takes the room on behalf of
//! the first in the line that it suffices for, then tells them, outside the lock. So one return wakes whom it
//! serves and nobody else, and nobody overtakes.
//!
//! A request waits *at* one budget: the one that refused it. Its flag is up as long as anyone waits there, and
//! while it is up the budget lets nobody pass but in the order of the line. Requests that wait at other budgets
//! do not hold each other up. Nor can a request be kept waiting by having its room taken in turns here and there:
//! while it waits at a budget, nobody who came later passes that budget, so the room below is not taken either.

use super::later::{self, Call};
use super::node::Node;
use super::room::{Seen, Turn};
use super::sync::{AtomicBool, Mutex, Ordering, enter, lock};
use super::way;
use crate::thread::thread_number;
use std::sync::Arc;
#[cfg(all(target_os = "linux", not(all(test, loom))))]
use std::sync::PoisonError;
use std::task::Waker;

/// Wakers gathered under the lock in one round; more take another round.
const ROUND: usize = 16;

#[derive(Default)]
pub(super) struct Line {
    queue: Mutex<Queue>,
    /// Whether the children of forks look after it.
    entered: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// In the order of their tickets.
    entries: Vec<Entry>,
    tickets: u64,
    rounds: u64,
}

/// Invariant: one that waits is counted at `at` and in the tree's pressure; one that was granted holds room along
/// its way; one that is too large neither.
struct Entry {
    ticket: u64,
    from: Arc<Node>,
    bytes: u64,
    at: Arc<Node>,
    state: State,
    waker: Option<Waker>,
    /// Who asked last.
    thread: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Granted,
    TooLarge,
}

/// What became of a request in the line.
pub(super) enum Outcome {
    /// It waits, under this ticket.
    Waits(u64),
    /// Room along its way was taken for it.
    Granted,
    /// It is larger than the limit of this budget.
    TooLarge(Arc<Node>, Seen),
    /// It has left the line, where it waited at this budget.
    Left(Arc<Node>, Seen),
    /// There is no memory to note that it waits.
    NoMemory,
    /// It does not stand in the line: in the child of a fork, where another thread's was forgotten.
    Gone,
}

enum Place {
    Granted,
    At(Arc<Node>),
    TooLarge(Arc<Node>),
}

/// Finds out where a request stands, under the lock of its line.
///
/// The flag of a budget that refuses is raised first, and the budget asked again where it had room by then.
fn place(from: &Arc<Node>, bytes: u64, behind: impl Fn(&Node) -> bool) -> Place {
    let mut raised: Option<Arc<Node>> = None;
    let place = loop {
        if let Some(node) = from.way().find(|node| behind(node)) {
            break Place::At(Arc::clone(node));
        }
        let Err(refused) = way::take(from, bytes, Turn::Line) else {
            break Place::Granted;
        };
        if bytes > refused.node.limit() {
            break Place::TooLarge(refused.node);
        }
        let seen = refused.node.room.raise_flag();
        lower(raised.take(), Some(&refused.node));
        if !seen.holds(bytes) {
            return Place::At(refused.node);
        }
        raised = Some(refused.node);
    };
    lower(raised, None);
    place
}

/// Lowers a flag that was raised for nobody.
fn lower(raised: Option<Arc<Node>>, but: Option<&Arc<Node>>) {
    if let Some(node) = raised
        && node.waiting() == 0
        && !but.is_some_and(|but| Arc::ptr_eq(but, &node))
    {
        node.room.lower_flag();
    }
}

impl Line {
    /// Puts a request at the end of the line, or serves it if nobody is before it.
    pub(super) fn join(&self, from: &Arc<Node>, bytes: u64, waker: Option<Waker>) -> Outcome {
        if !self.entered.load(Ordering::Relaxed) {
            if !enter(&from.line) {
                return Outcome::NoMemory;
            }
            self.entered.store(true, Ordering::Relaxed);
        }
        let mut larger: Vec<Entry> = Vec::new();
        loop {
            let mut queue = lock(&self.queue);
            let entries = queue.entries.len();
            if entries == queue.entries.capacity() {
                // Memory is asked for outside the lock: whoever gives it may come by here.
                if larger.capacity() <= entries {
                    drop(queue);
                    if larger.try_reserve_exact(entries * 2 + 8).is_err() {
                        return Outcome::NoMemory;
                    }
                    continue;
                }
                larger.append(&mut queue.entries);
                std::mem::swap(&mut larger, &mut queue.entries);
            }
            let outcome = match place(from, bytes, |node| node.waiting() > 0) {
                Place::Granted => Outcome::Granted,
                Place::TooLarge(node) => {
                    let seen = node.room.see();
                    Outcome::TooLarge(node, seen)
                }
                Place::At(at) => {
                    queue.tickets += 1;
                    let ticket = queue.tickets;
                    at.arrive();
                    from.pressure.fetch_add(1, Ordering::Relaxed);
                    queue.entries.push(Entry {
                        ticket,
                        from: Arc::clone(from),
                        bytes,
                        at,
                        state: State::Waits,
                        waker,
                        thread: thread_number(),
                    });
                    Outcome::Waits(ticket)
                }
            };
            drop(queue);
            // The old list is freed here, outside the lock.
            drop(larger);
            return outcome;
        }
    }

    /// Asks what became of a request, and who is to be told from now on.
    pub(super) fn ask(&self, ticket: u64, waker: Waker) -> Outcome {
        let mut queue = lock(&self.queue);
        let Some(at) = queue.position(ticket) else {
            return Outcome::Gone;
        };
        if let Some(entry) = queue.entries.get_mut(at).filter(|e| e.state == State::Waits) {
            let before = entry.waker.replace(waker);
            entry.thread = thread_number();
            drop(queue);
            drop(before);
            return Outcome::Waits(ticket);
        }
        let entry = queue.entries.remove(at);
        drop(queue);
        entry.outcome()
    }

    /// Takes a request out of the line; those behind it move up.
    pub(super) fn leave(&self, ticket: u64) -> Outcome {
        let mut queue = lock(&self.queue);
        let Some(at) = queue.position(ticket) else {
            return Outcome::Gone;
        };
        let entry = queue.entries.remove(at);
        let waited = entry.state == State::Waits;
        if waited {
            entry.depart();
        }
        drop(queue);
        if waited {
            self.serve();
        }
        entry.outcome()
    }

    /// Changes the limit of a budget of this line.
    pub(super) fn set_limit(&self, node: &Node, limit: u64) {
        let queue = lock(&self.queue);
        let before = node.limit.swap(limit, Ordering::Relaxed);
        let waited = node.room.change_limit(before, limit);
        drop(queue);
        if waited {
            self.serve();
        }
    }

    /// In a child of a fork, while nobody else is at a budget: the requests of other threads, which it does not have, leave
    /// the line, and what was kept for them goes to the others.
    #[cfg(all(target_os = "linux", not(all(test, loom))))]
    pub(super) fn forget_others(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.keep_only(thread_number());
        loop {
            let mut wakers = [const { None }; ROUND];
            let more = queue.serve(&mut wakers);
            for waker in wakers.into_iter().flatten() {
                later::call(Call::Wake(waker));
            }
            if !more {
                return;
            }
        }
    }

    /// Lets in, in their order, those whom the room suffices for.
    pub(super) fn serve(&self) {
        loop {
            let mut wakers = [const { None }; ROUND];
            let more = lock(&self.queue).serve(&mut wakers);
            for waker in wakers.into_iter().flatten() {
                later::call(Call::Wake(waker));
            }
            if !more {
                return;
            }
        }
    }
}

impl Queue {
    fn position(&self, ticket: u64) -> Option<usize> {
        self.entries
            .binary_search_by_key(&ticket, |entry| entry.ticket)
            .ok()
    }

    #[cfg(all(target_os = "linux", not(all(test, loom))))]
    fn keep_only(&mut self, thread: u32) {
        let mut at = 0;
        while let Some(entry) = self.entries.get(at) {
            if entry.thread == thread {
                at += 1;
                continue;
            }
            let entry = self.entries.remove(at);
            match entry.state {
                State::Waits => entry.depart(),
                State::Granted => entry.from.way().for_each(|node| {
                    // Whoever waits for it is served in a moment.
                    let _ = node.room.give(entry.bytes);
                }),
                State::TooLarge => {}
            }
            // Its waker may ask for a lock that its thread held.
            std::mem::forget(entry);
        }
    }

    /// Answers whether wakers ran out of places before the line came to its end.
    fn serve(&mut self, wakers: &mut [Option<Waker>; ROUND]) -> bool {
        self.rounds += 1;
        let round = self.rounds;
        let mut free = wakers.iter_mut();
        for entry in &mut self.entries {
            if entry.state != State::Waits {
                continue;
            }
            match place(&entry.from, entry.bytes, |node| node.round() == round) {
                Place::At(node) => {
                    node.set_round(round);
                    let is_last = node.next().is_none();
                    entry.move_to(node);
                    // Every way of this line ends there.
                    if is_last {
                        return false;
                    }
                    continue;
                }
                Place::Granted => {
                    entry.depart();
                    entry.state = State::Granted;
                }
                Place::TooLarge(node) => {
                    entry.depart();
                    entry.at = node;
                    entry.state = State::TooLarge;
                }
            }
            match free.next() {
                Some(place) => *place = entry.waker.take(),
                // Not reached: the check below ends the round with the last place.
                None => return true,
            }
            if free.len() == 0 {
                return true;
            }
        }
        false
    }
}

impl Entry {
    fn depart(&self) {
        self.at.depart();
        self.from.pressure.fetch_sub(1, Ordering::Relaxed);
    }

    fn move_to(&mut self, node: Arc<Node>) {
        if !Arc::ptr_eq(&node, &self.at) {
            node.arrive();
            self.at.depart();
            self.at = node;
        }
    }

    fn outcome(self) -> Outcome {
        let seen = self.at.room.see();
        match self.state {
            State::Granted => Outcome::Granted,
            State::TooLarge => Outcome::TooLarge(self.at, seen),
            State::Waits => Outcome::Left(self.at, seen),
        }
    }
}
