//! Tensors and numbers as operands.

use super::Tensor;
use super::error::TensorError;
use super::kernel::Side;
use super::layout::Layout;
use super::number::{Number, elements, with_number};
use super::scalar::Scalar;
use super::view::{TensorMut, TensorRef};
use millpond_pool::block::Owner;
pub(crate) use millpond_pool::block::{Handle, Origin};
use millpond_pool::dtype::DType;
use millpond_pool::pool::Pool;
use millpond_set::pools::draw;

/// The origin of a result.
pub(super) struct ResultOrigin(Owner);

impl Origin for ResultOrigin {
    fn handle(&self) -> Handle {
        Handle(self.0.clone())
    }
}

/// Makes a result in memory of `home`, or of the current set of pools if there is no `home`.
pub(super) fn beside<R>(
    home: Option<&Owner>,
    make: impl FnOnce(&ResultOrigin) -> Result<R, TensorError>,
) -> Result<R, TensorError> {
    match home {
        Some(owner) => make(&ResultOrigin(owner.clone())),
        None => draw(|pool: &Pool| make(&ResultOrigin(pool.handle().0))),
    }
}

/// An operand of an operation: a tensor, a view, or a number. Functions that take an operand accept both `&tensor` and
/// `0.5`.
#[derive(Debug)]
pub struct Operand<'a>(OperandKind<&'a Tensor, TensorRef<'a>>);

/// The kinds of operands, on the host or on a device.
#[derive(Debug)]
pub(crate) enum OperandKind<T, V> {
    Tensor(T),
    View(V),
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self(OperandKind::Tensor(tensor))
    }
}

impl<'a> From<TensorRef<'a>> for Operand<'a> {
    fn from(view: TensorRef<'a>) -> Self {
        Self(OperandKind::View(view))
    }
}

impl<'a> From<&TensorRef<'a>> for Operand<'a> {
    fn from(view: &TensorRef<'a>) -> Self {
        Self(OperandKind::View(*view))
    }
}

impl<'a> From<&'a TensorMut<'_>> for Operand<'a> {
    fn from(view: &'a TensorMut<'_>) -> Self {
        Self(OperandKind::View(view.as_ref()))
    }
}

/// Converts numbers to operands of a type.
macro_rules! numbers {
    ($operand:ident) => {
        $crate::operand::numbers! {
            $operand, f64 f32 i8 i16 i32 i64 u8 u16 u32 u64 [f32; 2] [f64; 2] bool $crate::scalar::Scalar
        }
        #[cfg(feature = "half")]
        $crate::operand::numbers! { $operand, half::f16 half::bf16 }
        #[cfg(feature = "num-complex")]
        $crate::operand::numbers! { $operand, num_complex::Complex<f32> num_complex::Complex<f64> }
    };
    ($operand:ident, $($type:ty)*) => {
        $(
            impl From<$type> for $operand<'_> {
                fn from(number: $type) -> Self {
                    Self(OperandKind::Scalar(number.into()))
                }
            }
        )*
    };
}
pub(crate) use numbers;

numbers!(Operand);

