//! The background thread, which gives back memory that has been unused for a while or when the system runs short, and wakes
//! tasks whose timeout is over.
//!
//! There is one such thread in the process. It starts with the first pool that needs it or the first task that must be
//! woken. It sleeps until the next item is due, and ends when no item is left. A child of a fork has no such thread until
//! it creates a pool of its own.

use super::conf::PoolConf;
use super::heap::Heap;
use super::pressure_trigger::{PressureTrigger, WORTH};
use millpond_os::fork::Participant;
use millpond_os::pressure::{Pressure, Readings, Share};
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::inside;
use millpond_os::spawn_hidden;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The default of the time between two maintenance runs of a pool.
const TICK: Duration = Duration::from_secs(1);
/// The longest time between two runs.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A pool that the background thread can maintain.
pub trait Maintained: Send + Sync {
    /// Returns a value that identifies the pool.
    fn key(&self) -> usize;

    /// Returns whether the pool needs no more maintenance: it is closed, it is a broken host pool, or this process is a fork.
    fn is_closed(&self) -> bool;

    /// Advances the pool's time by one tick.
    fn pass_time(&self);

    /// Returns the bytes that the pool holds and no caller uses.
    fn idle_bytes(&self) -> u64;

    /// Returns whether memory of the pool's kind is scarce. `last` is the system's pressure if it was already read for another pool.
    fn is_scarce(&self, trigger: &PressureTrigger, last: &mut Option<Pressure>) -> bool {
        trigger.is_scarce(last)
    }

    /// Gives back unused memory. Returns whether this was possible.
    fn relieve(&self) -> bool;
}

impl Maintained for &'static Heap {
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

/// A pool that the thread maintains.
struct Entry {
    pool: Arc<dyn Maintained>,
    /// The interval of the pool's ticks.
    every: Option<Duration>,
    trigger: PressureTrigger,
    /// The time at which the pool is due, if it ever is.
    next: Instant,
}

impl Entry {
    /// Returns the interval at which the pool is maintained, if any.
    fn pace(&self) -> Option<Duration> {
        self.every.or(self.trigger.is_on().then_some(TICK))
    }

    fn is_wanted(&self) -> bool {
        self.every.is_some() || !self.trigger.is_plain()
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

/// Wakes a task at a given time, unless this value is dropped before.
#[derive(Debug)]
pub struct Alarm(u64);

/// Registers a task to be woken at a given time. Returns `None` if the background thread cannot be started.
pub fn wake_at(at: Instant, waker: Waker) -> Option<Alarm> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let alarm = Alarm(number);
    let runs = {
        let _inside = inside();
        let mut background = background();
        background.sleepers.push(Sleeper {
            number,
            process: std::process::id(),
            at,
            waker,
        });
        background.rouse()
    };
    runs.then_some(alarm)
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let gone = {
            let _inside = inside();
            let mut background = background();
            let place = background.sleepers.iter().position(|one| one.number == self.0);
            place.map(|place| background.sleepers.swap_remove(place))
        };
        // Dropping a waker may run other code, so it happens outside of every lock.
        drop(gone);
    }
}

struct Background {
    pools: Vec<Entry>,
    sleepers: Vec<Sleeper>,
    /// The background thread and its process, if the thread runs.
    runs: Option<(u32, Thread)>,
}

static BACKGROUND: Ranked<Background> = Ranked::new(
    Rank::Background,
    Background {
        pools: Vec::new(),
        sleepers: Vec::new(),
        runs: None,
    },
);

static FORKS: Participant = Participant::new(Rank::Background, || Box::new(BACKGROUND.lock()));

fn background() -> Locked<'static, Background> {
    FORKS.register();
    BACKGROUND.lock()
}

/// Starts to maintain a pool according to its settings.
pub fn maintain(pool: impl Maintained + 'static, conf: &PoolConf, readings: Readings) {
    let _inside = inside();
    let mut background = background();
    let _before = background.remove(&pool);
    background.add(Entry {
        pool: Arc::new(pool),
        every: conf.trim_every.unwrap_or(Some(TICK)),
        trigger: PressureTrigger::new(conf.trim_at_pressure.flatten(), readings),
        next: Instant::now(),
    });
}

