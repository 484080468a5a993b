//! Exclusive access to a thread's cache: almost free for the thread itself, and after a pause for any other thread.

use super::sync::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence, pause};

/// A lock of a cache that is biased towards the cache's owner.
///
/// The owner sets `busy`, then checks whether another thread wants the cache. The other thread sets [`WANTED`], then checks
/// whether the owner is busy. If both begin at the same time, each must see the other's flag, so both sides need a full barrier
/// between their two steps. The owner takes these steps up to a hundred million times a second, and other threads rarely do.
/// Therefore the other threads execute the barrier for both sides: `membarrier` makes every running thread of the process pass
/// a barrier, and for the owner it is enough that the compiler keeps the order. If the system has no such call, every owner is
/// [`FENCED`]: it takes the slow path, which has a barrier of its own.
///
/// One word contains every flag that keeps the owner from the fast path, so observers, waiting and charging cost nothing
/// while they are not used.
///
/// # Invariant
/// After [`want`](Self::want), [`barrier`] and a [`wait`](Self::wait) that returns true, the owner does not touch the cache
/// until [`give_up`](Self::give_up).
///
/// `busy` may still become true in that time: the owner sets it before it reads the flags, finds that the cache is wanted, and
/// clears it. A fork holds every claim, so at that time `busy` says nothing about the cache. The cache is consistent, but if
/// `busy` was set at the moment of the fork, it stays set in the child, because the owner does not exist there. The child
/// therefore calls [`forget_owner`](Self::forget_owner).
///
/// # If `membarrier` is forbidden later
/// A program may forbid the call after its start, for example with a seccomp filter. A barrier on the side of the other thread
/// alone is then not enough for owners that still take the fast path. [`wait`](Self::wait) marks them as fenced, but it cannot
/// know whether an owner has seen the mark: the owner may be between its two steps. The owner confirms the mark in `fenced` at
/// its next call, and from then on both sides have a barrier. Until then `wait` returns false and no other thread may access the
/// cache: statistics do not count its blocks, and trimming leaves them. The child of a fork never uses the cache, because it may
/// be inconsistent there and its owner does not exist.
///
/// The lock has a cache line of its own: only the owner writes it, except while it is claimed.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct BiasedLock {
    /// The owner is in the cache, or is about to check whether it may enter.
    busy: AtomicBool,
    /// The owner has seen [`FENCED`] and no longer takes the fast path. Never cleared.
    fenced: AtomicBool,
    flags: AtomicU32,
}

/// Another thread wants the cache.
const WANTED: u32 = 1;
/// The system cannot make every thread pass a barrier, so the owner uses a barrier of its own. Never cleared.
const FENCED: u32 = 2;
/// The pool has work to do at every call.
const SLOW: u32 = 4;
/// Every call is reported, and nothing else requires the slow path.
const WATCHED: u32 = 8;
/// Some blocks are entered in a ledger, and nothing else requires the slow path.
const SAMPLED: u32 = 16;

/// Flags that the fast path ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Despite {
    Nothing = 0,
    /// The owner's operation is reported after it has left the cache.
    Watchers = WATCHED,
}

impl Despite {
    #[inline(always)]
    pub(crate) const fn told(watched: bool) -> Self {
        if watched { Self::Watchers } else { Self::Nothing }
    }
}

impl BiasedLock {
    pub(crate) fn new() -> Self {
        let fenced = !asymmetric();
        Self {
            busy: AtomicBool::new(false),
            fenced: AtomicBool::new(fenced),
            flags: AtomicU32::new(if fenced { FENCED } else { 0 }),
        }
    }

