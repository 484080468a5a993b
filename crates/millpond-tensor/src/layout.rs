//! The layout of a view: sizes, strides and the offset of the first element, as integers that count elements.

use super::error::TensorError;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};

/// The largest number of dimensions of a tensor. Shapes and strides are stored inline, so that a view is created without a call to
/// an allocator.
pub const MAX_RANK: usize = 8;

/// The largest number of elements of a shape. The size of a storage in bytes is checked when it is allocated.
const MOST: usize = isize::MAX as usize;

/// A number for each dimension, stored inline.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    /// At most [`MAX_RANK`].
    len: u8,
    numbers: [usize; MAX_RANK],
}

impl Dims {
    pub(crate) fn of(numbers: &[usize]) -> Result<Self, TensorError> {
        let mut dims = Self::filled(numbers.len(), 0)?;
        dims.copy_from_slice(numbers);
        Ok(dims)
    }

    fn one(number: usize) -> Self {
        Self {
            len: 1,
            numbers: [number; MAX_RANK],
        }
    }

    /// Returns the same number for each of `rank` dimensions.
    pub fn filled(rank: usize, number: usize) -> Result<Self, TensorError> {
        let mut dims = Self::one(number);
        dims.resize(rank)?;
        Ok(dims)
    }

    /// Returns these numbers with two more at the end.
    pub(crate) fn and(&self, two: [usize; 2]) -> Result<Self, TensorError> {
        self.insert(self.len(), two[0])?.insert(self.len() + 1, two[1])
    }

    fn insert(&self, at: usize, number: usize) -> Result<Self, TensorError> {
        let mut more = Self::filled(self.len() + 1, number)?;
        more[..at].copy_from_slice(&self[..at]);
        more[at + 1..].copy_from_slice(&self[at..]);
        Ok(more)
    }

    #[inline]
    fn remove(&mut self, at: usize) {
        // The numbers are moved one by one. There are few, and a call of `memmove` would take longer.
        let mut dims = self.numbers.iter_mut().skip(at).peekable();
        while let Some(number) = dims.next() {
            if let Some(next) = dims.peek() {
                *number = **next;
            }
        }
        self.len -= 1;
    }

    #[inline]
    fn resize(&mut self, rank: usize) -> Result<(), TensorError> {
        if rank > MAX_RANK {
            let most = MAX_RANK;
            return Err(TensorError::Rank { found: rank, most });
        }
        self.len = rank as u8;
        Ok(())
    }

    #[inline]
    fn set(&mut self, numbers: &[usize]) -> Result<(), TensorError> {
        self.resize(numbers.len())?;
        for (dim, number) in self.iter_mut().zip(numbers) {
            *dim = *number;
        }
        Ok(())
    }

    /// Sets the strides of contiguous elements of the shape.
    #[inline]
    fn set_contiguous(&mut self, shape: &[usize]) -> Result<(), TensorError> {
        self.resize(shape.len())?;
        let mut stride = 1;
        for (dim, size) in self.iter_mut().zip(shape).rev() {
            *dim = stride;
            stride *= (*size).max(1);
        }
        Ok(())
    }
}

impl Deref for Dims {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        &self.numbers[..usize::from(self.len)]
    }
}

impl DerefMut for Dims {
    #[inline]
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.numbers[..usize::from(self.len)]
    }
}

/// Returns the number of elements of a shape.
pub fn count(shape: &[usize]) -> Result<usize, TensorError> {
    // Sizes of 0 are left out of the product, because strides must not overflow even if a size is 0.
    let mut product = shape.iter().filter(|size| **size > 0);
    let product = product.try_fold(1_usize, |product, size| product.checked_mul(*size));
    match product {
        Some(product) if product <= MOST => Ok(if shape.contains(&0) { 0 } else { product }),
        _ => Err(TensorError::TooLarge { shape: shape.into() }),
    }
}

/// Returns the shape to which two shapes are broadcast when dimensions of size 1 are repeated.
pub(crate) fn broadcast(
    operation: &'static str,
    left: &[usize],
    right: &[usize],
) -> Result<Dims, TensorError> {
    let (long, short) = if left.len() < right.len() {
        (right, left)
    } else {
        (left, right)
    };
    let mut shape = Dims::of(long)?;
    let first = long.len() - short.len();
    for (size, other) in shape[first..].iter_mut().zip(short) {
        *size = match (*size, *other) {
            (size, other) if size == other => size,
            (1, other) => other,
            (size, 1) => size,
            _ => {
                return Err(TensorError::Shapes {
                    operation,
                    left: left.into(),
                    right: right.into(),
                    rule: "the sizes must be equal, counted from the last dimension, or one of them must be 1",
                });
            }
        };
    }
    Ok(shape)
}

