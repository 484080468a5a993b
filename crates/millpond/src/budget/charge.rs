//! Bytes that are charged as long as they are held.

use super::node::Node;
use super::way;
use super::{Budget, Measure};
use std::fmt;
use std::sync::Arc;

/// Bytes charged to a budget and all above it of its measure; refunded when dropped.
///
/// Two words, so that it can lie in a block's header. Where even that is too much, [`forget`](Self::forget) leaves
/// the bytes charged, and [`Budget::restore`] makes a charge of them again.
#[must_use = "a charge that is dropped is refunded"]
pub struct Charge {
    from: Arc<Node>,
    bytes: u64,
}

impl Charge {
    /// For room that was taken along the way; counts it. The charge exists before anyone is told, so that it is
    /// refunded whatever they do.
    pub(super) fn of(from: &Arc<Node>, bytes: u64) -> Self {
        let charge = Self::counted(from, bytes);
        way::count(from, bytes);
        charge
    }

    /// For bytes that are counted already.
    pub(super) fn counted(from: &Arc<Node>, bytes: u64) -> Self {
        Self {
            from: Arc::clone(from),
            bytes,
        }
    }

    /// Bytes charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The budget that was charged first.
    #[must_use]
    pub fn budget(&self) -> Budget {
        Budget::of(&self.from)
    }

    /// Which bytes it counts.
    #[must_use]
    pub fn measure(&self) -> Measure {
        self.from.measure
    }

    /// Parts so many bytes from this charge; nothing if it has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self::counted(&self.from, bytes))
    }

    /// Takes another charge of the same budget into this one.
    ///
    /// # Errors
    /// With the other charge, if it is of another budget; both stay as they were.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.from, &other.from) {
            return Err(other);
        }
        // No overflow: both are within one limit.
        self.bytes += std::mem::take(&mut other.bytes);
        Ok(())
    }

    /// Leaves the bytes charged without a charge, and answers how many they are.
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
