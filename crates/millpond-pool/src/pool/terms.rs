//! The terms of requests that are charged to a budget of their own or may wait.

use super::heap::{Heap, RawBlock};
use millpond_account::budget::Budget;
use millpond_account::error::AllocError;
use std::fmt;
use std::time::Duration;

/// The terms of a tenant's requests: the budget that they are charged to, and the time that a request may wait.
#[derive(Clone)]
pub struct Terms {
    /// The pool.
    pub heap: &'static Heap,
    pub(crate) budget: Option<Budget>,
    /// The longest time that a request may wait.
    pub(crate) wait: Option<Duration>,
    /// Whether the pool's own budget has been charged already.
    pub(crate) charged: bool,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("budget", &self.budget)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl Terms {
    pub(crate) fn heap(&self) -> &'static Heap {
        self.heap
    }

    pub(crate) fn allocate(&self, bytes: usize, align: usize, zeroed: bool) -> Result<RawBlock, AllocError> {
        self.heap.allocate_for(
            (self.budget.as_ref(), self.charged),
            self.wait,
            (bytes, align, zeroed),
        )
    }
}
