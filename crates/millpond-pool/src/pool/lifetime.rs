//! Decides when a pool may end: after its last handle was dropped, if no block is in use and no allocation is in progress.
//!
//! An owner without a block, such as an empty buffer, does not keep its pool open. It may request its first block while another
//! thread drops the last handle. A block is counted only some time after it was taken, so the counts alone do not show whether
//! the pool may end.

use super::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The state of a pool: whether it is closed, the number of allocations in progress that may not be counted yet, and whether a
/// panic has broken it.
///
/// The rules:
/// 1. A thread that takes a block from a shelf or from the engine calls [`begin`](Self::begin) before it takes their locks, and
///    [`finish`](Self::finish) after the block is counted or the request is refused. A thread inside its cache needs neither: it
///    counts the block, which may come from a shelf, before it leaves the cache, and the pool is not ended while an owner is inside.
/// 2. The thread that ends the pool takes the locks of all shelves and of the engine before it calls [`is_idle`](Self::is_idle), and
///    holds them until it has emptied the shelves and the engine.
///
/// Therefore there are two cases. If the allocation takes its locks first, the ending thread sees that it is in progress, or sees
/// its count. Otherwise the allocation finds nothing to take. If a thread does not end a closed pool because an allocation is in
/// progress, the allocating thread must try to end it: the result of its `finish` says so.
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
        // This fence pairs with the fence in `finish`: either `finish` sees that the pool is closed, or `is_idle` sees that the
        // allocation has finished.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Records that a panic has left the engine inconsistent. The caller must hold the lock of the engine, which orders the store.
    pub(crate) fn break_down(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Records that an allocation begins to search for a block outside the thread's cache.
    pub(crate) fn begin(&self) {
        // The locks that the caller takes next order this store.
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the allocation has finished. Returns whether the pool is closed. If it is, the caller must try to end the pool.
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
