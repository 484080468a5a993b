//! The implementation of arithmetic: an operation on two elements, applied to all elements of two tensors.
//!
//! Whether operands are contiguous is checked before the type is selected. Contiguous operands are slices in a loop of `kernel`.
//! Other layouts are iterated row by row. Large operations are first split into parts for several threads. All checks are made
//! before anything is written.

use super::Tensor;
use super::error::TensorError;
use super::kernel::{self, Side};
use super::layout::{Layout, broadcast};
use super::number::{Number, with_number};
use super::operand::{Operand, beside};
use super::scalar::Scalar;
use super::threads;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use millpond_pool::block::Origin;
use millpond_pool::dtype::DType;

/// An operation on two elements.
#[derive(Clone, Copy)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// Subtracts the first from the second.
    SubFrom,
    /// Divides the second by the first.
    DivInto,
    /// Adds a multiple of the second. The factor was checked to be representable by the elements' type.
    AddScaled(Scalar),
}

/// Evaluates an expression with the function of an operation, so that it is compiled for each operation.
macro_rules! with_binary {
    ($binary:expr, $number:ty, $function:ident => $body:expr) => {
        match $binary {
            Binary::Add => with_binary!($function = <$number as Number>::plus, $body),
            Binary::Sub => with_binary!($function = <$number as Number>::minus, $body),
            Binary::Mul => with_binary!($function = <$number as Number>::times, $body),
            Binary::Div => with_binary!($function = <$number as Number>::over, $body),
            Binary::SubFrom => {
                with_binary!(
                    $function = |left: $number, right: $number| right.minus(left),
                    $body
                )
            }
            Binary::DivInto => {
                with_binary!(
                    $function = |left: $number, right: $number| right.over(left),
                    $body
                )
            }
            Binary::AddScaled(factor) => {
                let factor = <$number as Number>::of_scalar(factor);
                with_binary!(
                    $function = move |left: $number, right: $number| left.plus(factor.times(right)),
                    $body
                )
            }
        }
    };
    ($function:ident = $definition:expr, $body:expr) => {{
        let $function = $definition;
        $body
    }};
}

impl Binary {
    /// Returns [`AddScaled`](Self::AddScaled), or an error if the type cannot represent the factor.
    pub(super) fn scaled(factor: Scalar, dtype: DType) -> Result<Self, TensorError> {
        if factor.fits(dtype) {
            return Ok(Self::AddScaled(factor));
        }
        Err(TensorError::Scalar { value: factor, dtype })
    }

    /// Returns the result as a new tensor. If the operands are contiguous, the result is written to memory that was not zeroed
    /// before.
    pub(super) fn make(
        self,
        operation: &'static str,
        left: TensorRef<'_>,
        right: &Operand<'_>,
    ) -> Result<Tensor, TensorError> {
        let dtype = left.dtype();
        right.expect(operation, dtype, left.shape())?;
        let home = left.home().or(right.home());
        if !(left.is_contiguous() && right.is_flat(left.shape())) {
            let shape = broadcast(operation, left.shape(), right.shape())?;
            let mut out = beside(home, |from| Tensor::zeros_in(from, &*shape, dtype))?;
            self.write_into(operation, left, right, out.view_mut()?)?;
            return Ok(out);
        }
        with_number!(
            dtype,
            T => {
                let (right, elements) = (right.side::<T>(), left.flat::<T>());
                self.check(operation, Side::Each(elements), right)?;
                beside(home, |from| {
                    let owner = from.handle().0;
                    let made = with_binary!(self, T, f => kernel::make(owner, elements, right, f))?;
                    Tensor::from_buffer(made, left.shape())
                })
            },
            else refuse(operation, dtype)
        )
    }

    /// Writes to an output, whose shape has to be the shape of the result.
    pub(super) fn write_into(
        self,
        operation: &'static str,
        left: TensorRef<'_>,
        right: &Operand<'_>,
        mut out: TensorMut<'_>,
    ) -> Result<(), TensorError> {
        let dtype = left.dtype();
        right.expect(operation, dtype, left.shape())?;
        let flat = out.dtype() == dtype
            && out.shape() == left.shape()
            && out.is_contiguous()
            && left.is_contiguous()
            && right.is_flat(left.shape());
        let parts = threads::parts(out.len() * dtype.size());
        if flat && parts < 2 {
            return with_number!(
                dtype,
                T => {
                    let (left, right) = (Side::Each(left.flat::<T>()), right.side::<T>());
                    self.check(operation, left, right)?;
                    with_binary!(self, T, f => kernel::write(out.flat_mut(), left, right, f));
                    Ok(())
                },
                else refuse(operation, dtype)
            );
        }
        let shape = broadcast(operation, left.shape(), right.shape())?;
        output(operation, out.typed_shape(), dtype, &shape)?;
        let left = left.with(left.layout().repeat_to(operation, &shape)?);
        let mut one = [0; 2];
        let right = right.repeated(operation, &mut one, dtype, out.layout())?;
        self.check_all(operation, left, right)?;
        threads::share(out, [left, right], parts, &|mut out, [left, right]| {
            let dtype = left.dtype();
            with_number!(
                dtype,
                T => {
                    let whole = *out.layout();
                    let left = (left.plain::<T>(), left.layout());
                    let right = (right.plain::<T>(), right.layout());
                    with_binary!(self, T, f => write((out.plain_mut(), &whole), left, right, f));
                    Ok(())
                },
                else refuse(operation, dtype)
            )
        })
    }

