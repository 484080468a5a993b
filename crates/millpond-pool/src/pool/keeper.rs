//! The background thread, which gives back memory that has been unused for a while or when the system runs short, and wakes
//! tasks whose timeout is over.
//!
//! There is one such thread in the process. It starts with the first pool that needs it or the first task that must be
//! woken. It sleeps until the next item is due, and ends when no item is left. A child of a fork has no such thread until
//! it creates a pool of its own.

use super::heap::Heap;
use super::lookout::{Lookout, WORTH};
use millpond_os::fork::Participant;
use millpond_os::pressure::{Pressure, Readings, Share};
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::inside;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The default of the time between two maintenance runs of a pool.
pub const TICK: Duration = Duration::from_secs(1);

/// A pool from the view of the background thread.
pub trait Ward: Send + Sync {
    /// Returns a value that identifies the pool.
    fn key(&self) -> usize;

    /// Returns whether it needs no more maintenance: it is closed, it is a broken host pool, or this process is a fork.
    fn is_closed(&self) -> bool;

    /// Advances the pool's time by one tick.
    fn pass_time(&self);

    /// Returns the bytes that the pool has and no caller uses.
    fn idle_bytes(&self) -> u64;

    /// Returns whether memory of the pool's kind is scarce. `last` is the system's pressure that was read for another pool.
    fn is_scarce(&self, lookout: &Lookout, last: &mut Option<Pressure>) -> bool {
        lookout.is_scarce(last)
    }

    /// Gives back unused memory. Returns whether this was possible.
    fn relieve(&self) -> bool;
}

impl Ward for &'static Heap {
    fn key(&self) -> usize {
        std::ptr::from_ref::<Heap>(self).addr()
    }

    fn is_closed(&self) -> bool {
        Heap::is_shut(self)
    }

    fn pass_time(&self) {
        Heap::pass_time(self);
    }

    fn idle_bytes(&self) -> u64 {
        Heap::idle_bytes(self)
    }

    fn relieve(&self) -> bool {
        self.trim();
        true
    }
}

pub(crate) struct Kept {
    ward: Arc<dyn Ward>,
    /// The interval of the pool's ticks.
    every: Option<Duration>,
    lookout: Lookout,
    /// The time at which the pool is due, if it ever is.
    next: Instant,
}

impl Kept {
    /// Returns the interval at which the pool is maintained, if any.
    fn pace(&self) -> Option<Duration> {
        self.every.or(self.lookout.looks().then_some(TICK))
    }

    fn is_wanted(&self) -> bool {
        self.every.is_some() || !self.lookout.is_plain()
    }
}

/// A task of this process that must be woken at a time.
struct Sleeper {
    number: u64,
    process: u32,
    at: Instant,
    waker: Waker,
}

impl Sleeper {
    /// Wakes the task. A panic in the waker's code must not end this thread.
    fn wake(self) {
        if self.process == std::process::id() {
            let _ = catch_unwind(AssertUnwindSafe(|| self.waker.wake()));
        } else {
            // The entry comes from the process that this one was forked from. Its task does not exist here.
            std::mem::forget(self.waker);
        }
    }
}

/// Wakes a task at a time, unless it is dropped before.
#[derive(Debug)]
pub(crate) struct Alarm(u64);

/// Registers a task to be woken at a time. Returns `None` if there is no thread to do it.
pub(crate) fn wake_at(at: Instant, waker: Waker) -> Option<Alarm> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let alarm = Alarm(number);
    let runs = {
        let _inside = inside();
        let mut state = state();
        state.sleepers.push(Sleeper {
            number,
            process: std::process::id(),
            at,
            waker,
        });
        state.rouse()
    };
    runs.then_some(alarm)
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let gone = {
            let _inside = inside();
            let mut state = state();
            let place = state.sleepers.iter().position(|one| one.number == self.0);
            place.map(|place| state.sleepers.swap_remove(place))
        };
        // A waker's own code runs outside every lock.
        drop(gone);
    }
}

#[derive(Default)]
struct State {
    kept: Vec<Kept>,
    sleepers: Vec<Sleeper>,
    /// The process of the thread, and the thread, if it runs.
    runs: Option<(u32, Thread)>,
}

static STATE: Ranked<State> = Ranked::new(
    Rank::Keeper,
    State {
        kept: Vec::new(),
        sleepers: Vec::new(),
        runs: None,
    },
);

static FORKS: Participant = Participant::new(Rank::Keeper, || Box::new(STATE.lock()));

fn state() -> Locked<'static, State> {
    FORKS.register();
    STATE.lock()
}