impl<'a> Operand<'a> {
    /// Returns the tensor, or `None` if it is a number.
    pub(super) fn tensor(&self) -> Result<Option<TensorRef<'a>>, TensorError> {
        match self.0 {
            OperandKind::Tensor(tensor) => tensor.view().map(Some),
            OperandKind::View(view) => Ok(Some(view)),
            OperandKind::Scalar(_) => Ok(None),
        }
    }

    /// Returns the owner that allocated its memory, if that is a pool, tenant or source.
    pub(super) fn home(&self) -> Option<&Owner> {
        match &self.0 {
            OperandKind::Tensor(tensor) => tensor.storage().home(),
            OperandKind::View(view) => view.home(),
            OperandKind::Scalar(_) => None,
        }
    }

    /// Returns the number, or `Scalar::Bool(false)` if this is a tensor.
    pub(super) fn scalar(&self) -> Scalar {
        match self.0 {
            OperandKind::Scalar(scalar) => scalar,
            OperandKind::Tensor(_) | OperandKind::View(_) => Scalar::Bool(false),
        }
    }

    /// Returns the sizes of its dimensions. A number has none.
    pub(super) fn shape(&self) -> &[usize] {
        match &self.0 {
            OperandKind::Tensor(tensor) => tensor.shape(),
            OperandKind::View(view) => view.shape(),
            OperandKind::Scalar(_) => &[],
        }
    }

    /// Returns an error for a tensor of another type, and for a number that the type cannot represent.
    ///
    /// `shape` is the shape of the other operand, for the error.
    pub(super) fn expect(
        &self,
        operation: &'static str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<(), TensorError> {
        let found = match &self.0 {
            OperandKind::Tensor(tensor) => Ok(tensor.dtype()),
            OperandKind::View(view) => Ok(view.dtype()),
            OperandKind::Scalar(value) => Err(*value),
        };
        expect_type(operation, (dtype, shape), (found, self.shape()))
    }

    /// Returns whether it is a number, or a contiguous tensor of exactly this shape.
    #[inline]
    pub(super) fn is_flat(&self, shape: &[usize]) -> bool {
        let layout = match &self.0 {
            OperandKind::Tensor(tensor) => tensor.layout(),
            OperandKind::View(view) => view.layout(),
            OperandKind::Scalar(_) => return true,
        };
        layout.shape() == shape && layout.is_contiguous()
    }

    /// Returns the operand of a loop over slices. The caller has checked that it has the type and is flat.
    #[inline]
    pub(super) fn side<T: Number>(&self) -> Side<'_, T> {
        let (bytes, layout) = match &self.0 {
            OperandKind::Tensor(tensor) => (tensor.storage().as_bytes(), tensor.layout()),
            OperandKind::View(view) => (view.bytes(), view.layout()),
            OperandKind::Scalar(scalar) => return Side::One(T::of_scalar(*scalar)),
        };
        Side::Each(&elements(bytes)[layout.offset()..][..layout.len()])
    }

    /// Returns a view of the operand that is broadcast to a shape. A number is stored in `one`. The caller has checked
    /// the type.
    pub(super) fn repeated<'s>(
        &'s self,
        operation: &'static str,
        one: &'s mut [u64; 2],
        dtype: DType,
        shape: &Layout,
    ) -> Result<TensorRef<'s>, TensorError> {
        if let Some(view) = self.tensor()? {
            return Ok(view.with(view.layout().repeat_to(operation, shape.shape())?));
        }
        *one = bytemuck::cast(bytes_of(self.scalar(), dtype)?);
        let (bytes, layout) = (bytemuck::bytes_of(one), Layout::repeated(shape.dims()));
        Ok(TensorRef::of(bytes, dtype, layout))
    }
}

/// Returns an error for a second operand of another type than the first, and for a number that the type cannot represent.
pub(super) fn expect_type(
    operation: &'static str,
    (dtype, shape): (DType, &[usize]),
    (found, found_shape): (Result<DType, Scalar>, &[usize]),
) -> Result<(), TensorError> {
    match found {
        Ok(right) if right != dtype => Err(TensorError::DTypes {
            operation,
            left: dtype,
            right,
            shapes: [shape.into(), found_shape.into()],
        }),
        Err(value) if !value.fits(dtype) => Err(TensorError::Scalar { value, dtype }),
        _ => Ok(()),
    }
}

/// Returns the bytes of a number as an element of a type. The element is in the first of these bytes.
pub(super) fn bytes_of(value: Scalar, dtype: DType) -> Result<[u8; 16], TensorError> {
    if !value.fits(dtype) {
        return Err(TensorError::Scalar { value, dtype });
    }
    let mut bytes = [0; 16];
    with_number!(
        dtype,
        T => bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&T::of_scalar(value))),
        else match value.to_bool() {
            Some(is) => bytes[0] = is.into(),
            None => return Err(TensorError::Unsupported { operation: "fill", dtype }),
        }
    );
    Ok(bytes)
}
