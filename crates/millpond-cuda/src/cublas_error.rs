//! Errors of products by cuBLAS.

use super::error::CudaError;
use millpond_pool::dtype::DType;
use thiserror::Error;

/// The reason why cuBLAS did not compute a product of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CublasError {
    /// cuBLAS is disabled.
    #[error("cuBLAS is off: MILLPOND_CUBLAS says so")]
    Off,
    /// The driver is emulated and runs no code of NVIDIA's.
    #[error(
        "cuBLAS is not looked for beside an emulated driver: set MILLPOND_CUBLAS to a library that runs there"
    )]
    Emulated,
    /// cuBLAS was not found.
    #[error(
        "no cuBLAS here ({why}): `pip install nvidia-cublas-cu12` and set MILLPOND_CUBLAS to its libcublas.so.12, or install the CUDA toolkit"
    )]
    Missing {
        /// The reason why no library was loaded.
        why: &'static str,
    },
    /// cuBLAS does not support products of this type.
    #[error("cuBLAS multiplies no matrices of {dtype}")]
    Type {
        /// The type.
        dtype: DType,
    },
    /// cuBLAS cannot describe the layout of the elements, or their number.
    #[error(
        "cuBLAS takes matrices of fewer than 2^31 rows and columns, of which the rows or the columns are contiguous and none is repeated, in up to 64 times a regular batch: copy the view, or leave it to the kernel"
    )]
    Layout,
    /// The stream is captured, and cuBLAS was not used on this queue before.
    #[error(
        "cuBLAS cannot be made ready while work is captured: form a product on this queue before the capture"
    )]
    Capturing,
    /// The pool has no memory for the workspace.
    #[error("the pool has no {bytes} bytes for cuBLAS to work in")]
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
