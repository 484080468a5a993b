//! The elements of several layouts of one shape at once, row by row.
//!
//! Dimensions that lie alike in all of them are joined, so that what is contiguous is one row however many dimensions it
//! has. A row is where each layout's elements begin; how many there are and how far apart is the same for all rows.

use super::layout::{Layout, MAX_RANK};
use std::cmp::Reverse;

/// How to walk: rows of `len` elements, `strides` apart in each of the layouts.
///
/// Every row lies where its layout's elements do.
pub(super) struct Walk<const N: usize> {
    pub(super) len: usize,
    pub(super) strides: [usize; N],
    first: [usize; N],
    /// The first so many are the dimensions above the rows, the outermost first.
    dims: [Dim<N>; MAX_RANK],
    /// None where there are no elements, and so no rows.
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

    /// Whether this and the dimension inside of it are one in every layout.
    fn joins(&self, inner: &Self) -> bool {
        let mut both = self.strides.iter().zip(inner.strides);
        both.all(|(outer, stride)| *outer == stride * inner.size)
    }
}

impl<const N: usize> Walk<N> {
    /// In the order of the elements' indices.
    pub(super) fn in_order(layouts: [&Layout; N]) -> Self {
        Self::new(layouts, false)
    }

    /// In whatever order memory is read and written best in: dimensions with smaller strides inside, the first layout's
    /// before the others'.
    pub(super) fn in_any_order(layouts: [&Layout; N]) -> Self {
        Self::new(layouts, true)
    }

    fn new(layouts: [&Layout; N], sort: bool) -> Self {
        let shape = layouts.first().map_or(&[][..], |first| first.shape());
        debug_assert!(layouts.iter().all(|layout| layout.shape() == shape));
        if layouts.iter().all(|layout| layout.is_contiguous()) {
            // One row, which the rest would find out with more ado: 1,000 elements are added in that time.
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

    /// All dimensions, the outermost first, each with its size and strides; none where there are no elements.
    #[cfg(feature = "cuda")]
    pub(super) fn dims(self) -> Option<impl Iterator<Item = (usize, [usize; N])>> {
        let outer = self.dims.into_iter().take(self.outer?);
        let dims = outer.map(|dim| (dim.size, dim.strides));
        Some(dims.chain([(self.len, self.strides)]))
    }

    /// Calls with the places at which each row begins.
    #[inline]
    pub(super) fn rows(&self, mut row: impl FnMut([usize; N])) {
        let Some(outer) = self.outer.map(|rank| &self.dims[..rank]) else {
            return;
        };
        let mut at = [0; MAX_RANK];
        let mut places = self.first;
        loop {
            row(places);
            // The innermost dimension that has another place goes on to it, those inside of it begin again.
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
