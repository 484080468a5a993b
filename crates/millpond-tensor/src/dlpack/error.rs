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
        "the elements are read-only, and the older form of DLPack cannot mark them so: export the newer form, or a \
         `deep_copy`"
    )]
    ReadOnly,
    /// The pointer to the structure is null.
    #[error("the pointer to the structure is null")]
    NoStructure,
    /// The structure has another layout.
    #[error(
        "the structure is of version {found} of DLPack, this library knows {VERSION}: ask its maker for that version"
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
    #[error("a tensor has at most {MAX_RANK} dimensions, not {found}: have some of them joined first")]
    Rank {
        /// The number of dimensions.
        found: i32,
    },
    /// A size is negative, or the pointer to the sizes is null.
    #[error("the sizes of the dimensions are {found:?}: there is no such tensor")]
    Shape {
        /// The sizes, or `None` if the pointer to them is null.
        found: Option<Box<[i64]>>,
    },
    /// A stride is negative.
    #[error(
        "the strides {strides:?} lead backwards along dimension {dim}: `copy_from_dlpack` takes a copy in order"
    )]
    Backwards {
        /// The dimension.
        dim: usize,
        /// The strides, in elements.
        strides: Box<[i64]>,
    },
    /// The elements extend beyond the address space.
    #[error("elements of shape {shape:?} and strides {strides:?} reach further than memory does")]
    TooLarge {
        /// The sizes.
        shape: Box<[usize]>,
        /// The strides, in elements, or `None` for C order.
        strides: Option<Box<[i64]>>,
    },
    /// There are elements, and the pointer to them is null.
    #[error("there are {elements} elements, and the pointer to them is null")]
    NoElements {
        /// The number of elements.
        elements: usize,
    },
    /// The elements are not aligned for their type.
    #[error(
        "the first element lies at {address:#x}, which is not a multiple of {}, as one of {dtype} has to: \
         `copy_from_dlpack` takes a copy",
        dtype.align()
    )]
    Misaligned {
        /// The address of the first element.
        address: usize,
        /// The elements' type.
        dtype: DType,
    },
    /// The structure cannot be allocated.
    #[error("there is no memory for the structure, a few hundred bytes of the program's heap")]
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
