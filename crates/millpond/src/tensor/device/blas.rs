//! Products of matrices as cuBLAS is told of them: which views it can take, and the calls for them.
//!
//! It knows matrices by their columns, which lie a leading dimension apart. One whose rows are contiguous is the transpose of such a
//! one, so where the product's rows are contiguous its transpose is formed, of the transposed factors in the other order.

use super::product::{Batches, Matrices};
use crate::gpu::Gemm;

/// Calls that several dimensions of batches may take: what is more is for the kernel, which takes one launch.
const CALLS: usize = 64;

/// A matrix with contiguous rows or columns, and how far apart these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    by_rows: bool,
    leading: i32,
}

impl Form {
    /// None where neither rows nor columns are contiguous, or elements are repeated. Where both hold rows it is.
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

/// The calls that form products of the left and right matrices into those of the output, whose first elements are at these addresses;
/// none where cuBLAS cannot take them.
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
    // Factors by columns are those that lie as they are wanted where the product does so too.
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
        // One row or column lies as it may.
        assert_eq!(Form::of([1, 4], [0, 1]), form(true, 4));
        assert_eq!(Form::of([1, 4], [77, 5]), form(false, 5));
        assert_eq!(Form::of([4, 1], [5, 77]), form(true, 5));
        assert_eq!(Form::of([1, 1], [0, 0]), form(true, 1));
        // Neither; repeated; too far.
        assert_eq!(Form::of([3, 4], [8, 2]), None);
        assert_eq!(Form::of([3, 4], [0, 1]), None);
        assert_eq!(Form::of([3, 4], [3, 1]), None, "rows overlap");
        assert_eq!(Form::of([3, 4], [1 << 31, 1]), None);
    }
}
