//! A recording while it runs: the rings into which threads write events, and the fast path to the ring of a thread.

mod event;
mod ring;

use event::LostCounters;
pub use event::{Lost, RingEvent, What};
pub use ring::Taker;
use ring::{FRAMES, Putter, Ring};

use crate::event::{BlockInfo, EventKind, PoolLabel};
use crate::ledger::Sampler;
use crate::tags::Tag;
use millpond_os::reentrancy::quiet;
use millpond_os::thread;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The default size of one thread's ring. It holds the events of about half a second at five million events per second.
pub const RING_BYTES: usize = 64 << 20;

/// The longest wait of a thread for space in its ring. It ends a wait for a writing thread that itself waits for a lock of
/// the waiting thread.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The allocations whose stacks are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStacks {
    /// No allocations.
    Never,
    /// A random sample: each byte is selected with the probability of one in this number of bytes, and the stack of an
    /// allocation is recorded if one of its bytes is selected. Allocations of at least this number of bytes are always
    /// recorded.
    Bytes(u64),
    /// All allocations. Stacks fill a thread's ring faster than the writing thread empties it, so a thread whose ring is
    /// nearly full waits.
    Always,
}

/// Begins the recording of a child of a fork at its first event, and returns the session. Returns `None` at later calls, and if the
/// child is not recorded.
pub type Begin = fn() -> Option<Arc<Session>>;

