//! Errors of the exchange of tensors.

use super::abi::{DLDataType, DLDevice, DLPackVersion, VERSION};
use crate::{MAX_RANK, Tensor, TensorError};
use millpond_account::error::AllocError;
use millpond_pool::dtype::DType;
use thiserror::Error;

/// An error of the export or import of a tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// The tensor to export is read-only, and the older form cannot be marked as read-only.
    #[error(
        "cannot export read-only elements in the older form of DLPack, which cannot mark them as read-only: export \
         the newer form, or a `deep_copy`"
    )]
    ReadOnly,
    /// The pointer to the structure is null.
    #[error("the pointer to the structure is null")]
    NoStructure,
    /// The structure has another layout.
    #[error(
        "the structure has version {found} of DLPack, but this library supports version {VERSION}: request that version from the exporting library"
    )]
    Version {
        /// Its version.
        found: DLPackVersion,
    },
    /// The memory is not the host's.
    #[error("the memory is on {found}: have its library copy it to the host")]
    Device {
        /// The location of the memory.
        found: DLDevice,
    },
    /// This crate does not support the element type.
    #[error("elements of {found} are not supported: convert them first")]
    DType {
        /// The type.
        found: DLDataType,
    },
    /// The number of dimensions is negative, or larger than tensors support.
    #[error("a tensor has at most {MAX_RANK} dimensions, not {found}: join some of them before the exchange")]
    Rank {
        /// The number of dimensions.
        found: i32,
    },
    /// A size is negative, or the pointer to the sizes is null.
    #[error(
        "the sizes of the dimensions are invalid ({found:?}): they must be 0 or more, and the pointer to them must not be null"
    )]
    Shape {
        /// The sizes, or `None` if the pointer to them is null.
        found: Option<Box<[i64]>>,
    },
    /// A stride is negative.
    #[error(
        "the stride of dimension {dim} is negative (strides {strides:?}): use `copy_from_dlpack`, which copies the elements in order"
    )]
    Backwards {
        /// The dimension.
        dim: usize,
        /// The strides, in elements.
        strides: Box<[i64]>,
    },
    /// The elements extend beyond the address space.
    #[error("elements of shape {shape:?} and strides {strides:?} exceed the address space")]
    TooLarge {
        /// The sizes.
        shape: Box<[usize]>,
        /// The strides, in elements, or `None` for C order.
        strides: Option<Box<[i64]>>,
    },
    /// There are elements, and the pointer to them is null.
    #[error("the pointer to the {elements} elements is null")]
    NoElements {
        /// The number of elements.
        elements: usize,
    },
    /// The elements are not aligned for their type.
    #[error(
        "the first element is at address {address:#x}, which is not a multiple of {}, the alignment of {dtype}: use \
         `copy_from_dlpack`, which copies the elements",
        dtype.align()
    )]
    Misaligned {
        /// The address of the first element.
        address: usize,
        /// The elements' type.
        dtype: DType,
    },
    /// The structure cannot be allocated.
    #[error("cannot allocate the structure, a few hundred bytes on the program's heap")]
    OutOfMemory,
    /// The memory of a copy cannot be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The copy failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A tensor that could not be exported.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct NotExported {
    /// The tensor, unchanged.
    pub tensor: Box<Tensor>,
    /// The reason.
    #[source]
    pub why: DlpackError,
}
