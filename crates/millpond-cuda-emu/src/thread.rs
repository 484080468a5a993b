//! The state of each of the client's threads: its number, its stack of current contexts, and whether it runs a callback.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static CALLBACK: Cell<bool> = const { Cell::new(false) };
    /// The last list that a call has returned to the client.
    static KEPT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
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

/// Returns the low half of the C library's identifier of this thread.
pub(crate) fn c_name() -> u32 {
    unsafe extern "C" {
        safe fn pthread_self() -> usize;
    }
    pthread_self() as u32
}

/// Returns the number of this thread, from 1.
pub(crate) fn number() -> u64 {
    if NUMBER.get() == 0 {
        NUMBER.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}

/// Keeps a list for the client until this thread's next list, and returns its address. The address of an empty list is 0.
pub(crate) fn keep(list: Vec<u64>) -> usize {
    let put = |kept: &RefCell<Vec<u64>>| {
        kept.replace(list);
        let kept = kept.borrow();
        if kept.is_empty() { 0 } else { kept.as_ptr().addr() }
    };
    KEPT.try_with(put).unwrap_or(0)
}

/// Changes the thread's stack of contexts. The stack of a thread that has ended is empty: a client may still make calls in functions
/// that run at the end of the process.
fn with_stack<T: Default>(run: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CURRENT
        .try_with(|stack| run(&mut stack.borrow_mut()))
        .unwrap_or_default()
}

/// Returns the context on top of the thread's stack.
pub(crate) fn current() -> Option<u64> {
    with_stack(|stack| stack.last().copied()).filter(|context| *context != 0)
}

pub(crate) fn set_current(context: u64) {
    with_stack(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

pub(crate) fn push_current(context: u64) {
    with_stack(|stack| stack.push(context));
}

pub(crate) fn pop_current() -> Option<u64> {
    with_stack(Vec::pop)
}