/// The offsets of a view's elements in its memory.
///
/// Invariant: the number of elements does not overflow. If there are any, `offset` plus the sum of `(size - 1) * stride`, and so
/// the offset of every element, does not overflow either. If there are none, `offset` is 0.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    shape: Dims,
    strides: Dims,
    offset: usize,
}

impl Layout {
    /// Creates a layout of contiguous elements in row-major order, with offset 0.
    pub(crate) fn contiguous(shape: &[usize]) -> Result<Self, TensorError> {
        count(shape)?;
        let shape = Dims::of(shape)?;
        let mut strides = shape;
        strides.set_contiguous(&shape)?;
        Ok(Self {
            shape,
            strides,
            offset: 0,
        })
    }

    /// Creates a contiguous layout of a shape that has to have `found` elements.
    pub(crate) fn of_elements(shape: &[usize], found: usize) -> Result<Self, TensorError> {
        let layout = Self::contiguous(shape)?;
        if layout.len() == found {
            return Ok(layout);
        }
        Err(TensorError::Elements {
            shape: shape.into(),
            expected: layout.len(),
            found,
        })
    }

    /// Creates a layout of one dimension.
    pub(crate) fn vector(len: usize) -> Self {
        Self {
            shape: Dims::one(len),
            strides: Dims::one(1),
            offset: 0,
        }
    }

    /// Creates a layout with the given strides. Returns `None` if elements would overlap or not lie in the first `len` elements.
    #[cfg(feature = "ndarray")]
    pub(crate) fn strided(shape: &[usize], strides: &[usize], len: usize) -> Option<Self> {
        let layout = Self::spaced(shape, strides).ok()?;
        (layout.is_apart() && layout.last().is_none_or(|last| last < len)).then_some(layout)
    }

    /// Creates a layout with the given strides, one for each dimension, and offset 0. Elements may overlap.
    #[cfg(any(feature = "dlpack", feature = "ndarray"))]
    pub(crate) fn spaced(shape: &[usize], strides: &[usize]) -> Result<Self, TensorError> {
        let mut layout = Self::contiguous(shape)?;
        if layout.len() == 0 {
            return Ok(layout);
        }
        let mut last = 0_usize;
        for (dim, (size, stride)) in shape.iter().zip(strides).enumerate() {
            let reach = stride.checked_mul(size - 1);
            let reach = reach.and_then(|reach| reach.checked_add(last));
            last = reach
                .filter(|last| *last < MOST)
                .ok_or_else(|| TensorError::TooLarge { shape: shape.into() })?;
            layout.strides[dim] = *stride;
        }
        Ok(layout)
    }

    /// Sets the offset.
    #[cfg(feature = "ndarray")]
    pub(crate) fn begin_at(&mut self, first: usize) {
        self.offset = first;
        self.settle();
    }

    /// Returns whether the strides alone prove that no elements overlap. If this returns false, the elements do not necessarily
    /// overlap.
    #[cfg(any(feature = "dlpack", feature = "ndarray"))]
    pub(crate) fn is_apart(&self) -> bool {
        if self.len() == 0 {
            return true;
        }
        let mut by_stride = [(0, 1); MAX_RANK];
        for (at, dim) in self.strides.iter().zip(self.shape.iter()).enumerate() {
            by_stride[at] = (*dim.0, *dim.1);
        }
        by_stride.sort_unstable();
        let mut last = 0;
        by_stride
            .iter()
            .filter(|(_, size)| *size > 1)
            .all(|(stride, size)| {
                let apart = *stride > last;
                last += stride * (size - 1);
                apart
            })
    }

