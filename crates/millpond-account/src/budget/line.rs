//! The line of waiting requests. All budgets whose charges reach a common budget share one line.
//!
//! The thread that returns bytes serves the line if a request waits for them. Under the line's lock it takes the room
//! for the first requests that fit, and wakes them outside the lock. One return therefore wakes only the requests that
//! it serves, and no request overtakes another.
//!
//! A request waits *at* one budget: the one that refused it. The flag of a budget is set while requests wait there.
//! While it is set, the budget admits requests only in the order of the line. Requests that wait at other budgets do
//! not delay each other. A request cannot starve because others take the room of several budgets in turn: while it
//! waits at a budget, no later request passes that budget, so the room below it is not taken either.

use super::later::{self, Call};
use super::node::Node;
use super::room::{Seen, Turn};
use super::sync::{AtomicBool, Mutex, Ordering, enter, lock};
use super::way;
use millpond_os::thread::thread_number;
use std::sync::Arc;
#[cfg(all(target_os = "linux", not(all(test, loom))))]
use std::sync::PoisonError;
use std::task::Waker;

/// The maximum number of wakers that one round under the lock collects. More wakers need more rounds.
const ROUND: usize = 16;

#[derive(Default)]
pub(super) struct ChargeQueue {
    queue: Mutex<Queue>,
    /// True if the children of forks clean up this line.
    entered: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// The entries in the order of their tickets.
    entries: Vec<Entry>,
    tickets: u64,
    rounds: u64,
}

/// Invariant: a waiting entry is counted at `at` and in the tree's pressure. A granted entry holds room in all budgets
/// on its path. An entry that is too large has neither.
struct Entry {
    ticket: u64,
    from: Arc<Node>,
    bytes: u64,
    at: Arc<Node>,
    state: State,
    waker: Option<Waker>,
    /// The thread that polled last.
    thread: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Granted,
    TooLarge,
}

/// The state of a request in the line.
pub(crate) enum Outcome {
    /// It waits under this ticket.
    Waits(u64),
    /// Room was taken for it in all budgets on its path.
    Granted,
    /// It is larger than the limit of this budget.
    TooLarge(Arc<Node>, Seen),
    /// It has left the line, where it waited at this budget.
    Left(Arc<Node>, Seen),
    /// The memory for its entry could not be allocated.
    NoMemory,
    /// It is not in the line. In the child of a fork, the entries of other threads are removed.
    Gone,
}

enum Place {
    Granted,
    At(Arc<Node>),
    TooLarge(Arc<Node>),
}

/// Finds the state of a request, under the lock of its line.
///
/// The flag of a budget that refuses is set first. Then the budget is checked again, because room may have been
/// returned in between.
fn place(from: &Arc<Node>, bytes: u64, behind: impl Fn(&Node) -> bool) -> Place {
    let mut raised: Option<Arc<Node>> = None;
    let place = loop {
        if let Some(node) = from.way().find(|node| behind(node)) {
            break Place::At(Arc::clone(node));
        }
        let Err(refused) = way::take(from, bytes, Turn::ChargeQueue) else {
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

/// Clears the flag of `raised` if no request waits there, except if it is `but`.
fn lower(raised: Option<Arc<Node>>, but: Option<&Arc<Node>>) {
    if let Some(node) = raised
        && node.waiting() == 0
        && !but.is_some_and(|but| Arc::ptr_eq(but, &node))
    {
        node.room.lower_flag();
    }
}

impl ChargeQueue {
    /// Appends a request to the line, or serves it if no earlier request blocks it.
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
                // The list is allocated outside the lock, because the allocator may itself use this line.
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

    /// Returns the state of a request and replaces its waker.
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

    /// Removes a request from the line. The requests behind it move up.
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

    /// Changes the limit of a budget that uses this line.
    pub(super) fn set_limit(&self, node: &Node, limit: u64) {
        let queue = lock(&self.queue);
        let before = node.limit.swap(limit, Ordering::Relaxed);
        let waited = node.room.change_limit(before, limit);
        drop(queue);
        if waited {
            self.serve();
        }
    }

    /// In a child of a fork, while no other thread uses a budget: removes the requests of other threads, which do not
    /// exist in the child, and gives the room that was reserved for them to the remaining requests.
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

    /// Grants the requests for which the room suffices, in their order.
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
                    // The requests that wait for this room are served below.
                    let _ = node.room.give(entry.bytes);
                }),
                State::TooLarge => {}
            }
            // The waker is not dropped because it may take a lock that its thread held at the fork.
            std::mem::forget(entry);
        }
    }

    /// Serves the line once. Returns true if `wakers` was full before the end of the line.
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
                    // The path of every request of this line ends at that budget.
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
                // Not reached: the check below ends the round when the last waker is stored.
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
