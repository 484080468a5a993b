//! The fast path: finds this thread's cache of a pool, and allocates from it and frees to it.

use super::biased_lock::Despite;
use super::cache::{Cache, Free, Popped};
use super::classes::{KEPT, LEAST, PAGE, SMALL, class_and_bytes};
use super::heap::{Heap, RawBlock};
use super::request::AllocRequest;
use super::watch;
use super::zeroed::clear;
use millpond_account::error::AllocError;
use millpond_os::reentrancy::inside;
use millpond_os::words::{self, Words};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

impl RawBlock {
    /// No block: the thread may not enter its cache on the fast path.
    pub(crate) const REFUSED: Self = Self { address: 0, bytes: 0 };
    /// No block: the thread's cache has none, and neither has the shelf, if the block is small.
    pub(super) const EMPTY: Self = Self {
        address: 0,
        bytes: usize::MAX,
    };

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.address != 0
    }
}

impl Heap {
    /// Allocates a block. If `zeroed` is true, its first `requested` bytes are zero.
    #[inline(always)]
    pub(crate) fn allocate(
        &'static self,
        requested: usize,
        align: usize,
        zeroed: bool,
    ) -> Result<RawBlock, AllocError> {
        let taken = if align > LEAST || requested == 0 {
            RawBlock::REFUSED
        } else if requested <= SMALL {
            with_last(self, RawBlock::REFUSED, |cache| self.pop_small(cache, requested))
        } else if requested <= KEPT {
            self.pop_large(requested)
        } else {
            RawBlock::REFUSED
        };
        if !taken.is_some() {
            return self.allocate_beyond(taken, requested, align, zeroed);
        }
        if zeroed {
            // SAFETY: the block was just allocated, with at least this many bytes.
            unsafe { clear(taken.address, requested) };
        }
        Ok(taken)
    }

    /// Allocates a block after the fast path has found none. `taken` is its result.
    #[inline(never)]
    fn allocate_beyond(
        &'static self,
        mut taken: RawBlock,
        requested: usize,
        align: usize,
        zeroed: bool,
    ) -> Result<RawBlock, AllocError> {
        if taken == RawBlock::REFUSED {
            taken = self.allocate_watched(requested, align, zeroed);
            if taken.is_some() {
                return Ok(taken);
            }
        }
        self.allocate_slowly(AllocRequest {
            zeroed,
            looks_in_cache: taken == RawBlock::REFUSED,
            ..AllocRequest::new(requested, align)
        })
    }

    /// Returns a small block, or none. `requested` is not 0. This function and the similar ones are not inlined, so that callers in
    /// every crate use the same few instructions. They return two words, which fit in registers.
    ///
    /// The functions for small blocks do not look up the cache themselves. In a library, the address of a thread local may need a
    /// function call, and a function that calls others has to save registers. Their callers are inlined, and have saved the
    /// registers anyway. For larger blocks this would need more instructions, because [`free_as`](Self::free_as) frees them in a
    /// separate function.
    #[inline(never)]
    fn pop_small(&'static self, cache: &Cache, requested: usize) -> RawBlock {
        let (class, bytes) = class_and_bytes(requested);
        self.pop_class_despite::<false>(cache, class, bytes, requested)
    }

    /// Returns a small block of a class, or none. If `WATCHED` is true, observers alone do not prevent this, because the caller reports
    /// the block to them afterwards. `WATCHED` is a constant, so that the fast path contains no check of it.
    #[inline(always)]
    pub(super) fn pop_class_despite<const WATCHED: bool>(
        &'static self,
        cache: &Cache,
        class: usize,
        bytes: usize,
        requested: usize,
    ) -> RawBlock {
        let despite = Despite::told(WATCHED);
        match cache.pop(requested, bytes, despite, |stacks| stacks.pop(class)) {
            Popped::Block { address, tell: false } => RawBlock { address, bytes },
            Popped::Block { address, tell: true } => self.telling(cache, RawBlock { address, bytes }),
            Popped::Empty(cache) => self.restock(cache, class, requested),
            Popped::Refused => RawBlock::REFUSED,
        }
    }

