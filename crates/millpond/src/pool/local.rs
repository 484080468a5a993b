//! Finding this thread's cache of a pool.

use super::cache::Cache;
use super::heap::Heap;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

/// The caches of one thread, by pool.
struct Table {
    entries: Vec<(&'static Heap, Arc<Cache>)>,
}

impl Drop for Table {
    fn drop(&mut self) {
        LAST.set((0, ptr::null()));
        for (heap, cache) in self.entries.drain(..) {
            heap.retire(&cache);
        }
    }
}

thread_local! {
    /// The cache used last: the pool's number, which no other pool ever has, and where the cache is. The table holds
    /// the cache for as long as the entry is here: whoever takes an entry out of the table resets this first.
    static LAST: Cell<(u64, *const Cache)> = const { Cell::new((0, ptr::null())) };
    static TABLE: RefCell<Table> = const { RefCell::new(Table { entries: Vec::new() }) };
}

/// Runs `work` on this thread's cache, made on first use; `None` at the end of the thread.
#[inline]
pub(crate) fn with<R>(heap: &'static Heap, work: impl FnOnce(&Cache) -> R) -> Option<R> {
    let (number, cache) = LAST.get();
    if number == heap.number() {
        // SAFETY: the numbers agree, so the table of this thread holds the cache; it is not taken out while `work`
        // runs, because `work` is ours and does not reach the table.
        return Some(work(unsafe { &*cache }));
    }
    let cache = look_up(heap)?;
    Some(work(&cache))
}

#[cold]
fn look_up(heap: &'static Heap) -> Option<Arc<Cache>> {
    let found = TABLE.try_with(|table| {
        let mut table = table.try_borrow_mut().ok()?;
        let known = table.entries.iter().find(|(of, _)| ptr::eq(*of, heap));
        if let Some((_, cache)) = known {
            return Some(Arc::clone(cache));
        }
        // Pools that were closed since.
        LAST.set((0, ptr::null()));
        table.entries.retain(|(of, _)| !of.is_closed());
        let cache = heap.admit()?;
        table.entries.push((heap, Arc::clone(&cache)));
        Some(cache)
    });
    let cache = found.ok().flatten()?;
    LAST.set((heap.number(), Arc::as_ptr(&cache)));
    Some(cache)
}
