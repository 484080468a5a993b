//! Whoever is told of a budget is called outside every lock: also where a pool is at it, under its own.
//!
//! A pool charges what it takes from its source, and gives back, under its lock. So while a thread is in a pool, those to be
//! called wait until it has left.

use super::SoftCrossing;
use super::node::Node;
use crate::reentrancy::{Deferred, defer, is_inside};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

/// Somebody to be called.
pub(super) enum Call {
    /// A soft limit of this budget, by its place.
    Soft(Arc<Node>, usize, SoftCrossing),
    Wake(Waker),
}

impl Call {
    /// Both are a stranger's code, and this may run in a drop, which must not panic; the panic hook has told of it.
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
    /// Without a destructor: memory is freed at the very end of threads too.
    static CALLS: Cell<Option<ManuallyDrop<Vec<Call>>>> = const { Cell::new(None) };
}

/// Calls somebody, now or when this thread has left the pool that it is in.
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
    // Too early is better than never.
    call.make();
}

/// Calls all that wait for this thread. Under no lock.
pub(super) fn make_calls() {
    while let Some(calls) = CALLS.take() {
        ManuallyDrop::into_inner(calls).into_iter().for_each(Call::make);
    }
}