    #[inline(never)]
    fn pop_large(&'static self, requested: usize) -> RawBlock {
        with_last(self, RawBlock::REFUSED, |cache| {
            self.pop_large_despite::<false>(cache, requested)
        })
    }

    #[inline(always)]
    pub(super) fn pop_large_despite<const WATCHED: bool>(
        &'static self,
        cache: &Cache,
        requested: usize,
    ) -> RawBlock {
        let despite = Despite::told(WATCHED);
        let bytes = requested.next_multiple_of(PAGE);
        match cache.pop(requested, bytes, despite, |stacks| stacks.pop_large(bytes)) {
            Popped::Block { address, tell: false } => RawBlock { address, bytes },
            Popped::Block { address, tell: true } => self.telling(cache, RawBlock { address, bytes }),
            Popped::Empty(_) => RawBlock::EMPTY,
            Popped::Refused => RawBlock::REFUSED,
        }
    }

    /// Frees a block. `requested` and `align` are the size and the alignment of the request. `align` is 0 if the caller does not
    /// know the alignment.
    #[inline]
    pub(crate) fn free(&'static self, taken: RawBlock, requested: usize, align: usize) {
        let RawBlock { address, bytes } = taken;
        let kept = if bytes <= SMALL {
            with_last(self, false, |cache| {
                self.push_small(cache, address, bytes, requested)
            })
        } else {
            self.push_large(address, bytes, requested)
        };
        if !kept {
            self.free_slowly(taken, requested, align);
        }
    }

    /// Frees a block of a caller that passes the size and the alignment, which may be wrong.
    #[inline]
    pub(crate) fn free_as(&'static self, address: usize, requested: usize, align: usize) {
        let kept = align <= LEAST
            && requested <= SMALL
            && with_last(self, false, |cache| {
                self.push_small(cache, address, requested.max(1), requested)
            });
        if !kept {
            self.free_as_slowly(address, requested, align);
        }
    }

    #[inline(never)]
    fn free_as_slowly(&'static self, address: usize, requested: usize, align: usize) {
        self.free(RawBlock::of(address, requested, align), requested, align);
    }

    /// Puts a small block of the class of `bytes` into this thread's cache. Returns false if the cache has no room or if the free needs
    /// the slow path.
    #[inline(never)]
    fn push_small(&'static self, cache: &Cache, address: usize, bytes: usize, requested: usize) -> bool {
        let (class, bytes) = class_and_bytes(bytes);
        self.push_class_despite::<false>(cache, class, RawBlock { address, bytes }, requested)
    }

    #[inline(always)]
    pub(super) fn push_class_despite<const WATCHED: bool>(
        &'static self,
        cache: &Cache,
        class: usize,
        taken: RawBlock,
        requested: usize,
    ) -> bool {
        let RawBlock { address, bytes } = taken;
        let passes = || self.is_unsampled(address);
        let despite = Despite::told(WATCHED);
        match cache.push(requested, bytes, despite, passes, |stacks| {
            stacks.push(class, address)
        }) {
            None => false,
            Some(false) => true,
            Some(true) => self.telling(cache, true),
        }
    }

    #[inline(never)]
    fn push_large(&'static self, address: usize, bytes: usize, requested: usize) -> bool {
        with_last(self, false, |cache| {
            self.push_large_despite::<false>(cache, address, bytes, requested)
        })
    }

    #[inline(always)]
    pub(super) fn push_large_despite<const WATCHED: bool>(
        &'static self,
        cache: &Cache,
        address: usize,
        bytes: usize,
        requested: usize,
    ) -> bool {
        if bytes > KEPT {
            return false;
        }
        let passes = || self.is_unsampled(address);
        let despite = Despite::told(WATCHED);
        match cache.push(requested, bytes, despite, passes, |stacks| {
            stacks.push_large(Free { address, bytes })
        }) {
            None => false,
            Some(false) => true,
            Some(true) => self.telling(cache, true),
        }
    }

