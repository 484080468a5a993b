//! The state of each of the client's threads: its number, its stack of current contexts, and whether it runs a callback.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static CALLBACK: Cell<bool> = const { Cell::new(false) };
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Runs a client's callback. The callback may not call CUDA.
pub(crate) fn in_callback<T>(run: impl FnOnce() -> T) -> T {
    let before = CALLBACK.replace(true);
    let result = run();
    CALLBACK.set(before);
    result
}

/// Returns whether this thread runs a client's callback.
pub(crate) fn is_in_callback() -> bool {
    CALLBACK.get()
}

/// Returns the number of this thread, from 1.
pub(crate) fn number() -> u64 {
    if NUMBER.get() == 0 {
        NUMBER.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}

/// Returns the context on top of the thread's stack.
pub(crate) fn current() -> Option<u64> {
    CURRENT
        .with_borrow(|stack| stack.last().copied())
        .filter(|context| *context != 0)
}

pub(crate) fn set_current(context: u64) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

pub(crate) fn push_current(context: u64) {
    CURRENT.with_borrow_mut(|stack| stack.push(context));
}

pub(crate) fn pop_current() -> Option<u64> {
    CURRENT.with_borrow_mut(Vec::pop)
}