/// Changes the interval or the pressure threshold of a pool. `None` leaves the value unchanged.
pub fn change(pool: impl Maintained + 'static, every: Option<Option<Duration>>, at: Option<Option<Share>>) {
    if every.is_none() && at.is_none() {
        return;
    }
    let _inside = inside();
    let mut background = background();
    let mut entry = background.remove(&pool).unwrap_or_else(|| Entry {
        pool: Arc::new(pool),
        every: None,
        trigger: PressureTrigger::new(None, Readings::system()),
        next: Instant::now(),
    });
    if let Some(every) = every {
        entry.every = every;
    }
    if let Some(at) = at {
        entry.trigger.set(at);
    }
    background.add(entry);
}

/// Returns a later time. A time beyond the range of the clock never comes, and neither does one in a century.
fn after(time: Instant, pace: Duration) -> Instant {
    time + pace.min(CENTURY)
}

impl Background {
    fn find(&mut self, key: usize) -> Option<usize> {
        self.pools.iter().position(|entry| entry.pool.key() == key)
    }

    fn remove(&mut self, pool: &dyn Maintained) -> Option<Entry> {
        let place = self.find(pool.key());
        place.map(|place| self.pools.swap_remove(place))
    }

    fn add(&mut self, mut entry: Entry) {
        if !entry.is_wanted() {
            return;
        }
        let pace = entry.pace();
        entry.next = after(Instant::now(), pace.unwrap_or_default());
        self.pools.push(entry);
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
        let made = spawn_hidden("millpond-keeper", run);
        self.runs = made.ok().map(|thread| (here, thread.thread().clone()));
        self.runs.is_some()
    }
}

/// The work that is due for a pool.
struct DueWork {
    pool: Arc<dyn Maintained>,
    /// Whether a tick has passed.
    passes: bool,
    trigger: Option<PressureTrigger>,
}

/// Maintains pools. Called outside of the lock: pools are created and closed meanwhile, and an observer of a trim may call
/// anything.
fn maintain_all(due: Vec<DueWork>, now: Instant) {
    let mut last = None;
    for one in due {
        // A panic in the source of a pool breaks that pool. This thread continues with the other pools.
        let _ = catch_unwind(AssertUnwindSafe(|| one.run(now, &mut last)));
    }
}

impl DueWork {
    fn run(self, now: Instant, last: &mut Option<Pressure>) {
        let pool = self.pool;
        if self.passes {
            pool.pass_time();
        }
        let scarce = |trigger: PressureTrigger| {
            // The check for scarce memory must not allocate any.
            let _inside = inside();
            pool.idle_bytes() >= WORTH && pool.is_scarce(&trigger, last)
        };
        if self.trigger.is_some_and(scarce) && pool.relieve() {
            let mut background = background();
            if let Some(place) = background.find(pool.key()) {
                background.pools[place].trigger.rest(now);
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
            let mut background = background();
            background.pools.retain(|entry| !entry.pool.is_closed());
            for entry in &mut background.pools {
                let Some(pace) = entry.pace() else { continue };
                if entry.next <= now {
                    due.push(DueWork {
                        pool: Arc::clone(&entry.pool),
                        passes: entry.every.is_some(),
                        trigger: entry.trigger.is_due(now).then(|| entry.trigger.clone()),
                    });
                    entry.next = after(now, pace);
                }
            }
            woken.extend(background.sleepers.extract_if(.., |one| one.at <= now));
            let paced = background.pools.iter().filter(|entry| entry.pace().is_some());
            let sleepers = background.sleepers.iter().map(|one| one.at);
            let next = paced.map(|entry| entry.next).chain(sleepers).min();
            if next.is_none() {
                background.runs = None;
            }
            next.map(|next| next.saturating_duration_since(now).min(TICK))
        };
        woken.into_iter().for_each(Sleeper::wake);
        let Some(pause) = pause else { return };
        maintain_all(due, now);
        thread::park_timeout(pause);
        millpond_os::end_if_abandoned();
    }
}