    /// Returns whether a block is certainly not in the ledger, if the ledger is sampled.
    #[inline(always)]
    pub(super) fn is_unsampled(&self, address: usize) -> bool {
        self.filter.get().is_some_and(|filter| !filter.may_hold(address))
    }

    /// Reports the counters and returns `answer`. The fast path ends with this call, so it saves no registers across it.
    #[cold]
    #[inline(never)]
    fn telling<R>(&self, cache: &Cache, answer: R) -> R {
        cache.tally.tell(&self.totals, self.alone());
        answer
    }
}

impl Heap {
    /// Makes this thread's cache, and registers the destructors of the thread's locals.
    pub(crate) fn meet_thread(&'static self) {
        let _ = with(self, |_| ());
    }
}

/// The caches of one thread, by pool.
struct Table {
    entries: Vec<(&'static Heap, Arc<Cache>)>,
}

impl Drop for Table {
    fn drop(&mut self) {
        let _inside = inside();
        set_last(None);
        for (heap, cache) in self.entries.drain(..) {
            // A panic in the destructor of a thread local would end the process. A panic in the source of a pool must only
            // break that pool.
            let _ = catch_unwind(AssertUnwindSafe(|| heap.retire(&cache)));
        }
    }
}

thread_local! {
    static TABLE: RefCell<Table> = const { RefCell::new(Table { entries: Vec::new() }) };
}

/// Sets the cache that this thread used last: its pool, whose address no other pool ever has, and the address of the cache. The table
/// holds the cache for as long as this is set: code that removes an entry from the table resets it first.
fn set_last(entry: Option<(&'static Heap, *const Cache)>) {
    let (heap, cache) = match entry {
        Some((heap, cache)) => (ptr::from_ref(heap).cast(), cache.cast()),
        None => (ptr::null(), ptr::null()),
    };
    // SAFETY: only this function calls it, and its callers fulfil the condition above.
    words::with(|words| unsafe { words.set_last(heap, cache) });
}

/// Runs `work` on this thread's cache if it is the one used last. Otherwise returns `otherwise`.
#[inline(always)]
pub(crate) fn with_last<R>(heap: &'static Heap, otherwise: R, work: impl FnOnce(&Cache) -> R) -> R {
    let (of, cache) = words::with(Words::last);
    if !ptr::eq(of, ptr::from_ref(heap).cast()) {
        return otherwise;
    }
    // SAFETY: the table of this thread holds the cache, because the pool is not null. It is not removed from the table
    // while `work` runs, because `work` is code of this crate and does not reach the table.
    work(unsafe { &*cache.cast::<Cache>() })
}

/// Runs `work` on this thread's cache, which is created on first use. Returns `None` at the end of the thread.
pub(crate) fn with<R>(heap: &'static Heap, work: impl FnOnce(&Cache) -> R) -> Option<R> {
    let (of, mut cache) = words::with(Words::last);
    if !ptr::eq(of, ptr::from_ref(heap).cast()) {
        cache = look_up(heap).cast();
    }
    // SAFETY: as above, or it was just looked up, or it is null.
    unsafe { cache.cast::<Cache>().as_ref() }.map(work)
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
    if heap.is_mapped {
        watch::prepare_thread();
    }
    let found = TABLE.try_with(|table| {
        let mut table = table.try_borrow_mut().ok()?;
        let known = table.entries.iter().find(|(of, _)| ptr::eq(*of, heap));
        if let Some((_, cache)) = known {
            return Some(Arc::as_ptr(cache));
        }
        // This removes the pools that were closed meanwhile.
        set_last(None);
        table.entries.retain(|(of, _)| !of.is_closed());
        let cache = heap.admit()?;
        let found = Arc::as_ptr(&cache);
        table.entries.push((heap, cache));
        Some(found)
    });
    let Some(cache) = found.ok().flatten() else {
        return ptr::null();
    };
    set_last(Some((heap, cache)));
    cache
}
