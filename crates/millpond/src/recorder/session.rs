//! One recording while it runs: who tells it what, and where it is on its way.

use super::ring::{FRAMES, Lost, Ring, Told, What};
use crate::event::{EventKind, Facts, PoolLabel};
pub(super) use crate::global::quiet;
use crate::tag::Tag;
use crate::thread;
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

/// Room of one thread, unless something else is said: an eighth of a second of a program that does little else than allocate.
pub(super) const RING_BYTES: usize = 4 << 20;

/// Which allocations have their stacks written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStacks {
    /// None.
    Never,
    /// One for so many bytes allocated on a thread, on average; larger blocks always.
    Bytes(u64),
    /// All.
    Always,
}

/// See the module.
pub(super) struct Session {
    number: u64,
    /// What is told is taken.
    active: AtomicBool,
    stopping: AtomicBool,
    ring_words: usize,
    stacks: RecordStacks,
    scribe: OnceLock<Thread>,
    hurried: AtomicBool,
    /// What the writing thread has not seen yet.
    rings: Mutex<Vec<Arc<Ring>>>,
    pools: Mutex<Vec<PoolLabel>>,
    marks: Mutex<Vec<String>>,
    /// Told by threads at their very end, which have no ring any more.
    late: [AtomicU64; 3],
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// A ring, as its thread has it.
struct Mine {
    session: u64,
    ring: Arc<Ring>,
    /// Bytes until the next stack.
    until: u64,
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.ring.close();
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(super) fn new(number: u64, ring_bytes: usize, stacks: RecordStacks) -> Self {
        Self {
            number,
            active: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            ring_words: (ring_bytes / size_of::<u64>()).clamp(1 << 10, 1 << 28),
            stacks,
            scribe: OnceLock::new(),
            hurried: AtomicBool::new(false),
            rings: Mutex::default(),
            pools: Mutex::default(),
            marks: Mutex::default(),
            late: Default::default(),
        }
    }

    pub(super) fn set_scribe(&self, thread: Thread) {
        let _ = self.scribe.set(thread);
    }

