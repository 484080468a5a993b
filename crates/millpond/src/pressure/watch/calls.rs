//! Whom to call, in which order, and which of them panicked.

use super::{Change, DeviceChange};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whom to call, of what.
#[derive(Clone)]
pub(crate) enum Call {
    Process(Arc<dyn Fn(&Change<'_>) + Send + Sync>),
    Device(Arc<dyn Fn(&DeviceChange<'_>) + Send + Sync>),
}

/// What has changed.
#[derive(Clone, Copy)]
pub(super) enum Changed<'a> {
    Process(&'a Change<'a>),
    Device(&'a DeviceChange<'a>),
}

impl Call {
    /// Calls, if it is about that.
    fn tell(&self, changed: Changed<'_>) {
        match (self, changed) {
            (Self::Process(call), Changed::Process(change)) => call(change),
            (Self::Device(call), Changed::Device(change)) => call(change),
            _ => {}
        }
    }
}

/// When a callback is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Turn {
    /// First: it gives memory back.
    Trim,
    /// After all trims.
    Tell,
}

/// Callbacks of one order, called outside the lock.
#[derive(Default)]
pub(super) struct Calls {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By turn, then by age.
    calls: Vec<(Turn, u64, Call)>,
    panics: u64,
    last_panic: Option<String>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock, so there is nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, turn: Turn, call: Call) -> u64 {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let at = state.calls.partition_point(|(t, i, _)| (*t, *i) < (turn, id));
        state.calls.insert(at, (turn, id, call));
        id
    }

    pub(super) fn remove(&self, id: u64) {
        let mut state = self.state();
        let at = state.calls.iter().position(|(_, i, _)| *i == id);
        let removed = at.map(|at| state.calls.remove(at));
        drop(state);
        // What the callback owns may do anything when it is dropped.
        drop(removed);
    }

    /// Calls everybody whom it is about.
    pub(super) fn tell(&self, changed: Changed<'_>) {
        let calls: Vec<Call> = self
            .state()
            .calls
            .iter()
            .map(|(_, _, call)| call.clone())
            .collect();
        for call in calls {
            // The callback may be the last of its kind: it is dropped in here too.
            let Err(panic) = catch_unwind(AssertUnwindSafe(move || call.tell(changed))) else {
                continue;
            };
            let message = message(&*panic);
            // A value somebody panicked with may panic again when it is dropped.
            if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(panic))) {
                std::mem::forget(again);
            }
            let mut state = self.state();
            state.panics += 1;
            state.last_panic = Some(message);
        }
    }

    pub(super) fn panics(&self) -> (u64, Option<String>) {
        let state = self.state();
        (state.panics, state.last_panic.clone())
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is no text")
        .chars()
        .take(200)
        .collect()
}
