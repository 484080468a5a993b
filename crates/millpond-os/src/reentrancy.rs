//! The guard around the code of pools whose allocations no pool may serve.
//!
//! A pool's tables are ordinary vectors and maps. In a program whose global allocator is a pool, their memory would come from that pool. At
//! the moment when the pool needs it, the pool holds its locks and has changed its tables only in part. So each slow path begins with
//! [`inside`]. The thread is *inside* until the guard is dropped: the global allocator serves it from the [metadata arena](crate::metadata)
//! and calls no pool.
//!
//! The mark of the guard and the address of the pool that serves the thread share one [word](crate::words): the server. It is null
//! before the thread has looked for a pool, and `INSIDE` while the thread is inside. Every other value is the address of a pool that
//! is never freed, from [`Words::set_server`].

use crate::words::{self, Slot, Words};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The value of the server while the thread is inside.
const INSIDE: *const () = ptr::without_provenance(1);

/// Work that a thread does when it leaves its outermost guard, in this order.
#[derive(Clone, Copy)]
pub enum Deferred {
    /// Returns blocks of the program's pool that were freed inside.
    #[cfg(target_os = "linux")]
    Frees,
    /// Calls observers and wakers.
    Calls,
}

/// Returns the pool that serves this thread, or `None` if the thread is inside or has not looked for a pool.
#[cfg(target_os = "linux")]
#[inline]
pub fn server() -> Option<NonNull<()>> {
    words::with(Words::server)
}

#[cfg(target_os = "linux")]
impl Words {
    /// Returns the pool that serves this thread, or `None` if the thread is inside or has not looked for a pool.
    #[inline]
    pub fn server(&self) -> Option<NonNull<()>> {
        let server = self.server.get();
        if server.addr() <= INSIDE.addr() {
            return None;
        }
        NonNull::new(server.cast_mut())
    }
}

/// Returns whether this thread is inside.
#[inline]
pub fn is_inside() -> bool {
    words::with(|words| words.server.get().addr() == INSIDE.addr())
}

/// Makes this thread call a function when it leaves its outermost guard. May only be called inside.
pub fn defer(work: Deferred, call: fn()) {
    words::with(|words| words.deferred[work as usize].set(Some(call)));
}

/// A guard that keeps its thread [inside](self) until it is dropped.
#[derive(Debug)]
pub struct Inside {
    before: *const (),
    /// Belongs to one thread.
    _thread: PhantomData<*const ()>,
}

/// Begins a slow path. Guards may be nested. The guard must be made before any lock of a pool is taken, so that it ends after the lock is
/// released.
#[inline]
pub fn inside() -> Inside {
    Inside {
        before: words::with(|words| words.server.replace(INSIDE)),
        _thread: PhantomData,
    }
}

/// Keeps the thread inside. Its allocations are neither recorded nor reported to observers.
pub fn quiet() -> impl Sized {
    (inside(), crate::thread::enter(crate::thread::COUNTING))
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        words::with(|words| {
            words.server.set(self.before);
            if self.before.addr() != INSIDE.addr() && words.deferred.iter().any(|work| work.get().is_some()) {
                call_all(&words.deferred);
            }
        });
    }
}

#[cold]
fn call_all(deferred: &[Slot]) {
    for call in deferred.iter().filter_map(Cell::take) {
        call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_nest() {
        assert!(!is_inside());
        let one = inside();
        drop(inside());
        assert!(is_inside());
        drop(one);
        assert!(!is_inside());
    }

    #[test]
    fn deferred_work_is_done_once_when_the_outermost_guard_ends() {
        thread_local!(static DONE: Cell<u32> = const { Cell::new(0) });
        let one = inside();
        let two = inside();
        defer(Deferred::Calls, || DONE.set(DONE.get() + 1));
        drop(two);
        assert_eq!(DONE.get(), 0);
        drop(one);
        assert_eq!(DONE.get(), 1);
        drop(inside());
        assert_eq!(DONE.get(), 1);
    }
}