    /// Creates a layout in which one element is repeated at every index of a shape.
    pub(crate) fn repeated(shape: Dims) -> Self {
        let mut strides = shape;
        strides.fill(0);
        Self {
            shape,
            strides,
            offset: 0,
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn dims(&self) -> Dims {
        self.shape
    }

    /// Returns the offset of the element that lies last in memory, or `None` if there are no elements.
    pub(crate) fn last(&self) -> Option<usize> {
        let dims = self.shape.iter().zip(self.strides.iter());
        let reach: usize = dims.map(|(size, stride)| size.saturating_sub(1) * stride).sum();
        (self.len() > 0).then_some(self.offset + reach)
    }

    /// Returns whether elements are contiguous in memory, in row-major order.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let dims = self.shape.iter().zip(self.strides.iter()).rev();
        self.len() == 0
            || dims.filter(|(size, _)| **size > 1).all(|(size, stride)| {
                let follows = *stride == expected;
                expected *= size;
                follows
            })
    }

    /// Returns whether some elements overlap. Only a stride of 0 can cause this. Other strides come from slicing and permuting
    /// contiguous memory, or were checked by `is_apart`. Imported memory whose strides fail that check is read-only.
    pub(crate) fn overlaps(&self) -> bool {
        let mut dims = self.shape.iter().zip(self.strides.iter());
        self.len() > 0 && dims.any(|(size, stride)| *size > 1 && *stride == 0)
    }

    /// Returns an error if some elements [overlap](Self::overlaps).
    pub(crate) fn expect_apart(&self) -> Result<(), TensorError> {
        if self.overlaps() {
            return Err(self.overlapping());
        }
        Ok(())
    }

    /// Returns the error for elements that overlap.
    pub(crate) fn overlapping(&self) -> TensorError {
        TensorError::Overlapping {
            shape: self.shape().into(),
            strides: self.strides().into(),
        }
    }

    /// Returns the offset of an element, or an error if the index is out of bounds.
    pub(crate) fn place(&self, index: &[usize]) -> Result<usize, TensorError> {
        let inside = index.len() == self.rank() && index.iter().zip(self.shape()).all(|(at, size)| at < size);
        if !inside {
            return Err(TensorError::Index {
                index: index.into(),
                shape: self.shape().into(),
            });
        }
        let steps = index.iter().zip(self.strides());
        Ok(self.offset + steps.map(|(at, stride)| at * stride).sum::<usize>())
    }

    /// Returns the size of a dimension.
    pub(crate) fn size(&self, dim: usize) -> Result<usize, TensorError> {
        self.shape.get(dim).copied().ok_or_else(|| TensorError::Dim {
            dim,
            shape: self.shape().into(),
        })
    }

    /// Returns a copy of this layout to which a change was applied.
    #[inline]
    pub(crate) fn changed(
        mut self,
        change: impl FnOnce(&mut Self) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        change(&mut self)?;
        Ok(self)
    }

    /// Sets the offset to 0 if there are no elements, as the invariant requires.
    #[inline]
    fn settle(&mut self) {
        if self.shape.contains(&0) {
            self.offset = 0;
        }
    }

    /// Restricts a dimension to a range. Like the changes below, this leaves the layout unchanged if it returns an error.
    #[inline]
    pub(crate) fn slice(&mut self, dim: usize, range: impl RangeBounds<usize>) -> Result<(), TensorError> {
        let size = self.size(dim)?;
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => size,
        };
        if start > end || end > size {
            return Err(TensorError::Range {
                dim,
                start,
                end,
                size,
            });
        }
        self.shape[dim] = end - start;
        if start < end {
            self.offset += start * self.strides[dim];
        }
        self.settle();
        Ok(())
    }

    /// Restricts a dimension to every `step`-th index, starting with 0.
    #[inline]
    pub(crate) fn step(&mut self, dim: usize, step: usize) -> Result<(), TensorError> {
        let size = self.size(dim)?;
        if step == 0 {
            return Err(TensorError::Zero { what: "the step" });
        }
        self.shape[dim] = size.div_ceil(step);
        if self.shape[dim] > 1 {
            self.strides[dim] *= step;
        }
        Ok(())
    }

    /// Selects one index of a dimension and removes the dimension.
    #[inline]
    pub(crate) fn select(&mut self, dim: usize, at: usize) -> Result<(), TensorError> {
        let end = at.saturating_add(1);
        self.slice(dim, at..end)?;
        self.remove(dim);
        Ok(())
    }

    /// Returns the layout without a dimension: the layout of the elements with index 0 in the dimension, even if its size is 0.
    pub(crate) fn gone(&self, dim: usize) -> Result<Self, TensorError> {
        self.size(dim)?;
        let mut gone = *self;
        gone.remove(dim);
        Ok(gone)
    }

    #[inline]
    fn remove(&mut self, dim: usize) {
        self.shape.remove(dim);
        self.strides.remove(dim);
    }

    /// Changes the order of dimensions.
    #[inline]
    pub(crate) fn permute(&mut self, order: &[usize]) -> Result<(), TensorError> {
        let each = (0..self.rank()).all(|dim| order.contains(&dim));
        if !each || order.len() != self.rank() {
            return Err(TensorError::Order {
                order: order.into(),
                shape: self.shape().into(),
            });
        }
        let before = *self;
        for (to, from) in order.iter().enumerate() {
            self.shape[to] = before.shape[*from];
            self.strides[to] = before.strides[*from];
        }
        Ok(())
    }

    /// Exchanges two dimensions.
    #[inline]
    pub(crate) fn transpose(&mut self, one: usize, other: usize) -> Result<(), TensorError> {
        self.size(one)?;
        self.size(other)?;
        self.shape.swap(one, other);
        self.strides.swap(one, other);
        Ok(())
    }

    /// Removes a dimension of size 1.
    pub(crate) fn squeeze(&mut self, dim: usize) -> Result<(), TensorError> {
        match self.size(dim)? {
            1 => {
                self.remove(dim);
                Ok(())
            }
            size => Err(TensorError::NotOne { dim, size }),
        }
    }