    /// Whether any stacks are written down.
    pub(super) fn has_stacks(&self) -> bool {
        self.stacks != RecordStacks::Never
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Nothing that is told from now on is taken.
    pub(super) fn deactivate(&self) {
        self.active.store(false, Ordering::Release);
    }

    /// Has the writing thread write what there is, and end.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.hurry();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Wakes the writing thread, if nobody has since it was last at work.
    fn hurry(&self) {
        if !self.hurried.swap(true, Ordering::AcqRel)
            && let Some(scribe) = self.scribe.get()
        {
            scribe.unpark();
        }
    }

    /// The writing thread is at work.
    pub(super) fn is_at_work(&self) {
        self.hurried.store(false, Ordering::Release);
    }

    pub(super) fn new_rings(&self) -> Vec<Arc<Ring>> {
        std::mem::take(&mut lock(&self.rings))
    }

    pub(super) fn new_pools(&self) -> Vec<PoolLabel> {
        std::mem::take(&mut lock(&self.pools))
    }

    /// The words of a mark, once.
    pub(super) fn mark_of(&self, number: u64) -> String {
        let mut marks = lock(&self.marks);
        let mark = usize::try_from(number).ok().and_then(|at| marks.get_mut(at));
        mark.map(std::mem::take).unwrap_or_default()
    }

    /// Told by threads that had no ring any more.
    pub(super) fn late(&self) -> Lost {
        let [events, allocated, freed] = self.late.each_ref().map(|count| count.load(Ordering::Relaxed));
        Lost {
            events,
            allocated,
            freed,
        }
    }

    /// Who tells of a pool.
    pub(super) fn sink(self: &Arc<Self>, pool: &PoolLabel) -> Sink {
        lock(&self.pools).push(pool.clone());
        Sink {
            session: Arc::clone(self),
            pool: pool.id as u32,
        }
    }

    /// Writes down that something begins here.
    pub(super) fn mark(&self, text: &str) {
        let _quiet = quiet();
        let number = {
            let mut marks = lock(&self.marks);
            marks.push(text.to_owned());
            marks.len() as u64 - 1
        };
        self.tell_moment(What::Mark, number);
    }

    pub(super) fn step(&self, number: u64) {
        self.tell_moment(What::Step, number);
    }

    fn tell_moment(&self, what: What, number: u64) {
        let told = Told {
            what,
            time: 0,
            address: 0,
            requested: number,
            bytes: 0,
            pool: 0,
            stream: 0,
            tag: Tag::current().number(),
        };
        self.tell(&told);
    }

    #[inline]
    fn tell(&self, told: &Told) {
        if !self.is_active() {
            return;
        }
        let put = MINE.try_with(|mine| {
            let Ok(mut mine) = mine.try_borrow_mut() else {
                return false;
            };
            match &mut *mine {
                Some(mine) if mine.session == self.number => self.put(mine, told),
                other => {
                    *other = Some(self.admit());
                    if let Some(mine) = other {
                        self.put(mine, told);
                    }
                }
            }
            true
        });
        if put != Ok(true) {
            self.tell_late(told);
        }
    }

    #[inline]
    fn put(&self, mine: &mut Mine, told: &Told) {
        if self.stacks != RecordStacks::Never
            && told.what == What::Alloc
            && self.wants_stack(mine, told.requested)
        {
            self.put_with_stack(mine, told);
        } else {
            mine.ring.put(told, &[], || self.hurry());
        }
    }

    fn wants_stack(&self, mine: &mut Mine, bytes: u64) -> bool {
        let every = match self.stacks {
            RecordStacks::Never => return false,
            RecordStacks::Always => return true,
            RecordStacks::Bytes(every) => every.max(1),
        };
        let wants = bytes >= mine.until;
        mine.until = if wants { every } else { mine.until - bytes };
        wants
    }

    #[inline(never)]
    fn put_with_stack(&self, mine: &Mine, told: &Told) {
        let _quiet = quiet();
        let mut frames = [0; FRAMES];
        let mut len = 0;
        crate::os::walk(FRAMES, |address| {
            if let Some(place) = frames.get_mut(len) {
                *place = address as u64;
                len += 1;
            }
        });
        let frames = frames.get(..len).unwrap_or_default();
        mine.ring.put(told, frames, || self.hurry());
    }

    /// A ring for this thread.
    #[cold]
    #[inline(never)]
    fn admit(&self) -> Mine {
        let _quiet = quiet();
        let ring = Arc::new(Ring::new(self.ring_words, thread::thread_number()));
        lock(&self.rings).push(Arc::clone(&ring));
        Mine {
            session: self.number,
            ring,
            until: 0,
        }
    }

    #[cold]
    fn tell_late(&self, told: &Told) {
        let [events, allocated, freed] = &self.late;
        events.fetch_add(1, Ordering::Relaxed);
        match told.what {
            What::Alloc => allocated.fetch_add(told.requested, Ordering::Relaxed),
            What::Free => freed.fetch_add(told.requested, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// Tells a recording what happens to a pool. Pools have it among those who watch, and call it first: it takes less time than
/// the way to a subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    session: Arc<Session>,
    pool: u32,
}

impl Sink {
    /// The same of another pool.
    #[cfg(feature = "cuda")]
    pub(crate) fn for_pool(&self, pool: &PoolLabel) -> Self {
        self.session.sink(pool)
    }

    /// Whether it is of a recording with this number.
    pub(super) fn is_of(&self, session: &Session) -> bool {
        self.session.number == session.number
    }

    #[inline]
    fn tell(&self, what: What, facts: &Facts) {
        self.session.tell(&Told {
            what,
            time: 0,
            address: facts.address as u64,
            requested: facts.requested as u64,
            bytes: facts.bytes as u64,
            pool: self.pool,
            stream: facts.stream,
            tag: Tag::current().number(),
        });
    }

    /// A block was handed out.
    #[inline]
    pub(crate) fn allocated(&self, facts: &Facts) {
        self.tell(What::Alloc, facts);
    }

    /// A block comes back.
    #[inline]
    pub(crate) fn freed(&self, facts: &Facts) {
        self.tell(What::Free, facts);
    }

    /// Something else has happened.
    pub(crate) fn note(&self, kind: EventKind, facts: &Facts) {
        let what = match kind {
            EventKind::Refilled => What::Reserve,
            EventKind::Trimmed => What::Release,
            EventKind::Refused => What::Refused,
            EventKind::Allocated | EventKind::Freed => return,
        };
        self.tell(what, facts);
    }
}