    /// Enters on the owner's fast path. Returns false if there is any reason to take the slow path. If it returns true, the
    /// owner must call [`leave`](Self::leave). If some blocks are entered in a ledger and there is no other reason, `passes`
    /// returns whether this block is not one of them.
    #[inline]
    pub(crate) fn enter(&self, despite: Despite, passes: impl FnOnce() -> bool) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // Acquire: the last claimer's changes are visible.
        let flags = self.flags.load(Ordering::Acquire) & !(despite as u32);
        if flags != 0 && !(flags == SAMPLED && passes()) {
            if flags & FENCED != 0 && !self.fenced.load(Ordering::Relaxed) {
                // Release: a thread that reads it also sees everything that the owner did on the fast path.
                self.fenced.store(true, Ordering::Release);
            }
            self.busy.store(false, Ordering::Release);
            return false;
        }
        true
    }

    /// Enters on the owner's slow path. Returns false only if another thread wants or holds the cache.
    pub(crate) fn enter_slowly(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.flags.load(Ordering::Acquire) & WANTED != 0 {
            self.busy.store(false, Ordering::Release);
            return false;
        }
        true
    }

    /// Leaves the cache. Called by the owner.
    #[inline]
    pub(crate) fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Marks the cache as wanted by another thread. [`barrier`] and [`wait`](Self::wait) must follow.
    pub(crate) fn want(&self) {
        self.flags.fetch_or(WANTED, Ordering::Relaxed);
    }

    /// Waits until the owner is outside. Returns false if this cannot be determined. In that case the cache stays with the
    /// owner. This must be called after [`want`](Self::want) and [`barrier`]. The owner is inside for a few nanoseconds, unless
    /// it is interrupted there.
    #[must_use]
    pub(crate) fn wait(&self) -> bool {
        let mut rounds = 0;
        if !asymmetric() {
            self.flags.fetch_or(FENCED, Ordering::Relaxed);
            // A running owner calls the pool again soon. A sleeping owner does not.
            while !self.fenced.load(Ordering::Acquire) {
                if rounds == PATIENCE {
                    return false;
                }
                rounds += 1;
                pause(0);
            }
        }
        rounds = 0;
        while self.busy.load(Ordering::Acquire) {
            pause(rounds);
            rounds = rounds.saturating_add(1);
        }
        true
    }

    /// Makes the owner take the slow path from now on. The owner calls this while it is not on the fast path.
    pub(crate) fn acknowledge_fences(&self) {
        self.flags.fetch_or(FENCED, Ordering::Relaxed);
        self.fenced.store(true, Ordering::Release);
    }

    /// Takes the first of the owner's two steps.
    #[cfg(test)]
    pub(crate) fn begin_to_enter(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Clears `busy` in the child of a fork before which [`wait`](Self::wait) returned true. The owner is a thread of the
    /// parent, so it does not clear the flag in the child.
    pub(crate) fn forget_owner(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Returns the cache to the owner. Called by the other thread.
    pub(crate) fn give_up(&self) {
        self.flags.fetch_and(!WANTED, Ordering::Release);
    }

    /// Sets whether the owner takes the slow path. The owner has seen it after a [`barrier`].
    pub(crate) fn slow(&self, slow: bool) {
        self.turn(SLOW, slow);
    }

    /// Sets whether the owner reports every call. The owner has seen it after a [`barrier`].
    pub(crate) fn watch(&self, watched: bool) {
        self.turn(WATCHED, watched);
    }

    /// Sets whether the owner checks at every call if the block belongs in the ledger. The owner has seen it after a
    /// [`barrier`].
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

/// The number of times that [`BiasedLock::wait`] lets an owner run, so that the owner can confirm that it is fenced.
const PATIENCE: u32 = if cfg!(all(test, loom)) { 1 } else { 10 };

/// Makes every thread of the process pass a barrier. If the system refuses, [`BiasedLock::wait`] takes this into account.
pub(crate) fn barrier() {
    fence(Ordering::SeqCst);
    #[cfg(not(all(test, loom)))]
    {
        if asymmetric() && !millpond_os::barrier_everywhere() {
            SYSTEM.store(FENCES, std::sync::atomic::Ordering::Relaxed);
        }
        if !asymmetric() {
            super::fast::acknowledge_fences();
        }
    }
    #[cfg(all(test, loom))]
    super::models::barrier();
}

/// Whether the system can make every thread pass a barrier, or 0 if this is not known yet. After the system has refused the
/// call, it is not made again. Not a `OnceLock`: if another thread is initialising it during a fork, the child waits forever.
#[cfg(not(all(test, loom)))]
static SYSTEM: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
#[cfg(not(all(test, loom)))]
const BARRIERS: u8 = 1;
#[cfg(not(all(test, loom)))]
const FENCES: u8 = 2;

#[cfg(not(all(test, loom)))]
fn asymmetric() -> bool {
    use std::sync::atomic::Ordering::Relaxed;
    let known = SYSTEM.load(Relaxed);
    if known != 0 {
        return known == BARRIERS;
    }
    let can = millpond_os::can_barrier_everywhere();
    let found = if can { BARRIERS } else { FENCES };
    // Another thread may have stored a newer result in the meantime.
    match SYSTEM.compare_exchange(0, found, Relaxed, Relaxed) {
        Ok(_) => can,
        Err(known) => known == BARRIERS,
    }
}

#[cfg(all(test, loom))]
use super::models::asymmetric;

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// Returns how often a thread has gone to sleep.
    fn sleeps(thread: i32) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("a thread");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count")
    }

    #[test]
    fn a_thread_that_waits_long_for_an_owner_sleeps() {
        let claim = BiasedLock::new();
        assert!(claim.enter_slowly());
        let (send, receive) = mpsc::channel();
        let slept = thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the call takes no pointer and returns a number.
                send.send(unsafe { libc::gettid() }).expect("it is received");
                claim.want();
                barrier();
                let waited = claim.wait();
                claim.give_up();
                assert!(waited || !asymmetric());
            });
            let waits = receive.recv().expect("it is sent");
            let before = sleeps(waits);
            let slept = (0..1000).any(|_| {
                thread::sleep(Duration::from_millis(10));
                sleeps(waits) >= before + 20
            });
            claim.leave();
            slept
        });
        assert!(slept);
    }
}