    /// Writes the result in place.
    pub(super) fn assign(
        self,
        operation: &'static str,
        mut out: TensorMut<'_>,
        right: &Operand<'_>,
    ) -> Result<(), TensorError> {
        let dtype = out.dtype();
        right.expect(operation, dtype, out.shape())?;
        let flat = out.is_contiguous() && right.is_flat(out.shape());
        let parts = threads::parts(out.len() * dtype.size());
        if flat && parts < 2 {
            return with_number!(
                dtype,
                T => {
                    let right = right.side::<T>();
                    self.check(operation, Side::Each(out.flat_mut()), right)?;
                    with_binary!(self, T, f => kernel::update(out.flat_mut(), right, f));
                    Ok(())
                },
                else refuse(operation, dtype)
            );
        }
        let mut one = [0; 2];
        let right = right.repeated(operation, &mut one, dtype, out.layout())?;
        self.check_all(operation, out.as_ref(), right)?;
        threads::share(out, [right], parts, &|mut out, [right]| {
            let dtype = right.dtype();
            with_number!(
                dtype,
                T => {
                    let whole = *out.layout();
                    let right = (right.plain::<T>(), right.layout());
                    with_binary!(self, T, f => update((out.plain_mut(), &whole), right, f));
                    Ok(())
                },
                else refuse(operation, dtype)
            )
        })
    }

    /// Returns the operand that is the divisor, if there is one.
    pub(super) fn divisor<S>(self, left: S, right: S) -> Option<S> {
        match self {
            Self::Div => Some(right),
            Self::DivInto => Some(left),
            Self::Add | Self::Sub | Self::SubFrom | Self::Mul | Self::AddScaled(_) => None,
        }
    }

    /// Returns an error for a division of integers by 0.
    fn check<T: Number>(
        self,
        operation: &'static str,
        left: Side<'_, T>,
        right: Side<'_, T>,
    ) -> Result<(), TensorError> {
        if !T::INTEGER {
            return Ok(());
        }
        let zero = match self.divisor(left, right) {
            Some(Side::Each(divisors)) => divisors.iter().any(|divisor| divisor.is_zero()),
            Some(Side::One(divisor)) => divisor.is_zero(),
            None => false,
        };
        if zero {
            return Err(TensorError::DivisionByZero { operation });
        }
        Ok(())
    }

    /// Like [`check`](Self::check), for views of any layout.
    fn check_all(
        self,
        operation: &'static str,
        left: TensorRef<'_>,
        right: TensorRef<'_>,
    ) -> Result<(), TensorError> {
        let Some(divisor) = self.divisor(left, right) else {
            return Ok(());
        };
        with_number!(
            divisor.dtype(),
            T => {
                if !T::INTEGER {
                    return Ok(());
                }
                let walk = Walk::in_any_order([divisor.layout()]);
                let (divisors, [step]) = (divisor.plain::<T>(), walk.strides);
                let mut zero = false;
                walk.rows(|[start]| zero |= (0..walk.len).any(|at| divisors[start + at * step].is_zero()));
                if zero {
                    return Err(TensorError::DivisionByZero { operation });
                }
                Ok(())
            },
            else Ok(())
        )
    }
}

/// Computes `out = f(left, right)`. All have one shape.
pub(super) fn write<A: Copy, B: Copy, R: Copy>(
    out: (&mut [R], &Layout),
    left: (&[A], &Layout),
    right: (&[B], &Layout),
    f: impl Fn(A, B) -> R + Copy,
) {
    let walk = Walk::in_any_order([out.1, left.1, right.1]);
    let (out, left, right, len) = (out.0, left.0, right.0, walk.len);
    walk.rows(|[to, a, b]| match walk.strides {
        [1, a_step @ (0 | 1), b_step @ (0 | 1)] => {
            let (left, right) = (side(left, a, a_step, len), side(right, b, b_step, len));
            kernel::write(&mut out[to..to + len], left, right, f);
        }
        [to_step, a_step, b_step] => {
            for at in 0..len {
                out[to + at * to_step] = f(left[a + at * a_step], right[b + at * b_step]);
            }
        }
    });
}

/// Computes `out = f(out, right)`. Both have one shape.
pub(super) fn update<T: Copy>(
    out: (&mut [T], &Layout),
    right: (&[T], &Layout),
    f: impl Fn(T, T) -> T + Copy,
) {
    let walk = Walk::in_any_order([out.1, right.1]);
    let (out, right, len) = (out.0, right.0, walk.len);
    walk.rows(|[to, b]| match walk.strides {
        [1, b_step @ (0 | 1)] => {
            kernel::update(&mut out[to..to + len], side(right, b, b_step, len), f);
        }
        [to_step, b_step] => {
            for at in 0..len {
                let out = &mut out[to + at * to_step];
                *out = f(*out, right[b + at * b_step]);
            }
        }
    });
}

/// Returns a row of contiguous elements, or one element for the whole row.
#[inline]
fn side<T: Copy>(elements: &[T], start: usize, step: usize, len: usize) -> Side<'_, T> {
    if step == 0 {
        Side::One(elements[start])
    } else {
        Side::Each(&elements[start..start + len])
    }
}

pub(super) fn refuse<R>(operation: &'static str, dtype: DType) -> Result<R, TensorError> {
    Err(TensorError::Unsupported { operation, dtype })
}

/// Returns an error if the output has another type or shape than the result.
pub(super) fn output(
    operation: &'static str,
    (found, there): (DType, &[usize]),
    dtype: DType,
    shape: &[usize],
) -> Result<(), TensorError> {
    if found != dtype {
        return Err(TensorError::DTypes {
            operation,
            left: dtype,
            right: found,
            shapes: [shape.into(), there.into()],
        });
    }
    if there != shape {
        return Err(TensorError::Shapes {
            operation,
            left: there.into(),
            right: shape.into(),
            rule: "the output must have the shape of the result",
        });
    }
    Ok(())
}
