//! Views that borrow: of tensors, and of slices that are no tensor's.

use super::Tensor;
use super::error::TensorError;
use super::expect;
use super::layout::Layout;
use super::number::{elements, elements_mut, with_number};
use super::scalar::Scalar;
use super::walk::Walk;
use crate::block::Owner;
use crate::dtype::{DType, Element};
use bytemuck::Pod;
use std::io::{self, Write};

/// A view of elements, to read, for as long as they are borrowed. Copied without a copy of the elements.
///
/// Of a [`Tensor`](super::Tensor) by [`view`](super::Tensor::view), or of a slice:
///
/// ```
/// use millpond::{Tensor, TensorRef};
///
/// let prices = [3.0f64, 1.0, 2.0, 6.0];
/// let table = TensorRef::from_slice(&prices, [2, 2])?;
/// let sums = table.sum_dim(0)?;
/// assert_eq!(sums.as_slice::<f64>()?, [5.0, 7.0]);
/// # Ok::<(), millpond::TensorError>(())
/// ```
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    /// Whole elements of the type, aligned for it.
    bytes: &'a [u8],
    /// The owner that allocated the memory, if that is a pool, tenant or source. Results computed from the elements are
    /// allocated there.
    home: Option<&'a Owner>,
    dtype: DType,
    /// Its elements lie in `bytes`.
    layout: Layout,
}

/// A view of elements, to write too, for as long as they are borrowed. Nobody else sees them meanwhile, and no two of its
/// elements share memory.
///
/// What makes another view of it takes this one; [`reborrow`](Self::reborrow) lends it for a while.
///
/// ```
/// use millpond::TensorMut;
///
/// let mut pixels = [0u8; 6];
/// let mut image = TensorMut::from_slice(&mut pixels, [2, 3])?;
/// image.reborrow().select(0, 1)?.fill(255)?;
/// let (mut left, _) = image.transpose(0, 1)?.select(1, 0)?.split_at(0, 1)?;
/// left.fill(7)?;
/// assert_eq!(pixels, [7, 0, 0, 255, 255, 255]);
/// # Ok::<(), millpond::TensorError>(())
/// ```
pub struct TensorMut<'a> {
    /// Whole elements of the type, aligned for it.
    bytes: &'a mut [u8],
    /// The owner that allocated the memory, as in [`TensorRef`].
    home: Option<&'a Owner>,
    dtype: DType,
    /// Its elements lie in `bytes`, each in a place of its own.
    layout: Layout,
}

impl<'a> TensorRef<'a> {
    pub(super) fn of(bytes: &'a [u8], dtype: DType, layout: Layout) -> Self {
        debug_assert!(layout.last().is_none_or(|last| last < bytes.len() / dtype.size()));
        let home = None;
        Self {
            bytes,
            home,
            dtype,
            layout,
        }
    }

    /// Returns the same view with `home` as the owner of its memory.
    #[inline]
    pub(super) fn at_home(self, home: Option<&'a Owner>) -> Self {
        Self { home, ..self }
    }