/// Starts to maintain a pool.
pub fn keep(ward: impl Ward + 'static, every: Option<Duration>, lookout: Lookout) {
    let _inside = inside();
    let mut state = state();
    let _before = state.part_with(&ward);
    state.take_up(Kept {
        ward: Arc::new(ward),
        every,
        lookout,
        next: Instant::now(),
    });
}

/// Changes the interval or the pressure threshold of a pool. `None` leaves the value unchanged.
pub fn change(ward: impl Ward + 'static, every: Option<Option<Duration>>, at: Option<Option<Share>>) {
    if every.is_none() && at.is_none() {
        return;
    }
    let _inside = inside();
    let mut state = state();
    let mut kept = state.part_with(&ward).unwrap_or_else(|| Kept {
        ward: Arc::new(ward),
        every: None,
        lookout: Lookout::new(None, Readings::system()),
        next: Instant::now(),
    });
    if let Some(every) = every {
        kept.every = every;
    }
    if let Some(at) = at {
        kept.lookout.set(at);
    }
    state.take_up(kept);
}

impl State {
    fn find(&mut self, key: usize) -> Option<usize> {
        self.kept.iter().position(|kept| kept.ward.key() == key)
    }

    fn part_with(&mut self, ward: &dyn Ward) -> Option<Kept> {
        let place = self.find(ward.key());
        place.map(|place| self.kept.swap_remove(place))
    }

    fn take_up(&mut self, mut kept: Kept) {
        if !kept.is_wanted() {
            return;
        }
        let pace = kept.pace();
        kept.next = Instant::now() + pace.unwrap_or_default();
        self.kept.push(kept);
        if pace.is_some() {
            // If no thread can be started, no memory is given back in the background. Trimming manually still works.
            self.rouse();
        }
    }

    /// Makes the thread check what is due. Returns whether there is a thread.
    fn rouse(&mut self) -> bool {
        let here = std::process::id();
        if let Some((_, thread)) = self.runs.as_ref().filter(|(process, _)| *process == here) {
            // The thread may be sleeping for longer.
            thread.unpark();
            return true;
        }
        let made = thread::Builder::new()
            .name("millpond-keeper".to_owned())
            .spawn(run);
        self.runs = made.ok().map(|thread| (here, thread.thread().clone()));
        self.runs.is_some()
    }
}

/// The work that is due for a pool.
struct Due {
    ward: Arc<dyn Ward>,
    /// Whether a tick has passed.
    passes: bool,
    lookout: Option<Lookout>,
}

/// Maintains pools. Called outside of the lock: pools are created and closed meanwhile, and an observer of a trim may call
/// anything.
fn look_after(due: Vec<Due>, now: Instant) {
    let mut last = None;
    for one in due {
        // A panic in the source of a pool breaks that pool. This thread continues with the other pools.
        let _ = catch_unwind(AssertUnwindSafe(|| one.look_after(now, &mut last)));
    }
}

impl Due {
    fn look_after(self, now: Instant, last: &mut Option<Pressure>) {
        let ward = self.ward;
        if self.passes {
            ward.pass_time();
        }
        let scarce = |lookout: Lookout| {
            // The check for scarce memory must not allocate any.
            let _inside = inside();
            ward.idle_bytes() >= WORTH && ward.is_scarce(&lookout, last)
        };
        if self.lookout.is_some_and(scarce) && ward.relieve() {
            let mut state = state();
            if let Some(place) = state.find(ward.key()) {
                state.kept[place].lookout.rest(now);
            }
        }
    }
}

fn run() {
    loop {
        let now = Instant::now();
        let (mut due, mut woken) = (Vec::new(), Vec::new());
        let pause = {
            let _inside = inside();
            let mut state = state();
            state.kept.retain(|kept| !kept.ward.is_closed());
            for kept in &mut state.kept {
                let Some(pace) = kept.pace() else { continue };
                if kept.next <= now {
                    due.push(Due {
                        ward: Arc::clone(&kept.ward),
                        passes: kept.every.is_some(),
                        lookout: kept.lookout.is_awake(now).then(|| kept.lookout.clone()),
                    });
                    kept.next = now + pace;
                }
            }
            woken.extend(state.sleepers.extract_if(.., |one| one.at <= now));
            let paced = state.kept.iter().filter(|kept| kept.pace().is_some());
            let sleepers = state.sleepers.iter().map(|one| one.at);
            let next = paced.map(|kept| kept.next).chain(sleepers).min();
            if next.is_none() {
                state.runs = None;
            }
            next.map(|next| next.saturating_duration_since(now).min(TICK))
        };
        woken.into_iter().for_each(Sleeper::wake);
        let Some(pause) = pause else { return };
        look_after(due, now);
        thread::park_timeout(pause);
    }
}
