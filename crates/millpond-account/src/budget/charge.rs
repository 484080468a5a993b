//! Charges: bytes that count against a budget while they are held.

use super::node::Node;
use super::way;
use super::{Budget, Measure};
use std::fmt;
use std::sync::Arc;

/// Bytes charged to a budget and to all budgets above it with the same measure. Dropping the charge refunds them.
///
/// A charge has two words, so it fits in a block's header. If that is too large, [`forget`](Self::forget) leaves the
/// bytes charged, and [`Budget::restore`] makes a charge from them again.
#[must_use = "a charge that is dropped is refunded"]
pub struct Charge {
    from: Arc<Node>,
    bytes: u64,
}

impl Charge {
    /// Makes a charge for room that was taken in all budgets on its path, and counts it. The charge exists before any
    /// soft limit's callback runs, so it is refunded in every case.
    pub(super) fn of(from: &Arc<Node>, bytes: u64) -> Self {
        let charge = Self::counted(from, bytes);
        way::count(from, bytes);
        charge
    }

    /// Makes a charge for bytes that are already counted.
    pub(super) fn counted(from: &Arc<Node>, bytes: u64) -> Self {
        Self {
            from: Arc::clone(from),
            bytes,
        }
    }

    /// Returns the charged bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the budget to which the charge was made.
    #[must_use]
    pub fn budget(&self) -> Budget {
        Budget::of(&self.from)
    }

    /// Returns the measure of the budget.
    #[must_use]
    pub fn measure(&self) -> Measure {
        self.from.measure
    }

    /// Splits `bytes` off this charge. Returns `None` if it has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self::counted(&self.from, bytes))
    }

    /// Merges another charge of the same budget into this one.
    ///
    /// # Errors
    /// Returns the other charge if it belongs to another budget. Both remain unchanged.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.from, &other.from) {
            return Err(other);
        }
        // This does not overflow, because both charges are within one limit.
        self.bytes += std::mem::take(&mut other.bytes);
        Ok(())
    }

    /// Consumes the charge without a refund and returns its bytes, which stay charged.
    pub fn forget(mut self) -> u64 {
        let bytes = std::mem::take(&mut self.bytes);
        self.from.forget(bytes);
        bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            way::refund(&self.from, self.bytes);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("budget", &format_args!("{}", self.budget().path()))
            .field("measure", &self.from.measure)
            .field("bytes", &self.bytes)
            .finish()
    }
}
