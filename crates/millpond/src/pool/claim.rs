//! Who may touch a thread's cache: its own thread at almost no cost, any other after a pause.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// A cache has two flags. The owner says that it is at work, then looks whether another thread wants the cache.
/// The other thread says that it wants the cache, then looks whether the owner is at work. Each must see the other's
/// flag if both begin at once, so a full barrier has to stand between the two steps on both sides. The owner is
/// there a hundred million times a second and the others hardly ever, so the others pay for both: `membarrier`
/// makes every running thread of the process pass a barrier, and for the owner it is enough that the compiler
/// keeps the order. Where the system has no such call, the owner pays too.
///
/// On its own cache line: nobody else writes it but while it is claimed.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Claim {
    /// The owner is at work.
    busy: AtomicBool,
    /// Another thread wants the cache.
    wanted: AtomicBool,
    /// Whether the system has the call.
    asymmetric: bool,
}

impl Claim {
    pub(crate) fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            asymmetric: asymmetric(),
        }
    }

    /// The owner's entry; false where another thread wants or has the cache. Every true is followed by one
    /// [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        // Acquire: what the last claimer did is seen.
        if self.wanted.load(Ordering::Acquire) {
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
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Waits until the owner is out. It is out for a few nanoseconds' work, unless it was interrupted there.
    pub(crate) fn wait(&self) {
        while self.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// The other thread is done.
    pub(crate) fn give_up(&self) {
        self.wanted.store(false, Ordering::Release);
    }
}

/// Makes every thread of the process pass a barrier.
pub(crate) fn barrier() {
    fence(Ordering::SeqCst);
    if asymmetric() {
        crate::os::barrier_everywhere();
    }
}

/// Whether the system can do that.
fn asymmetric() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(crate::os::can_barrier_everywhere)
}
