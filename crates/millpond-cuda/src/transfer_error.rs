//! Errors of copies between the host and a device.

use super::error::CudaError;
use super::stream::mark::Unsettled;
use std::fmt;

/// The reason why a copy failed, and its ends.
pub struct TransferError<E> {
    error: CudaError,
    ends: Option<Box<E>>,
}

impl<E> TransferError<E> {
    pub(super) fn new(error: CudaError, ends: Option<E>) -> Self {
        Self {
            error,
            ends: ends.map(Box::new),
        }
    }

    /// Creates the error of a failed wait. If the device may still copy, the ends are forgotten.
    pub(super) fn unsettled(why: Unsettled, ends: Option<E>) -> Self {
        if why.over {
            return Self::new(why.error, ends);
        }
        std::mem::forget(ends);
        Self::new(why.error, None)
    }

    /// Returns the reason.
    #[must_use]
    pub fn error(&self) -> CudaError {
        self.error
    }

    /// Returns both ends. The content of the target is unspecified. Returns `None` if a poll has already returned the ends. Also returns
    /// `None` if the driver has begun the copy and cannot tell whether it still runs. The ends are then never used again.
    #[must_use]
    pub fn into_ends(self) -> Option<E> {
        self.ends.map(|ends| *ends)
    }
}

impl<E> fmt::Display for TransferError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<E> fmt::Debug for TransferError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<E> std::error::Error for TransferError<E> {}

impl<E> From<TransferError<E>> for CudaError {
    fn from(error: TransferError<E>) -> Self {
        error.error
    }
}
