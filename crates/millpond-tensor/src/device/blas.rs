//! Products of matrices by cuBLAS: which views it supports, and the calls for them.
//!
//! cuBLAS matrices are column-major, with a leading dimension between columns. A matrix with contiguous rows is the
//! transpose of such a matrix. If the rows of the product are contiguous, its transpose is computed from the transposed
//! factors in reverse order.

use super::product::{Batches, Matrices};
use millpond_cuda::Gemm;

/// The maximum number of calls for several batch dimensions. Larger products use the kernel, which needs one launch.
const CALLS: usize = 64;

/// A matrix with contiguous rows or columns, and the distance between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    by_rows: bool,
    leading: i32,
}

impl Form {
    /// Returns the form of a matrix, or `None` if neither rows nor columns are contiguous, or if elements are repeated.
    /// If both are contiguous, the result is by rows.
    fn of([rows, columns]: [usize; 2], [down, along]: [usize; 2]) -> Option<Self> {
        let form = |by_rows, (outer, outer_apart): (usize, usize), (inner, inner_apart): (usize, usize)| {
            let contiguous = inner <= 1 || inner_apart == 1;
            let apart = outer <= 1 || outer_apart >= inner;
            let leading = if outer <= 1 { inner.max(1) } else { outer_apart };
            let leading = i32::try_from(leading).ok()?;
            (contiguous && apart).then_some(Self { by_rows, leading })
        };
        let rows_first = form(true, (rows, down), (columns, along));
        rows_first.or_else(|| form(false, (columns, along), (rows, down)))
    }
}

/// Returns the calls that compute the products of the left and right matrices into the output. `addresses` are those of
/// the first elements. Returns `None` if cuBLAS does not support the matrices.
pub(super) fn calls(
    [out, left, right]: [&Matrices; 3],
    addresses: [u64; 3],
    batches: &Batches,
    element: usize,
) -> Option<Vec<Gemm>> {
    let inner = left.shape[1];
    if inner == 0 {
        return None;
    }
    let form = |of: &Matrices| Form::of(of.shape, of.strides);
    let (to, first, second) = (form(out)?, form(left)?, form(right)?);
    let [rows, columns] = out.shape;
    // If the product is column-major, column-major factors need no transposition.
    let wanted = |factor: Form| factor.by_rows != to.by_rows;
    let (sizes, forms, order) = if to.by_rows {
        ([columns, rows], [second, first], [2, 1, 0])
    } else {
        ([rows, columns], [first, second], [1, 2, 0])
    };
    let [rows, columns] = sizes;
    let int = |size: usize| i32::try_from(size).ok();
    let (many, apart, outer) = batches.parts(CALLS)?;
    let plain = Gemm {
        transposed: forms.map(wanted),
        rows: int(rows)?,
        columns: int(columns)?,
        inner: int(inner)?,
        addresses: [0; 3],
        leading: [forms[0].leading, forms[1].leading, to.leading],
        apart: order.map(|side| apart[side] as i64),
        many: int(many)?,
    };
    let call = |places: [usize; 3]| Gemm {
        addresses: order.map(|side| addresses[side] + (places[side] * element) as u64),
        ..plain
    };
    Some(outer.into_iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_or_columns_have_to_be_contiguous() {
        let form = |by_rows, leading| Some(Form { by_rows, leading });
        assert_eq!(Form::of([3, 4], [4, 1]), form(true, 4));
        assert_eq!(Form::of([3, 4], [9, 1]), form(true, 9), "columns of a wider one");
        assert_eq!(Form::of([3, 4], [1, 3]), form(false, 3));
        assert_eq!(Form::of([3, 4], [1, 8]), form(false, 8));
        // With a single row or column, the other stride is arbitrary.
        assert_eq!(Form::of([1, 4], [0, 1]), form(true, 4));
        assert_eq!(Form::of([1, 4], [77, 5]), form(false, 5));
        assert_eq!(Form::of([4, 1], [5, 77]), form(true, 5));
        assert_eq!(Form::of([1, 1], [0, 0]), form(true, 1));
        // Here neither rows nor columns are contiguous, elements overlap, or a stride is too large.
        assert_eq!(Form::of([3, 4], [8, 2]), None);
        assert_eq!(Form::of([3, 4], [0, 1]), None);
        assert_eq!(Form::of([3, 4], [3, 1]), None, "rows overlap");
        assert_eq!(Form::of([3, 4], [1 << 31, 1]), None);
    }
}
