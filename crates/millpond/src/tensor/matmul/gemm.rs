//! The call of `matrixmultiply`, which multiplies matrices of `f32` and `f64` as fast as the processor can.

use super::pair;
use crate::dtype::{DType, Element};
use crate::tensor::view::{TensorMut, TensorRef};

/// What the library's functions take: rows, inner size and columns; a factor, two matrices and a factor of what is in the
/// output; the output. Each matrix with the distance of its rows and that of its columns.
type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    T,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    *mut T,
    isize,
    isize,
);

/// Multiplies, if there is a function for the type. Shapes were found to go together.
pub(super) fn multiply(left: TensorRef<'_>, right: TensorRef<'_>, out: &mut TensorMut<'_>) -> bool {
    match left.dtype() {
        DType::F32 => call::<f32>(matrixmultiply::sgemm, [0.0, 1.0], left, right, out),
        DType::F64 => call::<f64>(matrixmultiply::dgemm, [0.0, 1.0], left, right, out),
        _ => return false,
    }
    true
}

fn call<T: Element>(
    gemm: Gemm<T>,
    [zero, one]: [T; 2],
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    out: &mut TensorMut<'_>,
) {
    let (a, b, c) = (*left.layout(), *right.layout(), *out.layout());
    let ([rows, inner], [_, columns]) = (pair(a.shape()), pair(b.shape()));
    if rows == 0 || columns == 0 {
        return;
    }
    // Places of an empty matrix are not asked for: with nothing to add up the output becomes zero.
    let left = left.plain::<T>().get(a.offset()..).unwrap_or_default();
    let right = right.plain::<T>().get(b.offset()..).unwrap_or_default();
    let to = &mut out.plain_mut::<T>()[c.offset()..];
    let inside = |layout: &crate::tensor::layout::Layout, len: usize| {
        layout.last().is_none_or(|last| last - layout.offset() < len)
    };
    assert!(inside(&a, left.len()) && inside(&b, right.len()) && inside(&c, to.len()));
    let [[a_row, a_column], [b_row, b_column], [c_row, c_column]] =
        [a, b, c].map(|layout| pair(layout.strides()).map(|stride| stride as isize));
    // SAFETY: by the assertion every element of the three, at the distances given, lies in its slice; both inputs are
    // borrowed to be read and the output to be written, for the call and longer; elements of an output have places of
    // their own, as its view's invariant says.
    unsafe {
        gemm(
            rows,
            inner,
            columns,
            one,
            left.as_ptr(),
            a_row,
            a_column,
            right.as_ptr(),
            b_row,
            b_column,
            zero,
            to.as_mut_ptr(),
            c_row,
            c_column,
        );
    }
}
