//! What a thread knows about itself while memory is counted: its number, and whether it is inside our own code.
//!
//! Both are plain cells without a destructor and without a first use, so they can be read by an allocator at any
//! moment of a thread's life.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// A subscriber is being called: events caused now reach none, but blocks are still entered in the account.
pub(crate) const DELIVERING: u8 = 1;
/// The account itself is at work: what it allocates and frees is neither told nor entered.
pub(crate) const COUNTING: u8 = 2;

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static INSIDE: Cell<u8> = const { Cell::new(0) };
}

/// This thread's number: 1 for the first thread that asked, and never used again. A load, but for the first time.
#[inline]
#[must_use]
pub fn thread_number() -> u32 {
    let number = NUMBER.get();
    if number == 0 { first_number() } else { number }
}

#[cold]
fn first_number() -> u32 {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// What this thread is inside of, as bits.
#[inline]
pub(crate) fn inside() -> u8 {
    INSIDE.get()
}

/// Goes inside until the guard is dropped, in a panic too.
#[inline]
pub(crate) fn enter(bit: u8) -> Inside {
    let before = INSIDE.get();
    INSIDE.set(before | bit);
    Inside {
        before,
        here: PhantomData,
    }
}

/// See [`enter`]. Stays on its thread.
pub(crate) struct Inside {
    before: u8,
    here: PhantomData<*const ()>,
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}
