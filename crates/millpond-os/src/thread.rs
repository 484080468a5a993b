//! A thread's number, and flags for code of this library that it is running.
//!
//! Both are in the thread's [words], so an allocator can read them at any moment of a thread's life.

use crate::words;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// A subscriber is being called. Events in it are not delivered, but blocks are still recorded in the account.
pub const DELIVERING: u8 = 1;
/// The account itself is active. Its allocations and frees are neither delivered nor recorded.
pub const COUNTING: u8 = 2;

/// Returns this thread's number. The first thread that calls this has the number 1, and numbers are never reused. After
/// the first call this is one load.
#[inline]
#[must_use]
pub fn thread_number() -> u32 {
    let number = words::with(|words| words.number.get());
    if number == 0 { first_number() } else { number }
}

#[cold]
fn first_number() -> u32 {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    words::with(|words| words.number.set(number));
    number
}

/// Returns the flags of this thread.
#[inline]
pub fn inside() -> u8 {
    words::with(|words| words.flags.get())
}

/// Sets a flag until the guard is dropped, also by a panic.
#[inline]
pub fn enter(bit: u8) -> Inside {
    let before = inside();
    words::with(|words| words.flags.set(before | bit));
    Inside {
        before,
        here: PhantomData,
    }
}

/// The guard of [`enter`]. It cannot be sent to another thread.
pub struct Inside {
    before: u8,
    here: PhantomData<*const ()>,
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        words::with(|words| words.flags.set(self.before));
    }
}
