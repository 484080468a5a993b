//! Calls `matrixmultiply`, which multiplies matrices of `f32` and `f64`.

use super::pair;
use crate::view::{TensorMut, TensorRef};
use millpond_pool::dtype::{DType, Element};

/// The signature of the library's functions: rows, inner size and columns; a factor, two matrices and a factor of the output's
/// previous values; the output. Each matrix has a row stride and a column stride.
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

/// Multiplies if the library has a function for the type, and returns whether it has one. The caller has checked the shapes.
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
    // An empty matrix may have no valid offset. The sum of no products is zero, so the output becomes zero.
    let left = left.plain::<T>().get(a.offset()..).unwrap_or_default();
    let right = right.plain::<T>().get(b.offset()..).unwrap_or_default();
    let to = &mut out.plain_mut::<T>()[c.offset()..];
    let inside = |layout: &crate::layout::Layout, len: usize| {
        layout.last().is_none_or(|last| last - layout.offset() < len)
    };
    assert!(inside(&a, left.len()) && inside(&b, right.len()) && inside(&c, to.len()));
    let [[a_row, a_column], [b_row, b_column], [c_row, c_column]] =
        [a, b, c].map(|layout| pair(layout.strides()).map(|stride| stride as isize));
    // SAFETY: by the assertion every element of the three, at the given strides, lies in its slice. Both inputs are borrowed for
    // reading and the output for writing, for at least the duration of the call. By the invariant of its view, the elements of the
    // output do not overlap.
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
