//! Element-wise arithmetic: sums, differences, products, quotients, and the addition of multiples.
//!
//! Each operation has three forms: as a new tensor, into an output, and in place. `elementwise` implements them on the host, and
//! `device::arithmetic` on devices.

use super::Tensor;
use super::elementwise::Binary;
use super::error::TensorError;
use super::operand::Operand;
use super::scalar::Scalar;
use super::view::{TensorMut, TensorRef};

/// An output that can be written: a tensor whose storage no other tensor shares, or a borrowed view.
pub trait Output {
    /// Borrows a view for writing.
    ///
    /// # Errors
    /// Returns an error if other tensors share the storage, if elements of this tensor overlap, or if the memory is read-only.
    fn output(&mut self) -> Result<TensorMut<'_>, TensorError>;
}

impl Output for Tensor {
    fn output(&mut self) -> Result<TensorMut<'_>, TensorError> {
        self.view_mut()
    }
}

impl Output for TensorMut<'_> {
    fn output(&mut self) -> Result<TensorMut<'_>, TensorError> {
        Ok(self.reborrow())
    }
}

/// Passes the operations to a macro, after its own arguments: the names of their three forms, and texts for the documentation.
macro_rules! operations {
    ($macro:ident $arguments:tt) => {
        $macro! {
            $arguments
            add add_into add_assign Add
                "The sum of each two elements" "Adds to each element another.";
            sub sub_into sub_assign Sub
                "The difference of each two elements" "Subtracts from each element another.";
            mul mul_into mul_assign Mul
                "The product of each two elements" "Multiplies each element with another.";
            div div_into div_assign Div
                "The quotient of each two elements; of integers without the rest, and never by 0"
                "Divides each element by another; integers without the rest, and never by 0.";
            rsub rsub_into rsub_assign SubFrom
                "The difference the other way round, `other - self`: `tensor.rsub(1)` is 1 less each element"
                "Replaces each element by another less it: `self = other - self`.";
            rdiv rdiv_into rdiv_assign DivInto
                "The quotient the other way round, `other / self`: `tensor.rdiv(1)` is 1 over each element; of integers without the rest, and never by 0"
                "Replaces each element by another divided by it, `self = other / self`; integers without the rest, and never by 0.";
        }
    };
}

/// Defines the operations that return a new tensor.
macro_rules! operations_to_new {
    (
        ($self:ident, $view:expr, $operand:ident, $tensor:ty, $make:ident, $place:literal)
        $($name:ident $into:ident $assign:ident $binary:ident $what:literal $does:literal;)*
    ) => {
        $(
            #[doc = concat!($what, ", as a new tensor of ", $place, ".")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the shapes cannot be broadcast, or if memory cannot be allocated, and errors of
            /// the device.
            pub fn $name<'b>(&$self, other: impl Into<$operand<'b>>) -> Result<$tensor, TensorError> {
                Binary::$binary.$make(stringify!($name), $view, &other.into())
            }
        )*

        #[doc = concat!("Returns `self + factor * other` as a new tensor of ", $place, ", in one pass. `axpy` does the same in place.")]
        ///
        /// # Errors
        /// Returns an error if types differ, if the type cannot represent the factor, if the shapes cannot be broadcast, or if
        /// memory cannot be allocated, and errors of the device.
        pub fn add_scaled<'b>(
            &$self,
            factor: impl Into<Scalar>,
            other: impl Into<$operand<'b>>,
        ) -> Result<$tensor, TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.$make("add_scaled", view, &other.into())
        }
    };
}

/// Defines the operations that write to an output.
macro_rules! operations_to_output {
    (
        ($self:ident, $view:expr, $operand:ident, $output:ident, $write:ident)
        $($name:ident $into:ident $assign:ident $binary:ident $what:literal $does:literal;)*
    ) => {
        $(
            #[doc = concat!($what, ", into an output. No memory is allocated.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the shapes cannot be broadcast, or if the output has another shape or cannot be
            /// written, and errors of the device.
            pub fn $into<'b>(
                &$self,
                other: impl Into<$operand<'b>>,
                out: &mut impl $output,
            ) -> Result<(), TensorError> {
                Binary::$binary.$write(stringify!($into), $view, &other.into(), out.output()?)
            }
        )*

        /// Writes `self + factor * other` to an output. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if types differ, if the type cannot represent the factor, if the shapes cannot be broadcast, or if the
        /// output has another shape or cannot be written, and errors of the device.
        pub fn add_scaled_into<'b>(
            &$self,
            factor: impl Into<Scalar>,
            other: impl Into<$operand<'b>>,
            out: &mut impl $output,
        ) -> Result<(), TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.$write("add_scaled_into", view, &other.into(), out.output()?)
        }
    };
}