    /// Returns the owner that allocates results computed from the elements, or `None` for the current set of pools.
    pub(super) fn home(&self) -> Option<&'a Owner> {
        self.home
    }

    /// A slice as a view of a shape, row after row.
    ///
    /// # Errors
    /// Where the shape has another number of elements.
    pub fn from_slice<T: Element>(values: &'a [T], shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        let layout = shaped(values.len(), shape.as_ref())?;
        Ok(Self::of(bytemuck::cast_slice(values), T::DTYPE, layout))
    }

    /// Bytes as a view of a shape, row after row. They are whole elements of the type, aligned for it.
    pub(crate) fn from_bytes(bytes: &'a [u8], dtype: DType, shape: &[usize]) -> Result<Self, TensorError> {
        let layout = shaped(bytes.len() / dtype.size(), shape)?;
        // Where nothing is, it is aligned for all types.
        let bytes = if bytes.is_empty() {
            bytemuck::cast_slice::<u128, u8>(&[])
        } else {
            bytes
        };
        debug_assert!(bytes.as_ptr().addr().is_multiple_of(dtype.align()));
        Ok(Self::of(bytes, dtype, layout))
    }

    /// Writes the elements' bytes in order, whether they follow one another in memory or not.
    pub(crate) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let size = self.dtype.size();
        if self.layout.is_contiguous() {
            let start = self.layout.offset() * size;
            return out.write_all(&self.bytes[start..start + self.len() * size]);
        }
        let mut outcome = Ok(());
        self.places(|place| {
            if outcome.is_ok() {
                outcome = out.write_all(&self.bytes[place * size..][..size]);
            }
        });
        outcome
    }

    /// The elements, where they follow one another in memory.
    ///
    /// # Errors
    /// Where they do not, or are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], TensorError> {
        expect(T::DTYPE, self.dtype)?;
        contiguous(&self.layout)?;
        let start = self.layout.offset();
        Ok(&self.plain::<T>()[start..start + self.layout.len()])
    }

    /// An element.
    ///
    /// # Errors
    /// Where there is no such element.
    pub fn get(&self, index: &[usize]) -> Result<Scalar, TensorError> {
        let place = self.layout.place(index)?;
        Ok(self.scalar(place))
    }

    /// The only element of a tensor that has one.
    ///
    /// # Errors
    /// Where there are none or several.
    pub fn item(&self) -> Result<Scalar, TensorError> {
        let one = self.layout.changed(|layout| layout.reshape(&[]))?;
        Ok(self.scalar(one.offset()))
    }

    /// The elements in order, copied out.
    ///
    /// # Errors
    /// Where they are of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        expect(T::DTYPE, self.dtype)?;
        if let Ok(elements) = self.as_slice() {
            return Ok(elements.to_vec());
        }
        Ok(self.collect(|element: T| element))
    }

    /// The elements in order, copied out, as truth values: what is not 0 is true.
    ///
    /// # Errors
    /// Where they are not of [`DType::Bool`].
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        expect(DType::Bool, self.dtype)?;
        Ok(self.collect(|byte: u8| byte != 0))
    }

    fn collect<T: Pod, R>(&self, of: impl Fn(T) -> R) -> Vec<R> {
        let elements = self.plain::<T>();
        let mut all = Vec::with_capacity(self.layout.len());
        self.places(|place| all.push(of(elements[place])));
        all
    }

    /// Calls with the places of the elements in the memory, in the elements' order.
    pub(super) fn places(&self, mut at: impl FnMut(usize)) {
        let walk = Walk::in_order([&self.layout]);
        let [stride] = walk.strides;
        walk.rows(|[start]| (0..walk.len).for_each(|step| at(start + step * stride)));
    }

    /// The element at a place of the memory.
    pub(super) fn scalar(&self, place: usize) -> Scalar {
        with_number!(
            self.dtype,
            T => self.plain::<T>()[place].into(),
            else {
                match self.dtype {
                    DType::Bool => Scalar::Bool(self.bytes[place] != 0),
                    // Half precision without the feature that computes with it.
                    dtype => Scalar::Float(super::display::half_as_f64(dtype, self.plain::<u16>()[place])),
                }
            }
        )
    }

    /// All the memory the view lies in, as elements: of its type, or of a plain one as large.
    pub(super) fn plain<T: Pod>(&self) -> &'a [T] {
        elements(self.bytes)
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Their bytes, of a view in which they follow one another.
    #[cfg(feature = "cuda")]
    pub(super) fn flat_bytes(&self) -> &'a [u8] {
        let size = self.dtype.size();
        &self.bytes[self.layout.offset() * size..][..self.len() * size]
    }

    /// The elements of a view in which they follow one another.
    #[inline]
    pub(super) fn flat<T: Pod>(&self) -> &'a [T] {
        &self.plain()[self.layout.offset()..][..self.layout.len()]
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    pub(super) fn with(&self, layout: Layout) -> Self {
        Self::of(self.bytes, self.dtype, layout).at_home(self.home)
    }

    /// Where a change of the layout leads, in the same memory.
    #[inline]
    pub(super) fn viewed(
        mut self,
        change: impl FnOnce(&mut Layout) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        change(&mut self.layout)?;
        debug_assert!(
            self.layout
                .last()
                .is_none_or(|last| last < self.bytes.len() / self.dtype.size())
        );
        Ok(self)
    }
}

