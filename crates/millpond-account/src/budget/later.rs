//! Runs callbacks of budgets outside every lock, even if a pool reaches the budget while it holds its own lock.
//!
//! A pool charges and refunds its source's bytes under its lock. Callbacks are therefore queued while a thread is
//! inside a pool, and run when it has left.

use super::SoftCrossing;
use super::node::Node;
use millpond_os::reentrancy::{Deferred, defer, is_inside};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

/// A call to make: the callback of a soft limit, or a waker.
pub(super) enum Call {
    /// The soft limit of this budget with this index.
    Soft(Arc<Node>, usize, SoftCrossing),
    Wake(Waker),
}

impl Call {
    /// Makes the call. The callback is foreign code and may panic. This may run in a drop, which must not panic. A
    /// caught panic is not reported again because the panic hook has reported it.
    fn make(self) {
        let _ = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Soft(node, place, crossing) => {
                if let Some(soft) = node.soft.get(place) {
                    soft.call(&crossing);
                }
            }
            Self::Wake(waker) => waker.wake(),
        }));
    }
}

thread_local! {
    /// This has no destructor because memory is freed even at the very end of a thread.
    static CALLS: Cell<Option<ManuallyDrop<Vec<Call>>>> = const { Cell::new(None) };
}

/// Runs a callback now, or when this thread has left the pool that it is in.
pub(super) fn call(call: Call) {
    if !is_inside() {
        return call.make();
    }
    let mut calls = CALLS.take().map_or_else(Vec::new, ManuallyDrop::into_inner);
    let room = calls.try_reserve(1).is_ok();
    if room {
        calls.push(call);
        CALLS.set(Some(ManuallyDrop::new(calls)));
        defer(Deferred::Calls, make_calls);
        return;
    }
    if !calls.is_empty() {
        CALLS.set(Some(ManuallyDrop::new(calls)));
    }
    // The queue has no space, so the callback runs early instead of never.
    call.make();
}

/// Runs all queued callbacks of this thread. The caller must hold no lock.
pub(super) fn make_calls() {
    while let Some(calls) = CALLS.take() {
        ManuallyDrop::into_inner(calls).into_iter().for_each(Call::make);
    }
}
