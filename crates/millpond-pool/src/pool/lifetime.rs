//! Decides when a pool may end: once its last handle is gone, no block is in use, and no allocation is under way.
//!
//! An owner without a block, such as an empty buffer, does not keep its pool open. It may ask for its first block while another
//! thread drops the last handle. The block is in no count between the moment in which it is taken and the moment in which it is
//! counted, so the pool must not look at its counts alone.

use super::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// Whether a pool is closed, how many allocations are under way that may not be counted yet, and whether a panic has broken it.
///
/// The rules:
/// 1. A thread that takes a block from a shelf or from the engine calls [`begin`](Self::begin) before it takes their locks, and
///    [`finish`](Self::finish) after the block is counted, or refused. A thread inside its cache needs neither: it counts the
///    block, which may come from a shelf, before it leaves the cache, and nobody ends the pool while an owner is inside.
/// 2. Whoever ends the pool holds the locks of all shelves and of the engine from before it asks [`is_idle`](Self::is_idle) until it has
///    emptied them.
///
/// An allocation therefore either took its locks before the end, which then sees it under way or sees its count, or finds
/// nothing to take. A thread that does not end a closed pool because an allocation is under way leaves that to the allocating
/// thread, which `finish` tells to try.
#[derive(Debug)]
pub(crate) struct Lifetime {
    closed: AtomicBool,
    under_way: AtomicU32,
    broken: AtomicBool,
}

impl Lifetime {
    pub(crate) fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            under_way: AtomicU32::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Closes the pool, because its last handle is gone.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // With the fence in `finish`: either `finish` sees that the pool is closed, or `is_idle` sees that the allocation has
        // finished.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Notes that a panic has left the engine half changed. The caller must hold the lock of the engine, which orders the
    /// store.
    pub(crate) fn break_down(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Notes that an allocation begins to look for a block outside the thread's cache.
    pub(crate) fn begin(&self) {
        // The locks that the caller takes next order this store.
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the allocation is over. Returns whether the pool is closed. If it is, the caller must try to end the pool.
    pub(crate) fn finish(&self) -> bool {
        // Release: a thread that sees this store also sees the count of the block.
        self.under_way.fetch_sub(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.is_closed()
    }

    /// Returns whether every block that was taken so far is counted. The caller must hold the locks of all shelves and of the
    /// engine.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }
}