/// A view of one dimension; nothing is copied.
impl<'a, T: Element> From<&'a [T]> for TensorRef<'a> {
    fn from(values: &'a [T]) -> Self {
        let layout = Layout::vector(values.len());
        Self::of(bytemuck::cast_slice(values), T::DTYPE, layout)
    }
}

/// A view of one dimension; nothing is copied.
impl<'a, T: Element> From<&'a mut [T]> for TensorMut<'a> {
    fn from(values: &'a mut [T]) -> Self {
        let layout = Layout::vector(values.len());
        Self::of(bytemuck::cast_slice_mut(values), T::DTYPE, layout)
    }
}

impl<'a> TensorMut<'a> {
    pub(super) fn of(bytes: &'a mut [u8], dtype: DType, layout: Layout) -> Self {
        debug_assert!(layout.last().is_none_or(|last| last < bytes.len() / dtype.size()));
        debug_assert!(!layout.overlaps());
        let home = None;
        Self {
            bytes,
            home,
            dtype,
            layout,
        }
    }

    /// Returns the same view with `home` as the owner of its memory.
    #[inline]
    pub(super) fn at_home(self, home: Option<&'a Owner>) -> Self {
        Self { home, ..self }
    }

    /// A slice as a view of a shape, row after row.
    ///
    /// # Errors
    /// Where the shape has another number of elements.
    pub fn from_slice<T: Element>(
        values: &'a mut [T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let layout = shaped(values.len(), shape.as_ref())?;
        Ok(Self::of(bytemuck::cast_slice_mut(values), T::DTYPE, layout))
    }

    /// Bytes as a view of a shape, row after row. They are whole elements of the type, aligned for it.
    pub(crate) fn from_bytes(
        bytes: &'a mut [u8],
        dtype: DType,
        shape: &[usize],
    ) -> Result<Self, TensorError> {
        let layout = shaped(bytes.len() / dtype.size(), shape)?;
        debug_assert!(bytes.as_ptr().addr().is_multiple_of(dtype.align()));
        Ok(Self::of(bytes, dtype, layout))
    }

