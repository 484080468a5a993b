//! The pool that memory came from, as the memory can tell.

use super::Pool;
use super::heap::Heap;
use crate::stats::PoolStats;
use std::fmt;

/// The pool that memory came from: which one it is, and its account. Keeps no pool open.
#[derive(Clone, Copy)]
pub struct PoolRef(&'static Heap);

impl PoolRef {
    pub(crate) fn of(heap: &'static Heap) -> Self {
        Self(heap)
    }

    /// The pool's number, which no other pool of this process ever has.
    #[must_use]
    pub fn id(self) -> u64 {
        self.0.number()
    }

    /// The account.
    #[must_use]
    pub fn stats(self) -> PoolStats {
        self.0.stats()
    }

    /// Whether the last handle of the pool is gone. Its memory stays until the last block has come back.
    #[must_use]
    pub fn is_closed(self) -> bool {
        self.0.is_closed()
    }
}

impl PartialEq for PoolRef {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for PoolRef {}

impl PartialEq<Pool> for PoolRef {
    fn eq(&self, other: &Pool) -> bool {
        self.id() == other.id()
    }
}

impl fmt::Debug for PoolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}", self.id())
    }
}
