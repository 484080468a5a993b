//! The thread that gives memory back which nobody has used for a while.
//!
//! One for the process, made with the first pool that wants it; it sleeps until the next pool is due, and ends when
//! there is none left. A child of a fork has no such thread until it makes a pool of its own.

use super::heap::Heap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two looks at a pool, unless something else is said.
pub(crate) const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Kept {
    heap: &'static Heap,
    every: Duration,
    next: Instant,
}

#[derive(Default)]
pub(crate) struct State {
    kept: Vec<Kept>,
    /// The process that the thread runs in, if it runs.
    runs_in: Option<u32>,
}

static STATE: Mutex<State> = Mutex::new(State {
    kept: Vec::new(),
    runs_in: None,
});

pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks after a pool from now on, or at another pace.
pub(crate) fn keep(heap: &'static Heap, every: Duration) {
    let mut state = state();
    state.kept.retain(|kept| !std::ptr::eq(kept.heap, heap));
    state.kept.push(Kept {
        heap,
        every,
        next: Instant::now() + every,
    });
    let here = std::process::id();
    if state.runs_in == Some(here) {
        // It may sleep for longer than this pool wants, once.
        return;
    }
    // Where no thread can be had, nothing goes back by itself; trimming by hand still works.
    let made = thread::Builder::new()
        .name("millpond-keeper".to_owned())
        .spawn(run);
    state.runs_in = made.ok().map(|_| here);
}

/// Looks after a pool no more.
pub(crate) fn leave(heap: &Heap) {
    state().kept.retain(|kept| !std::ptr::eq(kept.heap, heap));
}

fn run() {
    loop {
        let now = Instant::now();
        let mut due = Vec::new();
        let pause = {
            let mut state = state();
            state.kept.retain(|kept| !kept.heap.is_closed());
            for kept in &mut state.kept {
                if kept.next <= now {
                    due.push(kept.heap);
                    kept.next = now + kept.every;
                }
            }
            let next = state.kept.iter().map(|kept| kept.next).min();
            let Some(next) = next else {
                state.runs_in = None;
                return;
            };
            next.saturating_duration_since(now).min(TICK)
        };
        // Outside the lock: pools are made and closed meanwhile.
        due.into_iter().for_each(Heap::pass_time);
        thread::sleep(pause);
    }
}
