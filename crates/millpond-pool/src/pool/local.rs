//! Finds this thread's cache of a pool.

use super::cache::Cache;
use super::heap::Heap;
use millpond_os::reentrancy::inside;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

/// The caches of one thread, by pool.
struct Table {
    entries: Vec<(&'static Heap, Arc<Cache>)>,
}

impl Drop for Table {
    fn drop(&mut self) {
        let _inside = inside();
        LAST.set((ptr::null(), ptr::null()));
        for (heap, cache) in self.entries.drain(..) {
            // A panic in the destructor of a thread local would end the process. A panic in the source of a pool must only
            // break that pool.
            let _ = catch_unwind(AssertUnwindSafe(|| heap.retire(&cache)));
        }
    }
}

thread_local! {
    /// The cache used last: its pool, whose address no other pool ever has, and the address of the cache. The table holds
    /// the cache for as long as the entry is here: code that removes an entry from the table resets this first.
    static LAST: Cell<(*const Heap, *const Cache)> = const { Cell::new((ptr::null(), ptr::null())) };
    static TABLE: RefCell<Table> = const { RefCell::new(Table { entries: Vec::new() }) };
}

/// Runs `work` on this thread's cache if it is the one used last. Otherwise returns `otherwise`.
#[inline(always)]
pub(crate) fn with_last<R>(heap: &'static Heap, otherwise: R, work: impl FnOnce(&Cache) -> R) -> R {
    let (of, cache) = LAST.get();
    if !ptr::eq(of, heap) {
        return otherwise;
    }
    // SAFETY: the table of this thread holds the cache, because the pool is not null. It is not removed from the table
    // while `work` runs, because `work` is code of this crate and does not reach the table.
    work(unsafe { &*cache })
}

/// Runs `work` on this thread's cache, which is created on first use. Returns `None` at the end of the thread.
pub(crate) fn with<R>(heap: &'static Heap, work: impl FnOnce(&Cache) -> R) -> Option<R> {
    let (of, mut cache) = LAST.get();
    if !ptr::eq(of, heap) {
        cache = look_up(heap);
    }
    // SAFETY: as above, or it was just looked up, or it is null.
    unsafe { cache.as_ref() }.map(work)
}

/// Makes this thread take the slow path in all of its caches from now on. The thread must not be on the fast path of any of
/// them. If the table is being changed, the thread acknowledges the fences at its next call instead.
#[cfg(not(all(test, loom)))]
pub(crate) fn acknowledge_fences() {
    let _ = TABLE.try_with(|table| {
        if let Ok(table) = table.try_borrow() {
            let caches = table.entries.iter();
            caches.for_each(|(_, cache)| cache.claim.acknowledge_fences());
        }
    });
}

/// Returns this thread's cache, which the table holds, or null if there is none.
#[cold]
#[inline(never)]
fn look_up(heap: &'static Heap) -> *const Cache {
    let _inside = inside();
    let found = TABLE.try_with(|table| {
        let mut table = table.try_borrow_mut().ok()?;
        let known = table.entries.iter().find(|(of, _)| ptr::eq(*of, heap));
        if let Some((_, cache)) = known {
            return Some(Arc::as_ptr(cache));
        }
        // Removes the pools that were closed since.
        LAST.set((ptr::null(), ptr::null()));
        table.entries.retain(|(of, _)| !of.is_closed());
        let cache = heap.admit()?;
        let found = Arc::as_ptr(&cache);
        table.entries.push((heap, cache));
        Some(found)
    });
    let Some(cache) = found.ok().flatten() else {
        return ptr::null();
    };
    LAST.set((heap, cache));
    cache
}