/// Defines the operations in place.
macro_rules! operations_in_place {
    (
        ($self:ident, $view:expr, $operand:ident, $write:ident)
        $($name:ident $into:ident $assign:ident $binary:ident $what:literal $does:literal;)*
    ) => {
        $(
            #[doc = concat!($does, " No memory is allocated.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the other operand cannot be broadcast to this shape, or if this tensor cannot
            /// be written, and errors of the device.
            pub fn $assign<'b>(&mut $self, other: impl Into<$operand<'b>>) -> Result<(), TensorError> {
                Binary::$binary.$write(stringify!($assign), $view, &other.into())
            }
        )*

        /// Multiplies each element by a number. `mul` returns a new tensor instead, and `mul_into` writes to an output. A view
        /// limits the operation to some elements: `tensor.view_mut()?.step(0, 2)?.scal(a)`.
        ///
        /// # Errors
        /// Returns an error if the elements' type cannot represent the number, or if the tensor cannot be written, and errors of
        /// the device.
        pub fn scal(&mut $self, factor: impl Into<Scalar>) -> Result<(), TensorError> {
            Binary::Mul.$write("scal", $view, &factor.into().into())
        }

        /// Adds a multiple of another tensor: `self += factor * other`. `add_scaled` returns a new tensor instead, and
        /// `add_scaled_into` writes to an output. Allocates nothing. Both tensors may have strides.
        ///
        /// # Errors
        /// Returns an error if types differ, if the type cannot represent the factor, if the other operand cannot be broadcast to
        /// this shape, or if this tensor cannot be written, and errors of the device.
        pub fn axpy<'b>(
            &mut $self,
            factor: impl Into<Scalar>,
            other: impl Into<$operand<'b>>,
        ) -> Result<(), TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.$write("axpy", view, &other.into())
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use {operations, operations_in_place, operations_to_new, operations_to_output};

/// Element-wise arithmetic. The other operand is a tensor, a view or a number. Shapes are broadcast as in NumPy: starting with the
/// last dimension, two sizes must be equal, or one of them is 1 and its elements are repeated. Types are never converted. Integers
/// wrap around.
///
/// ```
/// use millpond::{DType, Tensor};
///
/// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let row = Tensor::from_slice(&[10.0f32, 20.0], [2])?;
/// let sum = table.add(&row)?;
/// assert_eq!(sum.as_slice::<f32>()?, [11.0, 22.0, 13.0, 24.0]);
///
/// let mut out = Tensor::zeros([2, 2], DType::F32)?;
/// table.mul_into(0.5, &mut out)?;
/// out.axpy(2.0, &row)?;
/// out.sub_assign(&table)?;
/// assert_eq!(out.as_slice::<f32>()?, [19.5, 39.0, 18.5, 38.0]);
///
/// assert_eq!(table.rsub(1)?.as_slice::<f32>()?, [0.0, -1.0, -2.0, -3.0]);    // numbers on the left
/// assert_eq!(table.rdiv(12)?.as_slice::<f32>()?, [12.0, 6.0, 4.0, 3.0]);
///
/// let error = table.add(&Tensor::zeros([3], DType::F32)?).unwrap_err();
/// assert!(error.to_string().starts_with("add: shapes [2, 2] and [3] do not match"));
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    operations!(operations_to_new(
        self,
        self.view()?,
        Operand,
        Tensor,
        make,
        "the first operand's [pool](Tensor)"
    ));
    operations!(operations_to_output(
        self,
        self.view()?,
        Operand,
        Output,
        write_into
    ));
}

/// Element-wise arithmetic, as for a [`Tensor`].
impl TensorRef<'_> {
    operations!(operations_to_new(
        self,
        *self,
        Operand,
        Tensor,
        make,
        "the first operand's [pool](Tensor)"
    ));
    operations!(operations_to_output(self, *self, Operand, Output, write_into));
}

/// Element-wise arithmetic in place. Requires `&mut`, and a storage that no other tensor shares.
impl Tensor {
    operations!(operations_in_place(self, self.view_mut()?, Operand, assign));
}

/// Element-wise arithmetic in place.
impl TensorMut<'_> {
    operations!(operations_in_place(self, self.reborrow(), Operand, assign));
}
