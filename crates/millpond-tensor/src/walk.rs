//! Iterates over the elements of several layouts of one shape, row by row.
//!
//! Dimensions that can be joined in all layouts are joined, so that contiguous elements are one row regardless of the number of
//! dimensions. A row is given by the offset of its first element in each layout. The length and the strides are the same for all
//! rows.

use super::layout::{Layout, MAX_RANK};
use std::cmp::Reverse;

/// The description of an iteration: rows of `len` elements, `strides` apart in each of the layouts.
///
/// Invariant: every row lies inside its layout's elements.
pub(super) struct Walk<const N: usize> {
    pub(super) len: usize,
    pub(super) strides: [usize; N],
    first: [usize; N],
    /// The first `outer` entries are the dimensions around the rows, the outermost first.
    dims: [Dim<N>; MAX_RANK],
    /// `None` if there are no elements, and so no rows.
    outer: Option<usize>,
}

#[derive(Clone, Copy)]
struct Dim<const N: usize> {
    size: usize,
    strides: [usize; N],
}

impl<const N: usize> Dim<N> {
    const ONE: Self = Self {
        size: 1,
        strides: [0; N],
    };

    /// Returns whether this dimension and the next inner one can be joined in every layout.
    fn joins(&self, inner: &Self) -> bool {
        let mut both = self.strides.iter().zip(inner.strides);
        both.all(|(outer, stride)| *outer == stride * inner.size)
    }
}

impl<const N: usize> Walk<N> {
    /// Iterates in the order of the elements' indices.
    pub(super) fn in_order(layouts: [&Layout; N]) -> Self {
        Self::new(layouts, false)
    }

    /// Iterates in the order that is fastest for memory: dimensions with smaller strides are inner ones. The strides of the first
    /// layout are compared before the others'.
    pub(super) fn in_any_order(layouts: [&Layout; N]) -> Self {
        Self::new(layouts, true)
    }

    fn new(layouts: [&Layout; N], sort: bool) -> Self {
        let shape = layouts.first().map_or(&[][..], |first| first.shape());
        debug_assert!(layouts.iter().all(|layout| layout.shape() == shape));
        if layouts.iter().all(|layout| layout.is_contiguous()) {
            // A single row is handled first, because the general case below takes as long as 1,000 additions.
            let len = layouts.first().map_or(0, |first| first.len());
            return Self {
                len,
                strides: [1; N],
                first: layouts.map(Layout::offset),
                dims: [Dim::ONE; MAX_RANK],
                outer: (len > 0).then_some(0),
            };
        }
        let mut dims = [Dim::ONE; MAX_RANK];
        let mut rank = 0;
        for (dim, size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
            dims[rank] = Dim {
                size: *size,
                strides: layouts.map(|layout| layout.strides()[dim]),
            };
            rank += 1;
        }
        if sort {
            dims[..rank].sort_unstable_by_key(|dim| Reverse(dim.strides));
        }
        let mut joined = 0;
        for at in 0..rank {
            let dim = dims[at];
            if joined > 0 && dims[joined - 1].joins(&dim) {
                dims[joined - 1] = Dim {
                    size: dims[joined - 1].size * dim.size,
                    strides: dim.strides,
                };
            } else {
                dims[joined] = dim;
                joined += 1;
            }
        }
        let rank = joined.saturating_sub(1);
        let row = if joined > 0 { dims[rank] } else { Dim::ONE };
        Self {
            len: row.size,
            strides: row.strides,
            first: layouts.map(Layout::offset),
            dims,
            outer: (!shape.contains(&0)).then_some(rank),
        }
    }

    /// Returns all dimensions, the outermost first, each with its size and strides, or `None` if there are no elements.
    #[cfg(feature = "cuda")]
    pub(super) fn dims(self) -> Option<impl Iterator<Item = (usize, [usize; N])>> {
        let outer = self.dims.into_iter().take(self.outer?);
        let dims = outer.map(|dim| (dim.size, dim.strides));
        Some(dims.chain([(self.len, self.strides)]))
    }

    /// Calls `row` for each row, with the offset at which the row begins in each layout.
    #[inline]
    pub(super) fn rows(&self, mut row: impl FnMut([usize; N])) {
        let Some(outer) = self.outer.map(|rank| &self.dims[..rank]) else {
            return;
        };
        let mut at = [0; MAX_RANK];
        let mut places = self.first;
        loop {
            row(places);
            // The innermost dimension that is not at its last index advances by 1. The dimensions inside it restart at 0.
            let mut dims = outer.iter().zip(&mut at).rev();
            loop {
                let Some((dim, at)) = dims.next() else {
                    return;
                };
                *at += 1;
                if *at < dim.size {
                    for (place, stride) in places.iter_mut().zip(dim.strides) {
                        *place += stride;
                    }
                    break;
                }
                *at = 0;
                for (place, stride) in places.iter_mut().zip(dim.strides) {
                    *place -= stride * (dim.size - 1);
                }
            }
        }
    }
}
