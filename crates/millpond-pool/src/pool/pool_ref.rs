//! A reference to a pool that does not keep it open.

use super::Pool;
use super::heap::Heap;
use millpond_account::stats::PoolStats;
use std::fmt;

/// A reference to the pool that memory came from, with its number and its counters. It does not keep the pool open.
#[derive(Clone, Copy)]
pub struct PoolRef(&'static Heap);

impl PoolRef {
    #[doc(hidden)]
    pub fn of(heap: &'static Heap) -> Self {
        Self(heap)
    }

    /// Returns the pool's number. No other pool of this process ever has the same number.
    #[must_use]
    pub fn id(self) -> u64 {
        self.0.number()
    }

    /// Returns the pool's counters.
    #[must_use]
    pub fn stats(self) -> PoolStats {
        self.0.stats()
    }

    /// Returns whether the last handle of the pool was dropped. Its memory stays until the last block is freed.
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