    /// Inserts a dimension of size 1 before the dimension that has the index `dim`.
    pub(crate) fn unsqueeze(&mut self, dim: usize) -> Result<(), TensorError> {
        if dim > self.rank() {
            let shape = self.shape().into();
            return Err(TensorError::Dim { dim, shape });
        }
        *self = Self {
            shape: self.shape.insert(dim, 1)?,
            strides: self.strides.insert(dim, 0)?,
            offset: self.offset,
        };
        Ok(())
    }

    /// Repeats dimensions of size 1, and adds new ones before the first.
    pub(crate) fn broadcast_to(&mut self, shape: &[usize]) -> Result<(), TensorError> {
        *self = self.repeat_to("broadcast_to", shape)?;
        Ok(())
    }

    /// Broadcasts the layout for an operation whose other operand, or output, has the shape.
    pub(crate) fn repeat_to(&self, operation: &'static str, shape: &[usize]) -> Result<Self, TensorError> {
        let refuse = || TensorError::Shapes {
            operation,
            left: shape.into(),
            right: self.shape().into(),
            rule: "the sizes must be equal, counted from the last dimension, or the size of the second must be 1",
        };
        count(shape)?;
        let first = shape.len().checked_sub(self.rank()).ok_or_else(refuse)?;
        let shape = Dims::of(shape)?;
        let mut strides = Dims::filled(shape.len(), 0)?;
        for dim in 0..self.rank() {
            match (self.shape[dim], shape[first + dim]) {
                (old, new) if old == new => strides[first + dim] = self.strides[dim],
                (1, _) => {}
                _ => return Err(refuse()),
            }
        }
        let mut repeated = Self {
            shape,
            strides,
            offset: self.offset,
        };
        repeated.settle();
        Ok(repeated)
    }

    /// Changes the shape to another one with the same number of elements.
    #[inline]
    pub(crate) fn reshape(&mut self, shape: &[usize]) -> Result<(), TensorError> {
        let expected = count(shape)?;
        if expected != self.len() {
            return Err(TensorError::Elements {
                shape: shape.into(),
                expected,
                found: self.len(),
            });
        }
        if self.is_contiguous() {
            self.shape.set(shape)?;
            return self.strides.set_contiguous(shape);
        }
        self.bend(shape)
    }

    /// Changes the shape of a layout that is not contiguous.
    #[inline(never)]
    fn bend(&mut self, shape: &[usize]) -> Result<(), TensorError> {
        let mut bent = Self::contiguous(shape)?;
        bent.offset = self.offset;
        if !self.follow(&mut bent) {
            return Err(TensorError::NotAView {
                from: self.shape().into(),
                strides: self.strides().into(),
                to: shape.into(),
            });
        }
        *self = bent;
        Ok(())
    }

    /// Finds the strides of another shape with the same number of elements, and returns whether they exist. The dimensions of both
    /// shapes are divided into the smallest groups that have the same number of elements in both. Within a group the elements must
    /// be evenly spaced.
    fn follow(&self, new: &mut Self) -> bool {
        // The stride of a dimension of size 1 has no meaning.
        let mut old: [(usize, usize); MAX_RANK] = [(1, 1); MAX_RANK];
        let mut olds = 0;
        for (size, stride) in self.shape.iter().zip(self.strides.iter()) {
            if *size != 1 {
                old[olds] = (*size, *stride);
                olds += 1;
            }
        }
        let (mut from, mut to) = (0, 0);
        while from < olds && to < new.rank() {
            let (mut many, mut wanted) = (old[from].0, new.shape[to]);
            let (mut old_end, mut new_end) = (from + 1, to + 1);
            // This ends before the end of either shape, because both have the same number of elements in total.
            while many != wanted {
                if wanted < many {
                    wanted *= new.shape[new_end];
                    new_end += 1;
                } else {
                    many *= old[old_end].0;
                    old_end += 1;
                }
            }
            let mut neighbours = old[from..old_end].windows(2);
            let even = neighbours.all(|two| two[0].1 == two[1].0 * two[1].1);
            if !even {
                return false;
            }
            let mut stride = old[old_end - 1].1;
            for dim in (to..new_end).rev() {
                new.strides[dim] = stride;
                stride *= new.shape[dim];
            }
            (from, to) = (old_end, new_end);
        }
        true
    }

    /// Splits the layout at an index of a dimension and returns the layouts of both parts.
    pub(crate) fn split(&self, dim: usize, at: usize) -> Result<(Self, Self), TensorError> {
        let first = self.changed(|part| part.slice(dim, ..at))?;
        let second = self.changed(|part| part.slice(dim, at..))?;
        Ok((first, second))
    }

    /// Returns the layout with its offset reduced.
    pub(crate) fn moved_down(mut self, by: usize) -> Self {
        self.offset = self.offset.saturating_sub(by);
        self
    }
}
