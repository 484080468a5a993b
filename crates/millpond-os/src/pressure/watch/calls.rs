//! The callbacks, their order, and the count of their panics.

use super::{Change, DeviceChange};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A callback and the kind of change that it receives.
#[derive(Clone)]
pub enum Call {
    /// A function for changes of the host's pressure.
    Process(Arc<dyn Fn(&Change<'_>) + Send + Sync>),
    /// A function for changes of a device's pressure.
    Device(Arc<dyn Fn(&DeviceChange<'_>) + Send + Sync>),
}

/// A change.
#[derive(Clone, Copy)]
pub(super) enum Changed<'a> {
    Process(&'a Change<'a>),
    Device(&'a DeviceChange<'a>),
}

impl Call {
    /// Runs the callback if it receives this kind of change.
    fn tell(&self, changed: Changed<'_>) {
        match (self, changed) {
            (Self::Process(call), Changed::Process(change)) => call(change),
            (Self::Device(call), Changed::Device(change)) => call(change),
            _ => {}
        }
    }
}

/// The order of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Turn {
    /// First, to free memory.
    Trim,
    /// After all trims.
    Tell,
}

/// The callbacks in their order. They run outside the lock.
#[derive(Default)]
pub(super) struct Calls {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Sorted by turn, then by age.
    calls: Vec<(Turn, u64, Call)>,
    panics: u64,
    last_panic: Option<String>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so the state is consistent.
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
        // The code that drops a callback's values is foreign and must run outside the lock.
        drop(removed);
    }

    /// Runs all callbacks that receive this change.
    pub(super) fn tell(&self, changed: Changed<'_>) {
        let calls: Vec<Call> = self
            .state()
            .calls
            .iter()
            .map(|(_, _, call)| call.clone())
            .collect();
        for call in calls {
            // This may be the last reference to the callback, so it is dropped inside `catch_unwind` too.
            let Err(panic) = catch_unwind(AssertUnwindSafe(move || call.tell(changed))) else {
                continue;
            };
            let message = message(&*panic);
            // The payload of a panic may panic again when it is dropped.
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
    text.unwrap_or("a value that is not text")
        .chars()
        .take(200)
        .collect()
}
