//! Errors of tensor operations.

use super::scalar::Scalar;
use millpond_account::error::AllocError;
#[cfg(feature = "cuda")]
use millpond_cuda::{CudaError, KernelError};
use millpond_pool::dtype::{DType, DTypeError};
use thiserror::Error;

/// An error of a tensor operation. Nothing is lost. Nothing was written, except by operations that call a function for each
/// part, such as `par_for_each_batch`, if that function failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The shapes of two operands do not match.
    #[error("{operation}: shapes {left:?} and {right:?} do not match: {rule}")]
    Shapes {
        /// The operation.
        operation: &'static str,
        /// The shape of the first operand, or of the output.
        left: Box<[usize]>,
        /// The shape of the second operand.
        right: Box<[usize]>,
        /// The rule that the shapes have to follow.
        rule: &'static str,
    },
    /// The types of two operands differ.
    #[error(
        "{operation}: one tensor has type {left} and shape {:?}, the other has type {right} and shape {:?}: cast one of them",
        .shapes[0], .shapes[1]
    )]
    DTypes {
        /// The operation.
        operation: &'static str,
        /// The type of the first operand, or the required type of the output.
        left: DType,
        /// The type of the second operand.
        right: DType,
        /// The shapes of the two.
        shapes: [Box<[usize]>; 2],
    },
    /// The operation does not support elements of this type.
    #[error("{operation} is not supported for {dtype}: cast the tensor first{}", needs(*.dtype))]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The type.
        dtype: DType,
    },
    /// The type of the elements is not the expected one.
    #[error(transparent)]
    DType(#[from] DTypeError),
    /// The type cannot represent a number.
    #[error("{value} does not fit into {dtype}: cast the tensor first, or round the number")]
    Scalar {
        /// The number.
        value: Scalar,
        /// The type.
        dtype: DType,
    },
    /// A division of integers by 0.
    #[error("{operation}: a divisor is 0, and integers cannot be divided by 0")]
    DivisionByZero {
        /// The operation.
        operation: &'static str,
    },
    /// The number of elements does not match the shape.
    #[error("a tensor of shape {shape:?} has {expected} elements, not {found}")]
    Elements {
        /// The shape.
        shape: Box<[usize]>,
        /// The number of elements of that shape.
        expected: usize,
        /// The number of elements given.
        found: usize,
    },
    /// The number of elements of a shape overflows.
    #[error("a tensor of shape {shape:?} has more elements than a `usize` can count")]
    TooLarge {
        /// The shape.
        shape: Box<[usize]>,
    },
    /// There are more dimensions than a tensor can have.
    #[error("a tensor has at most {most} dimensions, not {found}: join some of them")]
    Rank {
        /// The requested number of dimensions.
        found: usize,
        /// The largest number of dimensions.
        most: usize,
    },
    /// The tensor does not have this dimension.
    #[error("a tensor of shape {shape:?} has no dimension {dim}")]
    Dim {
        /// The dimension, counted from 0.
        dim: usize,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// A range does not lie inside a dimension.
    #[error("{start}..{end} does not lie inside dimension {dim}, whose size is {size}")]
    Range {
        /// The dimension.
        dim: usize,
        /// The start of the range.
        start: usize,
        /// The end of the range, which is excluded.
        end: usize,
        /// The size of the dimension.
        size: usize,
    },
    /// A dimension was to be removed, but its size is not 1.
    #[error("dimension {dim} has the size {size}, and only a dimension of size 1 can be removed")]
    NotOne {
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// The only element of a tensor was requested, but the tensor does not have exactly one element.
    #[error(
        "a tensor of shape {shape:?} does not have exactly one element: select one, for example with `select`"
    )]
    NotAnItem {
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// A floating-point argument is NaN.
    #[error("{what} is not a number: choose another value")]
    NotANumber {
        /// The argument.
        what: &'static str,
    },
    /// An order of dimensions does not contain each dimension exactly once.
    #[error("{order:?} does not contain each dimension of shape {shape:?} exactly once")]
    Order {
        /// The order.
        order: Box<[usize]>,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// A step or a number of elements in a batch is 0.
    #[error("{what} cannot be 0: choose another value")]
    Zero {
        /// The value that is 0.
        what: &'static str,
    },
    /// The strides do not allow a view of the requested shape.
    #[error(
        "a tensor of shape {from:?} and strides {strides:?} cannot be viewed as {to:?}: use `reshaped`, which copies the elements if necessary"
    )]
    NotAView {
        /// The tensor's shape.
        from: Box<[usize]>,
        /// The tensor's strides.
        strides: Box<[usize]>,
        /// The requested shape.
        to: Box<[usize]>,
    },
    /// The elements are not contiguous in memory.
    #[error(
        "the elements of a tensor of shape {shape:?} and strides {strides:?} are not contiguous in memory: call `to_contiguous` first"
    )]
    NotContiguous {
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// The tensor's strides.
        strides: Box<[usize]>,
    },
    /// The elements of an array of the crate ndarray are in reversed order, overlap, or have other elements between them.
    #[error(
        "an array of shape {shape:?} has elements that are in reversed order, overlap, or have others between them: call its \
         `as_standard_layout` first"
    )]
    NotStandardLayout {
        /// The array's shape.
        shape: Box<[usize]>,
    },
    /// Other tensors share the storage, so this one cannot write to it.
    #[error(
        "{}: drop {}, or write to a `deep_copy`, or borrow views with `view_mut`",
        shared_by(*.others),
        if *.others == 1 { "it" } else { "them" }
    )]
    Shared {
        /// The number of the other tensors.
        others: usize,
    },
    /// Elements of the tensor overlap, as those of a broadcast tensor do, so they cannot be written.
    #[error(
        "elements of a tensor of shape {shape:?} and strides {strides:?} share memory: write to a `deep_copy`"
    )]
    Overlapping {
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// The tensor's strides.
        strides: Box<[usize]>,
    },
    /// The memory is read-only.
    #[error("the memory belongs to another library and is read-only: write to a `deep_copy`")]
    ReadOnly,
    /// Parts of a tensor are interleaved in memory, so they cannot be borrowed separately for writing.
    #[error(
        "the parts along dimension {dim} of a tensor of shape {shape:?} and strides {strides:?} are interleaved in memory: \
         split along the first dimension"
    )]
    Interleaved {
        /// The dimension.
        dim: usize,
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// The tensor's strides.
        strides: Box<[usize]>,
    },
    /// An index is out of bounds, or does not have one number for each dimension.
    #[error("a tensor of shape {shape:?} has no element {index:?}")]
    Index {
        /// The index.
        index: Box<[usize]>,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// Memory cannot be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A `DeviceTensor` was requested in host memory.
    #[cfg(feature = "cuda")]
    #[error("a `DeviceTensor` cannot be in host memory: use a `Tensor`")]
    NotCuda,
    /// The device's driver returned an error, or an operand is on another device.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernels cannot be loaded or launched on the device.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

#[cfg(feature = "cuda")]
impl From<KernelError> for TensorError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Cuda(error) => Self::Cuda(error),
            error => Self::Kernel(Box::new(error)),
        }
    }
}

/// Returns a text with the number of other tensors.
pub(super) fn shared_by(others: usize) -> String {
    match others {
        1 => "another tensor shares the storage".to_owned(),
        others => format!("{others} other tensors share the storage"),
    }
}

fn needs(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 if cfg!(not(feature = "half")) => ", or build with the feature `half`",
        _ => "",
    }
}
