//! Pools across a fork.
//!
//! A child has only the thread that forked. A lock that another thread held at that moment would be held for ever, and
//! a cache whose owner was at work would be half changed. So around a fork every pool is brought to rest: its locks are
//! taken in their order, and every cache is claimed. The child finds what idle threads' caches hold where `trim` finds
//! it too.

use super::heap::{Heap, Rest};
use super::keeper;
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Every pool that has memory.
static HEAPS: Mutex<Vec<&'static Heap>> = Mutex::new(Vec::new());

/// What is held while a fork is under way, by the thread that forks: last taken, first let go.
struct Held {
    _keeper: MutexGuard<'static, keeper::State>,
    _heaps: Vec<Rest>,
    _list: MutexGuard<'static, Vec<&'static Heap>>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

fn list() -> MutexGuard<'static, Vec<&'static Heap>> {
    HEAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a pool looked after from now on.
pub(crate) fn register(heap: &'static Heap) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| crate::os::around_fork(prepare, resume));
    list().push(heap);
}

/// Every pool that has memory now.
pub(crate) fn all() -> Vec<&'static Heap> {
    list().clone()
}

/// The pool has no memory any more.
pub(crate) fn forget(heap: &Heap) {
    list().retain(|other| !std::ptr::eq(*other, heap));
}

extern "C" fn prepare() {
    let keeper = keeper::state();
    let list = list();
    let held = Held {
        _keeper: keeper,
        _heaps: list.iter().map(|heap| heap.rest()).collect(),
        _list: list,
    };
    // At the end of a thread its locals are gone; a fork there finds the pools as they are.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

extern "C" fn resume() {
    let held = HELD.try_with(RefCell::take);
    drop(held);
}
