//! The words of a thread that every allocation reads.
//!
//! In a shared library, the address of a thread local usually takes a call of the dynamic linker: 15 instructions, each time. With the
//! feature `static-tls` the words are in the thread's static block instead, where two instructions find them. That works in programs,
//! in libraries that are loaded at the program's start, and in libraries that are loaded later as long as the block has room.

use std::cell::Cell;

/// The words of one thread. They need no initialisation and no destructor, so they can be used at any moment of a thread's life.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    /// The pool that serves the thread: see [`reentrancy`](crate::reentrancy).
    pub(crate) server: Cell<*const ()>,
    /// The pool that the thread used last, and the thread's cache of it.
    last_pool: Cell<*const ()>,
    last_cache: Cell<*const ()>,
}

impl Words {
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
        ".size millpond_thread_words,24",
        "millpond_thread_words:",
        ".zero 24",
        ".popsection",
    );

    const _: () = assert!(size_of::<Words>() == 24 && align_of::<Words>() == 8);

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
