//! Element-wise arithmetic: sums, differences, products, quotients, and the addition of multiples.
//!
//! Each operation has three forms: as a new tensor, into an output, and in place. `elementwise` implements them.

use super::Tensor;
use super::elementwise::Binary;
use super::error::TensorError;
use super::operand::Operand;
use super::scalar::Scalar;
use super::view::{TensorMut, TensorRef};

/// An output that can be written: a tensor that is the only one of its storage, or a borrowed view.
pub trait Output {
    /// Borrows a view for writing.
    ///
    /// # Errors
    /// Returns an error if other tensors share the storage, if elements of this one overlap, or if the memory is read-only.
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

macro_rules! reads {
    ($self:ident, $view:expr; $($name:ident $into:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, ", as a new tensor of the first operand's [pool](Tensor).")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the shapes cannot be broadcast, or if memory cannot be allocated.
            pub fn $name<'b>(&$self, other: impl Into<Operand<'b>>) -> Result<Tensor, TensorError> {
                Binary::$binary.make(stringify!($name), $view, &other.into())
            }

            #[doc = concat!($what, ", into an output. No memory is allocated.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the shapes cannot be broadcast, or if the output has another shape or cannot be
            /// written.
            pub fn $into<'b>(
                &$self,
                other: impl Into<Operand<'b>>,
                out: &mut impl Output,
            ) -> Result<(), TensorError> {
                Binary::$binary.write_into(stringify!($into), $view, &other.into(), out.output()?)
            }
        )*
    };
}

macro_rules! all_reads {
    ($self:ident, $view:expr) => {
        reads! {
            $self, $view;
            add add_into Add "The sum of each two elements";
            sub sub_into Sub "The difference of each two elements";
            mul mul_into Mul "The product of each two elements";
            div div_into Div "The quotient of each two elements; of integers without the rest, and never by 0";
            rsub rsub_into SubFrom "The difference the other way round, `other - self`: `tensor.rsub(1)` is 1 less each element";
            rdiv rdiv_into DivInto "The quotient the other way round, `other / self`: `tensor.rdiv(1)` is 1 over each element; of integers without the rest, and never by 0";
        }

        /// Returns `self + factor * other` as a new tensor of the first operand's [pool](Tensor), in one pass.
        /// [`axpy`](TensorMut::axpy) does the same in place.
        ///
        /// # Errors
        /// Returns an error if types differ, if the type cannot represent the factor, if the shapes cannot be broadcast, or if
        /// memory cannot be allocated.
        pub fn add_scaled<'b>(
            &$self,
            factor: impl Into<Scalar>,
            other: impl Into<Operand<'b>>,
        ) -> Result<Tensor, TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.make("add_scaled", view, &other.into())
        }

        /// Writes `self + factor * other` to an output. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if types differ, if the type cannot represent the factor, if the shapes cannot be broadcast, or if the
        /// output has another shape or cannot be written.
        pub fn add_scaled_into<'b>(
            &$self,
            factor: impl Into<Scalar>,
            other: impl Into<Operand<'b>>,
            out: &mut impl Output,
        ) -> Result<(), TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.write_into("add_scaled_into", view, &other.into(), out.output()?)
        }
    };
}

/// Element-wise arithmetic. The other operand is a tensor, a view or a number. Shapes are broadcast as in NumPy: starting with the
/// last dimension, sizes have to be equal, or one of them is 1 and is repeated. Types are never converted. Integers wrap around.
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
/// assert!(error.to_string().starts_with("add: shapes [2, 2] and [3] do not go together"));
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    all_reads!(self, self.view()?);
}

/// Element-wise arithmetic, as for a [`Tensor`].
impl TensorRef<'_> {
    all_reads!(self, *self);
}

macro_rules! writes {
    ($self:ident, $view:expr; $($name:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, " No memory is allocated.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the other cannot be broadcast to this shape, or if this one cannot be written.
            pub fn $name<'b>(&mut $self, other: impl Into<Operand<'b>>) -> Result<(), TensorError> {
                Binary::$binary.assign(stringify!($name), $view, &other.into())
            }
        )*
    };
}

macro_rules! all_writes {
    ($self:ident, $view:expr) => {
        writes! {
            $self, $view;
            add_assign Add "Adds to each element another.";
            sub_assign Sub "Takes from each element another.";
            mul_assign Mul "Multiplies each element with another.";
            div_assign Div "Divides each element by another; integers without the rest, and never by 0.";
            rsub_assign SubFrom "Puts in the place of each element another less it: `self = other - self`.";
            rdiv_assign DivInto "Puts in the place of each element another divided by it, `self = other / self`; integers without the rest, and never by 0.";
        }

        /// Multiplies each element by a number. `mul` and `mul_into` are the forms with a new tensor and an output. With strides:
        /// `tensor.view_mut()?.step(0, 2)?.scal(a)`.
        ///
        /// # Errors
        /// Returns an error if the elements' type cannot represent the number, or if the tensor cannot be written.
        pub fn scal(&mut $self, factor: impl Into<Scalar>) -> Result<(), TensorError> {
            Binary::Mul.assign("scal", $view, &factor.into().into())
        }

        /// Adds a multiple of another tensor: `self += factor * other`. `add_scaled` and `add_scaled_into` are the forms with a new
        /// tensor and an output. Allocates nothing. Both tensors may have strides.
        ///
        /// # Errors
        /// Returns an error if types differ, if the type cannot represent the factor, if the other cannot be broadcast to this
        /// shape, or if this one cannot be written.
        pub fn axpy<'b>(
            &mut $self,
            factor: impl Into<Scalar>,
            other: impl Into<Operand<'b>>,
        ) -> Result<(), TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.assign("axpy", view, &other.into())
        }
    };
}

/// Element-wise arithmetic in place. Requires `&mut`, and a storage that no other tensor shares.
impl Tensor {
    all_writes!(self, self.view_mut()?);
}

/// Element-wise arithmetic in place.
impl TensorMut<'_> {
    all_writes!(self, self.reborrow());
}
