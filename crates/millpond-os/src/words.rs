//! The words of a thread that every allocation reads, and those that are needed on the slow path.
//!
//! The C library may have to enlarge its table of thread locals when a thread local of a library is used. It calls `realloc` for that.
//! So the pool keeps the thread state of `malloc` here, and the metadata arena uses no other thread locals under its lock.
//!
//! In a shared library, each access to a thread local usually calls the dynamic linker, which takes 15 instructions. With the
//! feature `static-tls` the words are in the thread's static block instead, where two instructions find them. That works in programs,
//! in libraries that are loaded at the program's start, and in libraries that are loaded later as long as the block has room.

use std::cell::Cell;
use std::ptr::NonNull;

/// A function to call, if there is one.
pub(crate) type Slot = Cell<Option<fn()>>;

/// The words of one thread. They need no initialisation and no destructor, so they can be used at any moment of a thread's life.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    /// The pool that serves the thread: see [`reentrancy`](crate::reentrancy).
    pub(crate) server: Cell<*const ()>,
    /// The pool that the thread used last, and the thread's cache of it.
    last_pool: Cell<*const ()>,
    last_cache: Cell<*const ()>,
    /// The functions to call when the thread leaves its outermost guard.
    pub(crate) deferred: [Slot; 2],
    /// The blocks that wait to be freed, and whether an outer call is already freeing them, by [list](Waiting).
    waiting: [Cell<*mut ()>; 2],
    giving: [Cell<bool>; 2],
    /// The flags and the number of the thread: see [`thread`](crate::thread).
    pub(crate) flags: Cell<u8>,
    pub(crate) number: Cell<u32>,
}

/// The lists of blocks that were freed inside the slow path of a pool, and that wait for its end.
#[derive(Clone, Copy, Debug)]
pub enum Waiting {
    /// Blocks of Rust's global allocator.
    Global,
    /// Blocks of `malloc`.
    Malloc,
}

impl Words {
    /// Sets the pool that serves this thread from now on.
    ///
    /// # Safety
    /// Only the global allocator calls this, because it uses the pointer. The pool is never freed, and the thread is not inside.
    pub unsafe fn set_server(&self, pool: NonNull<()>) {
        self.server.set(pool.as_ptr());
    }

    /// Returns the first block of a list as it was [set](Self::set_waiting), or null.
    pub fn waiting(&self, list: Waiting) -> *mut () {
        self.waiting[list as usize].get()
    }

    /// Sets the first block of a list.
    ///
    /// # Safety
    /// Only the crate of the pools calls this, because it uses the pointer.
    pub unsafe fn set_waiting(&self, list: Waiting, first: *mut ()) {
        self.waiting[list as usize].set(first);
    }

    /// Returns whether an outer call is already freeing the blocks of a list.
    pub fn giving(&self, list: Waiting) -> bool {
        self.giving[list as usize].get()
    }

    /// Records whether a call is freeing the blocks of a list.
    pub fn set_giving(&self, list: Waiting, now: bool) {
        self.giving[list as usize].set(now);
    }

    /// Returns the pool that the thread used last and its cache, as they were [set](Self::set_last), or null pointers.
    #[inline(always)]
    pub fn last(&self) -> (*const (), *const ()) {
        (self.last_pool.get(), self.last_cache.get())
    }

    /// Sets the pool that the thread used last and its cache.
    ///
    /// # Safety
    /// Only the crate of the pools calls this, because it uses the pointers.
    #[inline]
    pub unsafe fn set_last(&self, pool: *const (), cache: *const ()) {
        self.last_pool.set(pool);
        self.last_cache.set(cache);
    }
}

#[cfg(not(all(
    feature = "static-tls",
    target_arch = "x86_64",
    target_os = "linux",
    not(miri),
    not(loom)
)))]
mod place {
    use super::{Cell, Words};
    use std::ptr;

    thread_local! {
        static WORDS: Words = const {
            Words {
                server: Cell::new(ptr::null()),
                last_pool: Cell::new(ptr::null()),
                last_cache: Cell::new(ptr::null()),
                deferred: [Cell::new(None), Cell::new(None)],
                waiting: [Cell::new(ptr::null_mut()), Cell::new(ptr::null_mut())],
                giving: [Cell::new(false), Cell::new(false)],
                flags: Cell::new(0),
                number: Cell::new(0),
            }
        };
    }

    #[inline(always)]
    pub(super) fn with<R>(work: impl FnOnce(&Words) -> R) -> R {
        WORDS.with(work)
    }
}

#[cfg(all(
    feature = "static-tls",
    target_arch = "x86_64",
    target_os = "linux",
    not(miri),
    not(loom)
))]
mod place {
    use super::Words;
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.millpond_thread_words,\"awT\",@nobits",
        ".balign 8",
        ".globl millpond_thread_words",
        ".hidden millpond_thread_words",
        ".type millpond_thread_words,@object",
        ".size millpond_thread_words,64",
        "millpond_thread_words:",
        ".zero 64",
        ".popsection",
    );

    const _: () = assert!(size_of::<Words>() == 64 && align_of::<Words>() == 8);

    #[inline(always)]
    pub(super) fn with<R>(work: impl FnOnce(&Words) -> R) -> R {
        let words: *const Words;
        // SAFETY: the first instruction reads the offset of the symbol from the thread's pointer, which the linker has stored; the
        // second adds that pointer, which the ABI keeps at `fs:0`. Nothing is written.
        unsafe {
            asm!(
                "mov {words}, qword ptr [rip + millpond_thread_words@GOTTPOFF]",
                "add {words}, qword ptr fs:[0]",
                words = out(reg) words,
                options(pure, nomem, nostack),
            );
        }
        // SAFETY: this is the thread's copy of the symbol, which has the size and the alignment of the type and is as old as the
        // thread. It was zero at first, which is a value of the type. Other threads do not know its address.
        work(unsafe { &*words })
    }
}

/// Runs `work` on the words of this thread.
#[inline(always)]
pub fn with<R>(work: impl FnOnce(&Words) -> R) -> R {
    place::with(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn each_thread_has_its_own_words() {
        let mark = ptr::without_provenance(64);
        with(|words| words.last_cache.set(mark));
        let of_another = std::thread::spawn(|| {
            with(|words| {
                let before = words.last_cache.get().addr();
                words.last_cache.set(ptr::without_provenance(128));
                (before, ptr::from_ref(words).addr())
            })
        });
        let (before, address) = of_another.join().expect("no panic");
        assert_eq!(before, 0);
        with(|words| {
            assert_ne!(ptr::from_ref(words).addr(), address);
            assert_eq!(words.last_cache.replace(ptr::null()), mark);
        });
    }
}
