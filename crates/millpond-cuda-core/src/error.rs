//! Errors of the exchange.

use cuda_core::DriverError;
use millpond::AllocError;
use millpond::cuda::CudaError;
use std::error::Error as StdError;
use std::fmt;
use thiserror::Error;

/// The reason why memory could not be allocated for or exchanged with cuda-core.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudaCoreError {
    /// The pool has no memory for the request.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// millpond refused the request, or the driver refused one of its calls.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// cuda-core refused the request, or the driver refused one of its calls.
    #[error("cuda-core failed: {0}")]
    Driver(#[from] DriverError),
    /// Another view of the elements exists, so cuda-core could still use them.
    #[error("another view of the buffer's memory exists: drop all clones of its storage and try again")]
    Shared,
    /// The stream could be destroyed while cuda-core still has a handle of it.
    #[error(
        "the stream was made by `CudaStream::from_raw`, so it may end before its handles: give its owner's handle to cuda-core"
    )]
    NotKept,
    /// Work on another stream still uses the elements.
    #[error(
        "work on another stream of cuda-core still uses the buffer: synchronise that stream and try again"
    )]
    Busy,
}

impl CudaCoreError {
    /// Converts the error of an access that cuda-core was asked to register.
    pub(crate) fn of_access(error: DriverError) -> Self {
        match error.0 {
            cuda_core::sys::cudaError_enum_CUDA_ERROR_NOT_READY => Self::Busy,
            _ => Self::Driver(error),
        }
    }
}

/// The error of a refused exchange, and the buffer or loan that was not exchanged.
///
/// ```
/// use cuda_core::{Context, DeviceBuffer};
/// use millpond_cuda_core::{CudaCoreError, adopt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let stream = Context::new(0)?.new_stream()?;
/// let buffer = DeviceBuffer::from_host(&stream, &[1.0f32, 2.0])?;
/// let view = buffer.storage().clone();
/// let (error, buffer) = adopt(buffer, &stream).unwrap_err().into_parts();
/// assert!(matches!(error, CudaCoreError::Shared));
/// drop(view);
/// assert_eq!(adopt(buffer, &stream)?.to_vec()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub struct Refused<B>(Box<(CudaCoreError, B)>);

impl<B> Refused<B> {
    pub(crate) fn new(error: CudaCoreError, buffer: B) -> Self {
        Self(Box::new((error, buffer)))
    }

    /// Returns the reason.
    #[must_use]
    pub fn error(&self) -> &CudaCoreError {
        &self.0.0
    }

    /// Returns the reason and the buffer, which is unchanged.
    #[must_use]
    pub fn into_parts(self) -> (CudaCoreError, B) {
        *self.0
    }
}

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refused")
            .field(self.error())
            .finish_non_exhaustive()
    }
}

impl<B> StdError for Refused<B> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error().source()
    }
}

impl<B> From<Refused<B>> for CudaCoreError {
    fn from(refused: Refused<B>) -> Self {
        refused.0.0
    }
}