/// The state that threads share with the writing thread.
pub struct Session {
    number: u64,
    /// True while events are accepted.
    active: AtomicBool,
    stopping: AtomicBool,
    ring_words: usize,
    stacks: RecordStacks,
    /// Addresses of code. The innermost frames of a stack are left out if their code is there.
    left_out: Range<u64>,
    writer: OnceLock<Thread>,
    /// In the child of a fork: begins the child's own recording.
    successor: OnceLock<Begin>,
    hurried: AtomicBool,
    /// True if threads wait for space in their rings.
    waits: AtomicBool,
    /// The rings that the writing thread has not taken yet.
    rings: Mutex<Vec<Arc<Ring>>>,
    pools: Mutex<Vec<PoolLabel>>,
    marks: Mutex<Vec<String>>,
    /// The lost events that interrupted the writing of another event of their thread, as those of a signal handler can.
    nested: LostCounters,
    /// The state of the last thread with an event after its locals were destroyed.
    ended: Mutex<Option<Mine>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// The state of one thread, with its end of the ring.
struct Mine {
    session: u64,
    putter: Putter,
    /// The bytes until the next stack.
    until: u64,
    /// The stacks of allocations of at least this number of bytes are recorded without a draw.
    large: u64,
    /// Draws `until`.
    sampler: Sampler,
    /// The pool of this thread's last event, and the number of the last change of the pool's observers before that
    /// event.
    way: Way,
}

/// A pool and the number of a change of its observers. Neither number is ever reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The id of the pool.
    pub pool: u64,
    /// The number of the change of observers that the event belongs to.
    pub change: u64,
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

/// Registers the destructors of this thread's locals with the C library, which allocates for it.
pub fn prepare_thread() {
    let _ = MINE.try_with(|_| ());
}

/// The fast path. Writes a short event of a block if the thread's last event was of the same pool. Returns false if the
/// event was not written.
///
/// The function is compiled for each kind of event and inlined into its one caller, so that the arguments stay in
/// registers.
#[inline(always)]
pub fn tell_short<const ALLOCATED: bool>(way: Way, info: &BlockInfo) -> bool {
    let put = MINE.try_with(|mine| {
        let Ok(mut mine) = mine.try_borrow_mut() else {
            return false;
        };
        let Some(mine) = &mut *mine else { return false };
        let what = if ALLOCATED { What::Alloc } else { What::Free };
        if mine.way != way {
            return false;
        }
        let mut until = mine.until;
        if ALLOCATED {
            let bytes = info.requested as u64;
            if bytes >= until || bytes >= mine.large {
                return false;
            }
            until -= bytes;
        }
        let put = mine.putter.put_short(&told(what, way.pool as u32, info));
        if put {
            mine.until = until;
        }
        put
    });
    put == Ok(true)
}

/// Disables the fast path in a child of a fork, where no thread empties the ring.
pub fn forget_way() {
    let _ = MINE.try_with(|mine| {
        if let Ok(mut mine) = mine.try_borrow_mut()
            && let Some(mine) = &mut *mine
        {
            mine.way = Way::default();
        }
    });
}

#[inline(always)]
fn told(what: What, pool: u32, info: &BlockInfo) -> RingEvent {
    RingEvent {
        what,
        time: 0,
        address: info.address as u64,
        requested: info.requested as u64,
        bytes: info.bytes as u64,
        pool,
        stream: info.stream,
        tag: match what {
            What::Free => 0,
            _ => Tag::current().number(),
        },
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Creates a session with rings of `ring_bytes` bytes.
    pub fn new(number: u64, ring_bytes: usize, stacks: RecordStacks) -> Self {
        Self {
            number,
            active: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            ring_words: (ring_bytes / size_of::<u64>()).clamp(1 << 10, 1 << 28),
            stacks,
            left_out: 0..0,
            writer: OnceLock::new(),
            successor: OnceLock::new(),
            hurried: AtomicBool::new(false),
            waits: AtomicBool::new(stacks == RecordStacks::Always),
            rings: Mutex::default(),
            pools: Mutex::default(),
            marks: Mutex::default(),
            nested: LostCounters::default(),
            ended: Mutex::default(),
        }
    }

    /// Sets addresses of code. The innermost frames of a stack are left out if their code is there.
    #[must_use]
    pub fn leave_out(self, left_out: Range<u64>) -> Self {
        Self { left_out, ..self }
    }

    /// Sets the thread that is woken when a ring fills.
    pub fn set_scribe(&self, thread: Thread) {
        let _ = self.writer.set(thread);
    }

    /// Returns true if any stacks are recorded.
    pub fn has_stacks(&self) -> bool {
        self.stacks != RecordStacks::Never
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Rejects all later events.
    pub fn deactivate(&self) {
        self.active.store(false, Ordering::Release);
    }

    /// Rejects all later events. At each of them, `begin` is called under no lock, and the event belongs to the session that it
    /// returns.
    pub fn deactivate_for(&self, begin: Begin) {
        let _ = self.successor.set(begin);
        self.deactivate();
    }

    #[cold]
    #[inline(never)]
    fn tell_successor(&self, told: &RingEvent) {
        let begun = self.successor.get().and_then(|begin| begin());
        if let Some(session) = begun.filter(|session| session.is_active()) {
            session.tell(told, Way::default());
        }
    }

    /// Asks the writing thread to write all events and end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.hurry();
    }

    /// Returns true if the session is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Wakes the writing thread, unless it was already woken since it last ran.
    fn hurry(&self) {
        if !self.hurried.swap(true, Ordering::AcqRel)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Notes that the writing thread is running.
    pub fn is_at_work(&self) {
        self.hurried.store(false, Ordering::Release);
    }

    /// Returns the rings that were added since the last call.
    pub fn new_rings(&self) -> Vec<Arc<Ring>> {
        std::mem::take(&mut lock(&self.rings))
    }

    /// Returns the pools that were added since the last call.
    pub fn new_pools(&self) -> Vec<PoolLabel> {
        std::mem::take(&mut lock(&self.pools))
    }

    /// Takes the text of a mark. A second call returns an empty text.
    pub fn mark_of(&self, number: u64) -> String {
        let mut marks = lock(&self.marks);
        let mark = usize::try_from(number).ok().and_then(|at| marks.get_mut(at));
        mark.map(std::mem::take).unwrap_or_default()
    }

    /// Returns the counts of the lost events that interrupted the writing of another event of their thread.
    pub fn nested(&self) -> Lost {
        self.nested.get()
    }

    /// Adds a pool and returns its sink.
    pub fn sink(self: &Arc<Self>, pool: &PoolLabel) -> Sink {
        lock(&self.pools).push(pool.clone());
        Sink {
            session: Arc::clone(self),
            pool: pool.id,
        }
    }

    /// Writes a mark for this moment.
    pub fn mark(&self, text: &str) {
        let _quiet = quiet();
        let number = {
            let mut marks = lock(&self.marks);
            marks.push(text.to_owned());
            marks.len() as u64 - 1
        };
        self.tell_moment(What::Mark, number);
    }

    /// Records the beginning of a step.
    pub fn step(&self, number: u64) {
        self.tell_moment(What::Step, number);
    }

    fn tell_moment(&self, what: What, number: u64) {
        let told = RingEvent {
            what,
            time: 0,
            address: 0,
            requested: number,
            bytes: 0,
            pool: 0,
            stream: 0,
            tag: Tag::current().number(),
        };
        self.tell(&told, Way::default());
    }

    /// Writes an event, and enables the fast path for the thread's next events with the same pool and change.
    #[inline(never)]
    fn tell(&self, told: &RingEvent, way: Way) {
        if !self.is_active() {
            return self.tell_successor(told);
        }
        let put = MINE.try_with(|mine| {
            let Ok(mut mine) = mine.try_borrow_mut() else {
                return false;
            };
            if mine.as_ref().is_none_or(|mine| mine.session != self.number) {
                *mine = Some(self.admit());
            }
            if let Some(mine) = &mut *mine {
                mine.way = way;
                self.put(mine, told);
            }
            true
        });
        match put {
            Ok(true) => {}
            Ok(false) => self.nested.count(told),
            Err(_) => self.tell_at_end(told),
        }
    }

    /// Writes an event of a thread whose locals were destroyed. The main thread runs the destructors of libraries then, and
    /// other threads run the destructors of the C library's keys.
    #[inline(never)]
    fn tell_at_end(&self, told: &RingEvent) {
        let _quiet = quiet();
        let mut ended = lock(&self.ended);
        if ended
            .as_ref()
            .is_none_or(|mine| mine.putter.thread() != thread::thread_number())
        {
            *ended = Some(self.admit());
        }
        if let Some(mine) = &mut *ended {
            self.put(mine, told);
        }
    }

    fn put(&self, mine: &mut Mine, told: &RingEvent) {
        let wants_stack = match told.what {
            What::Alloc => self.wants_stack(mine, told.requested),
            // There are few of them, and their call sites are the most important ones.
            What::Refused => self.has_stacks(),
            _ => false,
        };
        if wants_stack {
            self.put_with_stack(mine, told);
        } else if !mine.putter.put_short(told) {
            self.wait_if_full(&mine.putter);
            mine.putter.put(told, &[], || self.hurry());
        }
    }

    fn wants_stack(&self, mine: &mut Mine, bytes: u64) -> bool {
        let every = match self.stacks {
            RecordStacks::Never => return false,
            RecordStacks::Always => return true,
            RecordStacks::Bytes(every) => every.max(1),
        };
        if bytes >= every {
            return true;
        }
        let wants = bytes >= mine.until;
        mine.until = if wants {
            mine.sampler.bytes_to_next(every)
        } else {
            mine.until - bytes
        };
        wants
    }

    #[inline(never)]
    fn put_with_stack(&self, mine: &mut Mine, told: &RingEvent) {
        let _quiet = quiet();
        let mut frames = [0; FRAMES];
        let mut len = 0;
        millpond_os::walk_beyond(&self.left_out, FRAMES, |address| {
            if let Some(place) = frames.get_mut(len) {
                *place = address;
                len += 1;
            }
        });
        let frames = frames.get(..len).unwrap_or_default();
        self.wait_if_full(&mine.putter);
        mine.putter.put(told, frames, || self.hurry());
    }

    /// Waits for space in a ring that is nearly full, if threads wait. The frees wait too, because a lost free looks like a leak.
    fn wait_if_full(&self, putter: &Putter) {
        if putter.is_nearly_full() && self.waits.load(Ordering::Relaxed) {
            self.wait_for_space(putter);
        }
    }

    /// Waits until the writing thread has emptied a part of the ring. After a wait that was too long, no thread waits
    /// again.
    #[cold]
    fn wait_for_space(&self, putter: &Putter) {
        let start = Instant::now();
        while putter.is_nearly_full() && self.is_active() && !self.is_stopping() {
            if start.elapsed() > LONGEST_WAIT {
                self.waits.store(false, Ordering::Relaxed);
                return;
            }
            self.hurry();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes a ring for this thread.
    #[cold]
    #[inline(never)]
    fn admit(&self) -> Mine {
        let _quiet = quiet();
        let ring = Arc::new(Ring::new(self.ring_words, thread::thread_number()));
        let putter = Putter::new(&ring);
        lock(&self.rings).push(ring);
        let mut sampler = Sampler::new();
        let (until, large) = match self.stacks {
            RecordStacks::Never => (u64::MAX, u64::MAX),
            RecordStacks::Always => (0, 0),
            RecordStacks::Bytes(every) => (sampler.bytes_to_next(every.max(1)), every.max(1)),
        };
        Mine {
            session: self.number,
            putter,
            until,
            large,
            sampler,
            way: Way::default(),
        }
    }
}

/// Sends the events of a pool to a recording. It is one of the pool's observers and is called first. A call is cheaper
/// than a call of a subscriber.
#[derive(Clone, Debug)]
pub struct Sink {
    session: Arc<Session>,
    pool: u64,
}

impl Sink {
    /// Makes a sink of the same recording for another pool.
    pub(crate) fn for_pool(&self, pool: &PoolLabel) -> Self {
        self.session.sink(pool)
    }

    /// Returns true if the sink belongs to this session.
    pub fn is_of(&self, session: &Session) -> bool {
        self.session.number == session.number
    }

    /// Writes an event. `change` is the number of the last change of the pool's observers.
    #[inline]
    pub(crate) fn note(&self, kind: EventKind, info: &BlockInfo, change: u64) {
        let what = match kind {
            EventKind::Allocated => What::Alloc,
            EventKind::Freed => What::Free,
            EventKind::Refilled => What::Reserve,
            EventKind::Trimmed => What::Release,
            EventKind::Refused => What::Refused,
        };
        let way = Way {
            pool: self.pool,
            change,
        };
        self.session.tell(&told(what, self.pool as u32, info), way);
    }
}