    /// The same view, lent.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut::of(self.bytes, self.dtype, self.layout).at_home(self.home)
    }

    /// The same view, to read.
    #[must_use]
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef::of(self.bytes, self.dtype, self.layout).at_home(self.home)
    }

    /// The elements, where they follow one another in memory.
    ///
    /// # Errors
    /// Where they do not, or are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.as_ref().as_slice()
    }

    /// The elements, to be written too, where they follow one another in memory.
    ///
    /// # Errors
    /// Where they do not, or are of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.reborrow().into_mut_slice()
    }

    /// The elements as bytes, to be written too, where they follow one another in memory.
    pub(crate) fn as_mut_bytes(&mut self) -> Result<&mut [u8], TensorError> {
        contiguous(&self.layout)?;
        let size = self.dtype.size();
        let (start, len) = (self.layout.offset() * size, self.layout.len() * size);
        Ok(&mut self.bytes[start..start + len])
    }

    /// The same, for as long as the view would have lived.
    ///
    /// # Errors
    /// Where they do not follow one another in memory, or are of another type.
    pub fn into_mut_slice<T: Element>(self) -> Result<&'a mut [T], TensorError> {
        expect(T::DTYPE, self.dtype)?;
        contiguous(&self.layout)?;
        let start = self.layout.offset();
        Ok(&mut elements_mut(self.bytes)[start..start + self.layout.len()])
    }

    /// Writes an element.
    ///
    /// # Errors
    /// Where there is no such element, or the number is none of its type.
    pub fn set(&mut self, index: &[usize], value: impl Into<Scalar>) -> Result<(), TensorError> {
        let place = self.layout.place(index)?;
        let one = Layout::contiguous(&[])?;
        let size = self.dtype.size();
        let bytes = &mut self.bytes[place * size..][..size];
        TensorMut::of(bytes, self.dtype, one).fill(value)
    }

    /// The two sides of a place in a dimension, to be written apart from each other.
    ///
    /// # Errors
    /// Where the place lies outside, and [`TensorError::Interleaved`] where the two sides lie between each other in memory.
    /// Those of the first dimension of a contiguous tensor never do.
    pub fn split_at(self, dim: usize, at: usize) -> Result<(Self, Self), TensorError> {
        let (first, second) = self.layout.split(dim, at)?;
        let (end, start) = match (first.last(), second.last()) {
            (Some(last), Some(_)) => (last + 1, second.offset()),
            // Of nothing any part of the memory will do.
            (_, None) => (self.bytes.len() / self.dtype.size(), usize::MAX),
            (None, Some(_)) => (0, 0),
        };
        if end > start {
            return Err(TensorError::Interleaved {
                dim,
                shape: self.layout.shape().into(),
                strides: self.layout.strides().into(),
            });
        }
        let cut = end.min(self.bytes.len() / self.dtype.size());
        let (below, above) = self.bytes.split_at_mut(cut * self.dtype.size());
        Ok((
            TensorMut::of(below, self.dtype, first).at_home(self.home),
            TensorMut::of(above, self.dtype, second.moved_down(cut)).at_home(self.home),
        ))
    }

    /// The same, for as long as the view would have lived.
    #[cfg(feature = "ndarray")]
    pub(super) fn into_plain<T: Pod>(self) -> &'a mut [T] {
        elements_mut(self.bytes)
    }

    /// All the memory the view lies in, as elements.
    pub(super) fn plain_mut<T: Pod>(&mut self) -> &mut [T] {
        elements_mut(self.bytes)
    }

    /// The elements of a view in which they follow one another.
    #[inline]
    pub(super) fn flat_mut<T: Pod>(&mut self) -> &mut [T] {
        let (start, len) = (self.layout.offset(), self.layout.len());
        &mut self.plain_mut()[start..][..len]
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where a change of the layout leads, in the same memory.
    #[inline]
    pub(super) fn viewed(
        mut self,
        change: impl FnOnce(&mut Layout) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        change(&mut self.layout)?;
        debug_assert!(
            self.layout
                .last()
                .is_none_or(|last| last < self.bytes.len() / self.dtype.size())
        );
        debug_assert!(!self.layout.overlaps());
        Ok(self)
    }
}

/// What tensors and views say of their layout.
macro_rules! facts {
    () => {
        /// Sizes of the dimensions.
        #[must_use]
        pub fn shape(&self) -> &[usize] {
            self.layout.shape()
        }

        /// How many elements lie between neighbours along each dimension.
        #[must_use]
        pub fn strides(&self) -> &[usize] {
            self.layout.strides()
        }

        /// Dimensions.
        #[must_use]
        pub fn rank(&self) -> usize {
            self.layout.rank()
        }

        /// The size of a dimension.
        ///
        /// # Errors
        /// Where there is no such dimension.
        pub fn size(&self, dim: usize) -> Result<usize, TensorError> {
            self.layout.size(dim)
        }

        /// Elements.
        #[must_use]
        pub fn len(&self) -> usize {
            self.layout.len()
        }

        /// Whether there are none.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Whether the elements follow one another in memory, those of the last dimension first.
        #[must_use]
        pub fn is_contiguous(&self) -> bool {
            self.layout.is_contiguous()
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use facts;

impl Tensor {
    facts!();
}

impl TensorRef<'_> {
    facts!();

    /// The elements' type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

impl TensorMut<'_> {
    facts!();

    /// The elements' type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

/// Elements that follow one another, as a shape.
fn shaped(found: usize, shape: &[usize]) -> Result<Layout, TensorError> {
    let layout = Layout::contiguous(shape)?;
    if layout.len() == found {
        return Ok(layout);
    }
    Err(TensorError::Elements {
        shape: shape.into(),
        expected: layout.len(),
        found,
    })
}

fn contiguous(layout: &Layout) -> Result<(), TensorError> {
    if layout.is_contiguous() {
        return Ok(());
    }
    Err(TensorError::NotContiguous {
        shape: layout.shape().into(),
        strides: layout.strides().into(),
    })
}
