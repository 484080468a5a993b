//! Why something cannot be done with tensors.

use super::scalar::Scalar;
use crate::dtype::{DType, DTypeError};
use crate::error::AllocError;
#[cfg(feature = "cuda")]
use crate::gpu::{CudaError, KernelError};
use thiserror::Error;

/// Why something cannot be done with tensors. Nothing was written, and nothing is lost.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The shapes of two operands do not go together.
    #[error("{operation}: shapes {left:?} and {right:?} do not go together: {rule}")]
    Shapes {
        /// What was to be done.
        operation: &'static str,
        /// Shape of the first operand, or of the output.
        left: Box<[usize]>,
        /// Shape of the second.
        right: Box<[usize]>,
        /// What they have to be.
        rule: &'static str,
    },
    /// The types of two operands differ.
    #[error(
        "{operation}: one tensor is of {left} and shape {:?}, the other of {right} and shape {:?}: cast one of them",
        .shapes[0], .shapes[1]
    )]
    DTypes {
        /// What was to be done.
        operation: &'static str,
        /// Type of the first operand, or what the output has to be.
        left: DType,
        /// Type of the second.
        right: DType,
        /// Their shapes, of which the output's is the second where its type is.
        shapes: [Box<[usize]>; 2],
    },
    /// The operation is not there for elements of this type.
    #[error("{operation} is not there for {dtype}: cast the tensor first{}", needs(*.dtype))]
    Unsupported {
        /// What was to be done.
        operation: &'static str,
        /// The type.
        dtype: DType,
    },
    /// The elements are of another type.
    #[error(transparent)]
    DType(#[from] DTypeError),
    /// A number cannot be an element of the type.
    #[error("{value} is no {dtype}: cast the tensor first, or round the number")]
    Scalar {
        /// The number.
        value: Scalar,
        /// The type.
        dtype: DType,
    },
    /// An integer was to be divided by 0.
    #[error("{operation}: a divisor is 0, which integers cannot be divided by")]
    DivisionByZero {
        /// What was to be done.
        operation: &'static str,
    },
    /// There are other elements than the shape says.
    #[error("a tensor of shape {shape:?} has {expected} elements, not {found}")]
    Elements {
        /// The shape.
        shape: Box<[usize]>,
        /// Elements of that shape.
        expected: usize,
        /// Elements there are.
        found: usize,
    },
    /// The elements of a shape cannot be counted.
    #[error("a tensor of shape {shape:?} has more elements than can be counted")]
    TooLarge {
        /// The shape.
        shape: Box<[usize]>,
    },
    /// There are more dimensions than a tensor can have.
    #[error("a tensor has at most {most} dimensions, not {found}: join some of them")]
    Rank {
        /// Dimensions asked for.
        found: usize,
        /// The most there can be.
        most: usize,
    },
    /// There is no such dimension.
    #[error("there is no dimension {dim} in a tensor of shape {shape:?}")]
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
        /// Where the range begins.
        start: usize,
        /// Where it ends; that place is not in it.
        end: usize,
        /// The dimension's size.
        size: usize,
    },
    /// An order of dimensions does not name each of them once.
    #[error("{order:?} does not name each dimension of shape {shape:?} once")]
    Order {
        /// The order.
        order: Box<[usize]>,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// A step or a number of elements in a batch is 0.
    #[error("{what} of 0 leads nowhere: it has to be at least 1")]
    Zero {
        /// What is 0.
        what: &'static str,
    },
    /// The elements do not lie in memory so that a view could have the shape.
    #[error(
        "a tensor of shape {from:?} and strides {strides:?} cannot be viewed as {to:?}: `reshaped` makes a copy where it has to"
    )]
    NotAView {
        /// The tensor's shape.
        from: Box<[usize]>,
        /// Its strides.
        strides: Box<[usize]>,
        /// The shape asked for.
        to: Box<[usize]>,
    },
    /// The elements do not follow one another in memory.
    #[error(
        "the elements of a tensor of shape {shape:?} and strides {strides:?} do not follow one another in memory: take `to_contiguous` first"
    )]
    NotContiguous {
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// Its strides.
        strides: Box<[usize]>,
    },
    /// Other tensors share the storage, so this one cannot write to it.
    #[error(
        "{}: drop {}, or write to a `deep_copy`, or borrow views with `view_mut`",
        shared_by(*.others),
        if *.others == 1 { "it" } else { "them" }
    )]
    Shared {
        /// How many.
        others: usize,
    },
    /// Elements of the tensor share memory, as those of a broadcast tensor do, so they cannot be written.
    #[error(
        "elements of a tensor of shape {shape:?} and strides {strides:?} share memory: write to a `deep_copy`"
    )]
    Overlapping {
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// Its strides.
        strides: Box<[usize]>,
    },
    /// The memory is lent by others to be read.
    #[error("the memory is lent by others to be read, not written: write to a `deep_copy`")]
    ReadOnly,
    /// Parts of a tensor lie between each other in memory, so they cannot be borrowed apart to be written.
    #[error(
        "the parts along dimension {dim} of a tensor of shape {shape:?} and strides {strides:?} lie between each other: \
         split along the first dimension"
    )]
    Interleaved {
        /// The dimension.
        dim: usize,
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// Its strides.
        strides: Box<[usize]>,
    },
    /// An index does not name an element.
    #[error("there is no element {index:?} in a tensor of shape {shape:?}")]
    Index {
        /// The index.
        index: Box<[usize]>,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// There is no memory for it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device's driver refused, or an operand is on another device.
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

/// How many other tensors stand in the way.
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
