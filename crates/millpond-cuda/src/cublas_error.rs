//! Errors of products by cuBLAS.

use super::error::CudaError;
use millpond_pool::dtype::DType;
use thiserror::Error;

/// The reason why cuBLAS did not compute a product of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CublasError {
    /// cuBLAS is disabled.
    #[error("cuBLAS is disabled: MILLPOND_CUBLAS is set to off")]
    Off,
    /// The driver is emulated and runs no code of NVIDIA's.
    #[error(
        "cuBLAS is not loaded with the emulated driver: set MILLPOND_CUBLAS to a library that works with this driver"
    )]
    Emulated,
    /// cuBLAS was not found.
    #[error(
        "cannot load cuBLAS ({why}): run `pip install nvidia-cublas-cu12` and set MILLPOND_CUBLAS to its libcublas.so.12, or install the CUDA toolkit"
    )]
    Missing {
        /// The reason why no library was loaded.
        why: &'static str,
    },
    /// cuBLAS does not support products of this type.
    #[error("cuBLAS does not support matrices of {dtype}")]
    Type {
        /// The type.
        dtype: DType,
    },
    /// cuBLAS cannot describe the layout of the elements, or their number.
    #[error(
        "cuBLAS supports only matrices with fewer than 2^31 rows and columns whose rows or columns are contiguous and not repeated, in at most 64 regular batches: copy the view, or use the tiled kernel"
    )]
    Layout,
    /// The stream is captured, and cuBLAS was not used on this queue before.
    #[error(
        "cuBLAS cannot be initialised during a capture: compute a product on this queue before the capture"
    )]
    Capturing,
    /// The pool has no memory for the workspace.
    #[error(
        "the pool cannot allocate the {bytes} bytes of cuBLAS's workspace: free memory, or raise the pool's limit"
    )]
    Workspace {
        /// The bytes that were requested.
        bytes: usize,
    },
    /// A call of cuBLAS failed.
    #[error("{call} failed: {name} ({status})")]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// The status that it returned.
        status: i32,
        /// cuBLAS's name of the status.
        name: &'static str,
    },
    /// The driver returned an error.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}
