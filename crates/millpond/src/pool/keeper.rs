//! The thread that gives memory back which nobody has used for a while, or which the system has little of.
//!
//! One for the process, made with the first pool that wants it; it sleeps until the next pool is due, and ends when
//! there is none left. A child of a fork has no such thread until it makes a pool of its own.

use super::heap::Heap;
use super::lookout::{Lookout, WORTH};
use crate::global::inside;
use crate::pressure::{Readings, Share};
use crate::ranked::{Locked, Rank, Ranked};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The time between two looks at a pool, unless something else is said.
pub(crate) const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Kept {
    heap: &'static Heap,
    /// How often time passes for the pool.
    every: Option<Duration>,
    lookout: Lookout,
    /// When it is due, of what is.
    next: Instant,
}

impl Kept {
    /// How often the pool is looked at, if ever.
    fn pace(&self) -> Option<Duration> {
        self.every.or(self.lookout.looks().then_some(TICK))
    }

    fn is_wanted(&self) -> bool {
        self.every.is_some() || !self.lookout.is_plain()
    }
}

#[derive(Default)]
pub(crate) struct State {
    kept: Vec<Kept>,
    /// The process that the thread runs in, and the thread, if it runs.
    runs: Option<(u32, Thread)>,
}

static STATE: Ranked<State> = Ranked::new(
    Rank::Keeper,
    State {
        kept: Vec::new(),
        runs: None,
    },
);

pub(crate) fn state() -> Locked<'static, State> {
    STATE.lock()
}

/// Looks after a pool from now on.
pub(super) fn keep(heap: &'static Heap, every: Option<Duration>, lookout: Lookout) {
    let _inside = inside();
    let mut state = state();
    state.kept.retain(|kept| !std::ptr::eq(kept.heap, heap));
    state.take_up(Kept {
        heap,
        every,
        lookout,
        next: Instant::now(),
    });
}

/// Looks after a pool at another pace, or for another share; what nothing is said of stays.
pub(super) fn change(heap: &'static Heap, every: Option<Option<Duration>>, at: Option<Option<Share>>) {
    if every.is_none() && at.is_none() {
        return;
    }
    let _inside = inside();
    let mut state = state();
    let place = state.kept.iter().position(|kept| std::ptr::eq(kept.heap, heap));
    let mut kept = match place {
        Some(place) => state.kept.swap_remove(place),
        None => Kept {
            heap,
            every: None,
            lookout: Lookout::new(None, Readings::system()),
            next: Instant::now(),
        },
    };
    if let Some(every) = every {
        kept.every = every;
    }
    if let Some(at) = at {
        kept.lookout.set(at);
    }
    state.take_up(kept);
}

impl State {
    fn take_up(&mut self, mut kept: Kept) {
        if !kept.is_wanted() {
            return;
        }
        let pace = kept.pace();
        kept.next = Instant::now() + pace.unwrap_or_default();
        self.kept.push(kept);
        let here = std::process::id();
        if pace.is_none() {
            return;
        }
        if let Some((_, thread)) = self.runs.as_ref().filter(|(process, _)| *process == here) {
            // It may have wanted to sleep for longer.
            return thread.unpark();
        }
        // Where no thread can be had, nothing goes back by itself; trimming by hand still works.
        let made = thread::Builder::new()
            .name("millpond-keeper".to_owned())
            .spawn(run);
        self.runs = made.ok().map(|thread| (here, thread.thread().clone()));
    }
}

/// What is to be done for a pool.
struct Due {
    heap: &'static Heap,
    /// Time has passed.
    passes: bool,
    lookout: Option<Lookout>,
}

/// Outside the lock: pools are made and closed meanwhile, and whoever is told of a trim may ask for anything.
fn look_after(due: Vec<Due>, now: Instant) {
    let mut last = None;
    for Due {
        heap,
        passes,
        lookout,
    } in due
    {
        if passes {
            heap.pass_time();
        }
        let scarce = |lookout: Lookout| heap.idle_bytes() >= WORTH && lookout.is_scarce(&mut last);
        if lookout.is_some_and(scarce) {
            heap.trim();
            let mut state = state();
            let kept = state.kept.iter_mut().find(|kept| std::ptr::eq(kept.heap, heap));
            if let Some(kept) = kept {
                kept.lookout.rest(now);
            }
        }
    }
}

fn run() {
    loop {
        let now = Instant::now();
        let mut due = Vec::new();
        let pause = {
            let _inside = inside();
            let mut state = state();
            state.kept.retain(|kept| !kept.heap.is_closed());
            for kept in &mut state.kept {
                let Some(pace) = kept.pace() else { continue };
                if kept.next <= now {
                    due.push(Due {
                        heap: kept.heap,
                        passes: kept.every.is_some(),
                        lookout: kept.lookout.is_awake(now).then(|| kept.lookout.clone()),
                    });
                    kept.next = now + pace;
                }
            }
            let paced = state.kept.iter().filter(|kept| kept.pace().is_some());
            let Some(next) = paced.map(|kept| kept.next).min() else {
                state.runs = None;
                return;
            };
            next.saturating_duration_since(now).min(TICK)
        };
        look_after(due, now);
        thread::park_timeout(pause);
    }
}
