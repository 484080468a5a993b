//! Who may touch a thread's cache: its own thread at almost no cost, any other after a pause.

use super::sync::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence, yield_now};

/// A cache has a flag and a word of flags. The owner says that it is at work, then looks whether another thread wants the
/// cache. The other thread says that it wants the cache, then looks whether the owner is at work. Each must see the
/// other's flag if both begin at once, so a full barrier has to stand between the two steps on both sides. The owner is
/// there a hundred million times a second and the others hardly ever, so the others pay for both: `membarrier`
/// makes every running thread of the process pass a barrier, and for the owner it is enough that the compiler
/// keeps the order. Where the system has no such call, the owner is always told to go the slow way, and pays there.
///
/// All that keeps the owner off its fast way is in that one word: what listens, waits or charges costs nothing more
/// while nobody does.
///
/// On its own cache line: nobody else writes it but while it is claimed.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Claim {
    /// The owner is at work.
    busy: AtomicBool,
    flags: AtomicU32,
}

/// Another thread wants the cache.
const WANTED: u32 = 1;
/// The system cannot make every thread pass a barrier.
const FENCED: u32 = 2;
/// The pool has something to do at every call.
const SLOW: u32 = 4;
/// Someone is told of every call, and that alone can be done beside the fast way.
const WATCHED: u32 = 8;
/// Nothing but that some blocks are entered in an account.
const SAMPLED: u32 = 16;

/// In spite of what the owner enters at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Despite {
    Nothing = 0,
    /// What the owner has done is told when it is out again.
    Watchers = WATCHED,
}

impl Despite {
    #[inline(always)]
    pub(crate) const fn told(watched: bool) -> Self {
        if watched { Self::Watchers } else { Self::Nothing }
    }
}

impl Claim {
    pub(crate) fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            flags: AtomicU32::new(if asymmetric() { 0 } else { FENCED }),
        }
    }

    /// The owner's fast entry; false where there is any reason to go the slow way. Every true is followed by one
    /// [`leave`](Self::leave). Where some blocks are entered in an account and all else is as usual, it is asked whether
    /// this is none of them.
    #[inline]
    pub(crate) fn enter(&self, despite: Despite, passes: impl FnOnce() -> bool) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // Acquire: what the last claimer did is seen.
        let flags = self.flags.load(Ordering::Acquire) & !(despite as u32);
        if flags != 0 && !(flags == SAMPLED && passes()) {
            self.busy.store(false, Ordering::Release);
            return false;
        }
        true
    }

    /// The owner's slow entry; false only where another thread wants or has the cache.
    pub(crate) fn enter_slowly(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.flags.load(Ordering::Acquire) & WANTED != 0 {
            self.busy.store(false, Ordering::Release);
            return false;
        }
        true
    }

    /// The owner is done.
    #[inline]
    pub(crate) fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Says that another thread wants the cache; [`barrier`] and [`wait`](Self::wait) follow.
    pub(crate) fn want(&self) {
        self.flags.fetch_or(WANTED, Ordering::Relaxed);
    }

    /// Waits until the owner is out. It is out for a few nanoseconds' work, unless it was interrupted there.
    pub(crate) fn wait(&self) {
        while self.busy.load(Ordering::Acquire) {
            yield_now();
        }
    }

    /// The other thread is done.
    pub(crate) fn give_up(&self) {
        self.flags.fetch_and(!WANTED, Ordering::Release);
    }

    /// Sends the owner the slow way from now on, or no more; seen by it at once after a [`barrier`].
    pub(crate) fn slow(&self, slow: bool) {
        self.turn(SLOW, slow);
    }

    /// Has the owner tell of every call from now on, or no more; seen by it at once after a [`barrier`].
    pub(crate) fn watch(&self, watched: bool) {
        self.turn(WATCHED, watched);
    }

    /// Has the owner look, at every call from now on or no more, whether it is about a block of the account; seen by it at
    /// once after a [`barrier`].
    pub(crate) fn sample(&self, sampled: bool) {
        self.turn(SAMPLED, sampled);
    }

    fn turn(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Release);
        } else {
            self.flags.fetch_and(!flag, Ordering::Release);
        }
    }
}

/// Makes every thread of the process pass a barrier.
pub(crate) fn barrier() {
    fence(Ordering::SeqCst);
    #[cfg(not(all(test, loom)))]
    if asymmetric() {
        crate::os::barrier_everywhere();
    }
}

/// Whether the system can do that.
#[cfg(not(all(test, loom)))]
fn asymmetric() -> bool {
    static CAN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CAN.get_or_init(crate::os::can_barrier_everywhere)
}

#[cfg(all(test, loom))]
use super::models::asymmetric;
