//! Why a tensor cannot cross.

use super::abi::{DLDataType, DLDevice, DLPackVersion, VERSION};
use crate::dtype::DType;
use crate::error::AllocError;
use crate::tensor::{MAX_RANK, Tensor, TensorError};
use thiserror::Error;

/// Why a tensor cannot cross, out or in.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// The structure to export is read-only, and its form cannot say so.
    #[error(
        "the elements may not be written, which the older form of DLPack cannot say: export the newer form, or a \
         `deep_copy`"
    )]
    ReadOnly,
    /// There is no structure.
    #[error("the pointer to the structure is null")]
    NoStructure,
    /// The structure is laid out otherwise.
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
        /// Where it is.
        found: DLDevice,
    },
    /// There is no such type here.
    #[error("elements of {found} are none that this library has: have them converted first")]
    DType {
        /// The type.
        found: DLDataType,
    },
    /// The number of dimensions is negative, or larger than tensors have.
    #[error("a tensor has at most {MAX_RANK} dimensions, not {found}: have some of them joined first")]
    Rank {
        /// The number.
        found: i32,
    },
    /// A size is negative, or there are dimensions and no sizes.
    #[error("the sizes of the dimensions are {found:?}: there is no such tensor")]
    Shape {
        /// The sizes; none where the pointer to them is null.
        found: Option<Box<[i64]>>,
    },
    /// Neighbours lie before each other along a dimension.
    #[error(
        "the strides {strides:?} lead backwards along dimension {dim}: `copy_from_dlpack` takes a copy in order"
    )]
    Backwards {
        /// The dimension.
        dim: usize,
        /// The strides, in elements.
        strides: Box<[i64]>,
    },
    /// The elements reach further than memory does.
    #[error("elements of shape {shape:?} and strides {strides:?} reach further than memory does")]
    TooLarge {
        /// The sizes.
        shape: Box<[usize]>,
        /// The strides, in elements; none where they follow one another.
        strides: Option<Box<[i64]>>,
    },
    /// There are elements, and nowhere where they are.
    #[error("there are {elements} elements, and the pointer to them is null")]
    NoElements {
        /// How many.
        elements: usize,
    },
    /// The elements lie where their type cannot be read.
    #[error(
        "the first element lies at {address:#x}, which is no multiple of {}, as one of {dtype} has to: \
         `copy_from_dlpack` takes a copy",
        dtype.align()
    )]
    Misaligned {
        /// Where.
        address: usize,
        /// Their type.
        dtype: DType,
    },
    /// There is no memory for the structure.
    #[error("there is no memory for the structure, a few hundred bytes of the program's heap")]
    OutOfMemory,
    /// There is no memory for a copy.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// No copy can be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A tensor that was not exported.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct NotExported {
    /// The tensor, as it was.
    pub tensor: Box<Tensor>,
    /// Why not.
    #[source]
    pub why: DlpackError,
}
