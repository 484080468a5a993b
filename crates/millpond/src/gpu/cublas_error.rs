//! What can keep cuBLAS from a product.

use super::error::CudaError;
use crate::dtype::DType;
use thiserror::Error;

/// Why a product of matrices was not formed by cuBLAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CublasError {
    /// It is off.
    #[error("cuBLAS is off: MILLPOND_CUBLAS says so")]
    Off,
    /// The driver is emulated, and runs no code of NVIDIA's.
    #[error(
        "cuBLAS is not looked for beside an emulated driver: set MILLPOND_CUBLAS to a library that runs there"
    )]
    Emulated,
    /// There is none.
    #[error(
        "no cuBLAS here ({why}): `pip install nvidia-cublas-cu12` and set MILLPOND_CUBLAS to its libcublas.so.12, or install the CUDA toolkit"
    )]
    Missing {
        /// What was looked for.
        why: &'static str,
    },
    /// It has no products of this type.
    #[error("cuBLAS multiplies no matrices of {dtype}")]
    Type {
        /// The type.
        dtype: DType,
    },
    /// It cannot be told where the elements are, or that they are so many.
    #[error(
        "cuBLAS takes matrices of fewer than 2^31 rows and columns, of which the rows or the columns are contiguous and none is repeated, in up to 64 times a regular batch: copy the view, or leave it to the kernel"
    )]
    Layout,
    /// The stream is captured, and it was not used on this queue before.
    #[error(
        "cuBLAS cannot be made ready while work is captured: form a product on this queue before the capture"
    )]
    Capturing,
    /// The pool has no memory for what it needs besides the matrices.
    #[error("the pool has no {bytes} bytes for cuBLAS to work in")]
    Workspace {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// A call of it failed.
    #[error("{call} failed: {name} ({status})")]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// What it answered.
        status: i32,
        /// Its name for that.
        name: &'static str,
    },
    /// The driver.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}
