//! Borrowed views of tensors and of slices.

use super::Tensor;
use super::error::TensorError;
use super::expect;
use super::layout::Layout;
use super::number::{elements, elements_mut, with_number};
use super::scalar::{Scalar, half_as_f64};
use super::walk::Walk;
use bytemuck::Pod;
use millpond_pool::block::Owner;
use millpond_pool::dtype::{DType, Element};
use std::io::{self, Write};

/// A borrowed view of elements, for reading. Copying the view does not copy the elements.
///
/// [`view`](super::Tensor::view) returns one of a [`Tensor`](super::Tensor). Slices can be viewed too:
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
    /// Whole elements of the type, with its alignment.
    bytes: &'a [u8],
    /// The owner that allocated the memory, if that is a pool, tenant or source. Results computed from the elements are
    /// allocated there.
    home: Option<&'a Owner>,
    dtype: DType,
    /// The layout. Its elements lie in `bytes`.
    layout: Layout,
}

/// A borrowed view of elements, for reading and writing. Access to them is exclusive during the borrow, and no two of them
/// overlap.
///
/// Methods that return another view consume this one. To keep this view, call them on the result of [`reborrow`](Self::reborrow).
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
    /// Whole elements of the type, with its alignment.
    bytes: &'a mut [u8],
    /// The owner that allocated the memory, as in [`TensorRef`].
    home: Option<&'a Owner>,
    dtype: DType,
    /// The layout. Its elements lie in `bytes` and do not overlap.
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

    /// Returns a view of a slice with a shape, row by row.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape.
    pub fn from_slice<T: Element>(values: &'a [T], shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        let layout = Layout::of_elements(shape.as_ref(), values.len())?;
        Ok(Self::of(bytemuck::cast_slice(values), T::DTYPE, layout))
    }

    /// Returns a view of bytes with a shape, row by row. The bytes are whole elements of the type, with its alignment.
    #[doc(hidden)]
    pub fn from_bytes(bytes: &'a [u8], dtype: DType, shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::of_elements(shape, bytes.len() / dtype.size())?;
        // An empty slice may be unaligned, so one that is aligned for all types replaces it.
        let bytes = if bytes.is_empty() {
            bytemuck::cast_slice::<u128, u8>(&[])
        } else {
            bytes
        };
        debug_assert!(bytes.as_ptr().addr().is_multiple_of(dtype.align()));
        Ok(Self::of(bytes, dtype, layout))
    }

    /// Writes the bytes of the elements in order. The elements need not be contiguous.
    #[doc(hidden)]
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
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

    /// Returns the elements as a slice, if they are contiguous in memory.
    ///
    /// # Errors
    /// Returns an error if they are not contiguous or not of type `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], TensorError> {
        expect(T::DTYPE, self.dtype)?;
        contiguous(&self.layout)?;
        let start = self.layout.offset();
        Ok(&self.plain::<T>()[start..start + self.layout.len()])
    }

    /// Returns an element.
    ///
    /// # Errors
    /// Returns an error if the index is not that of an element.
    pub fn get(&self, index: &[usize]) -> Result<Scalar, TensorError> {
        let place = self.layout.place(index)?;
        Ok(self.scalar(place))
    }

    /// Returns the only element of a tensor of one element.
    ///
    /// # Errors
    /// Returns an error unless there is exactly one element.
    pub fn item(&self) -> Result<Scalar, TensorError> {
        if self.len() != 1 {
            let shape = self.shape().into();
            return Err(TensorError::NotAnItem { shape });
        }
        let one = self.layout.changed(|layout| layout.reshape(&[]))?;
        Ok(self.scalar(one.offset()))
    }

    /// Copies the elements, in order, to a `Vec`.
    ///
    /// # Errors
    /// Returns an error if they are not of type `T`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        expect(T::DTYPE, self.dtype)?;
        if let Ok(elements) = self.as_slice() {
            return Ok(elements.to_vec());
        }
        Ok(self.collect(|element: T| element))
    }

    /// Copies the elements, in order, to a `Vec` of `bool`. Every value except 0 is true.
    ///
    /// # Errors
    /// Returns an error if they are not of type [`DType::Bool`].
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

    /// Calls `at` with the offset of each element in the memory, in the order of the elements.
    pub(super) fn places(&self, mut at: impl FnMut(usize)) {
        let walk = Walk::in_order([&self.layout]);
        let [stride] = walk.strides;
        walk.rows(|[start]| (0..walk.len).for_each(|step| at(start + step * stride)));
    }

    /// Returns the element at an offset in the memory, counted in elements.
    pub(super) fn scalar(&self, place: usize) -> Scalar {
        with_number!(
            self.dtype,
            T => self.plain::<T>()[place].into(),
            else {
                match self.dtype {
                    DType::Bool => Scalar::Bool(self.bytes[place] != 0),
                    // This is half precision without the feature `half`.
                    dtype => Scalar::Float(half_as_f64(dtype, self.plain::<u16>()[place])),
                }
            }
        )
    }

    /// Returns all the memory of the view as elements: of its type, or of a plain type of the same size.
    pub(super) fn plain<T: Pod>(&self) -> &'a [T] {
        elements(self.bytes)
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes of the elements of a contiguous view.
    #[cfg(feature = "cuda")]
    pub(super) fn flat_bytes(&self) -> &'a [u8] {
        let size = self.dtype.size();
        &self.bytes[self.layout.offset() * size..][..self.len() * size]
    }

    /// Returns the elements of a contiguous view.
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

    /// Returns a view of the same memory with a changed layout.
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

/// Returns a view of one dimension. Nothing is copied.
impl<'a, T: Element> From<&'a [T]> for TensorRef<'a> {
    fn from(values: &'a [T]) -> Self {
        let layout = Layout::vector(values.len());
        Self::of(bytemuck::cast_slice(values), T::DTYPE, layout)
    }
}

/// Returns a view of one dimension. Nothing is copied.
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

    /// Returns a view of a slice with a shape, row by row.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape.
    pub fn from_slice<T: Element>(
        values: &'a mut [T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let layout = Layout::of_elements(shape.as_ref(), values.len())?;
        Ok(Self::of(bytemuck::cast_slice_mut(values), T::DTYPE, layout))
    }

    /// Returns a view of bytes with a shape, row by row. The bytes are whole elements of the type, with its alignment.
    pub(crate) fn from_bytes(
        bytes: &'a mut [u8],
        dtype: DType,
        shape: &[usize],
    ) -> Result<Self, TensorError> {
        let layout = Layout::of_elements(shape, bytes.len() / dtype.size())?;
        debug_assert!(bytes.as_ptr().addr().is_multiple_of(dtype.align()));
        Ok(Self::of(bytes, dtype, layout))
    }

    /// Borrows the same view for a shorter time.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut::of(self.bytes, self.dtype, self.layout).at_home(self.home)
    }

    /// Returns the same view for reading.
    #[must_use]
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef::of(self.bytes, self.dtype, self.layout).at_home(self.home)
    }

    /// Returns the elements as a slice, if they are contiguous in memory.
    ///
    /// # Errors
    /// Returns an error if they are not contiguous or not of type `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.as_ref().as_slice()
    }

    /// Returns the elements as a mutable slice, if they are contiguous in memory.
    ///
    /// # Errors
    /// Returns an error if they are not contiguous or not of type `T`.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.reborrow().into_mut_slice()
    }

    /// Returns the bytes of the elements as a mutable slice, if they are contiguous in memory.
    #[doc(hidden)]
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8], TensorError> {
        contiguous(&self.layout)?;
        let size = self.dtype.size();
        let (start, len) = (self.layout.offset() * size, self.layout.len() * size);
        Ok(&mut self.bytes[start..start + len])
    }

    /// Converts the view to a mutable slice with the lifetime of its borrow.
    ///
    /// # Errors
    /// Returns an error if the elements are not contiguous in memory or not of type `T`.
    pub fn into_mut_slice<T: Element>(self) -> Result<&'a mut [T], TensorError> {
        expect(T::DTYPE, self.dtype)?;
        contiguous(&self.layout)?;
        let start = self.layout.offset();
        Ok(&mut elements_mut(self.bytes)[start..start + self.layout.len()])
    }

    /// Writes an element.
    ///
    /// # Errors
    /// Returns an error if the index is not that of an element, or if the type of the elements cannot represent the number.
    pub fn set(&mut self, index: &[usize], value: impl Into<Scalar>) -> Result<(), TensorError> {
        let place = self.layout.place(index)?;
        let one = Layout::contiguous(&[])?;
        let size = self.dtype.size();
        let bytes = &mut self.bytes[place * size..][..size];
        TensorMut::of(bytes, self.dtype, one).fill(value)
    }

    /// Splits the view at an index of a dimension into two views that can be written independently.
    ///
    /// # Errors
    /// Returns an error if the index lies outside the dimension, and [`TensorError::Interleaved`] if the two parts are interleaved
    /// in memory. Parts along the first dimension of a contiguous tensor are never interleaved.
    pub fn split_at(self, dim: usize, at: usize) -> Result<(Self, Self), TensorError> {
        let (first, second) = self.layout.split(dim, at)?;
        let (end, start) = match (first.last(), second.last()) {
            (Some(last), Some(_)) => (last + 1, second.offset()),
            // A part without elements may have any part of the memory.
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

    /// Returns all the memory of the view as elements, with the lifetime of its borrow.
    #[cfg(feature = "ndarray")]
    pub(super) fn into_plain<T: Pod>(self) -> &'a mut [T] {
        elements_mut(self.bytes)
    }

    /// Returns all the memory of the view as elements.
    pub(super) fn plain_mut<T: Pod>(&mut self) -> &mut [T] {
        elements_mut(self.bytes)
    }

    /// Returns the elements of a contiguous view.
    #[inline]
    pub(super) fn flat_mut<T: Pod>(&mut self) -> &mut [T] {
        let (start, len) = (self.layout.offset(), self.layout.len());
        &mut self.plain_mut()[start..][..len]
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns a view of the same memory with a changed layout.
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

/// Defines the methods of tensors and views that describe their layout.
macro_rules! facts {
    () => {
        /// Returns the sizes of the dimensions.
        #[must_use]
        pub fn shape(&self) -> &[usize] {
            self.layout.shape()
        }

        /// Returns the distance between adjacent elements along each dimension, in elements.
        #[must_use]
        pub fn strides(&self) -> &[usize] {
            self.layout.strides()
        }

        /// Returns the number of dimensions.
        #[must_use]
        pub fn rank(&self) -> usize {
            self.layout.rank()
        }

        /// Returns the size of a dimension.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist.
        pub fn size(&self, dim: usize) -> Result<usize, TensorError> {
            self.layout.size(dim)
        }

        /// Returns the number of elements.
        #[must_use]
        pub fn len(&self) -> usize {
            self.layout.len()
        }

        /// Returns whether there are no elements.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Returns whether the elements are contiguous in memory, in row-major order.
        #[must_use]
        pub fn is_contiguous(&self) -> bool {
            self.layout.is_contiguous()
        }
    };
}

/// Defines the methods of tensors that share a storage.
macro_rules! shared_storage {
    ($tensor:ident) => {
        /// Returns another view of the same storage, without a copy. [`deep_copy`](Self::deep_copy) copies the elements.
        impl Clone for $tensor {
            #[inline]
            fn clone(&self) -> Self {
                Self {
                    storage: Arc::clone(&self.storage),
                    layout: self.layout,
                }
            }
        }

        impl $tensor {
            fn layout(&self) -> &Layout {
                &self.layout
            }

            /// Returns a view of the same storage with a changed layout.
            ///
            /// The layout is changed in place, because it is large and moving it takes longer than changing it.
            #[inline]
            fn viewed(
                &self,
                change: impl FnOnce(&mut Layout) -> Result<(), TensorError>,
            ) -> Result<Self, TensorError> {
                let mut view = self.clone();
                change(&mut view.layout)?;
                Ok(view)
            }

            /// Returns the offset of the first element in the storage, in elements.
            #[must_use]
            pub fn offset(&self) -> usize {
                self.layout.offset()
            }

            /// Returns the type of the elements.
            #[must_use]
            pub fn dtype(&self) -> DType {
                self.storage.dtype()
            }

            /// Returns the device of the elements.
            #[must_use]
            pub fn device(&self) -> Device {
                self.storage.device()
            }

            /// Returns the number of tensors that share the storage now, including this one.
            #[must_use]
            pub fn holders(&self) -> usize {
                Arc::strong_count(&self.storage)
            }

            /// Returns whether another tensor is a view of the same storage.
            #[must_use]
            pub fn shares_storage_with(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.storage, &other.storage)
            }
        }
    };
}

pub(super) use shared_storage;

#[cfg(feature = "cuda")]
pub(super) use facts;

impl Tensor {
    facts!();
}

impl TensorRef<'_> {
    facts!();

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

impl TensorMut<'_> {
    facts!();

    /// Returns the type of the elements and the sizes of the dimensions.
    pub(crate) fn typed_shape(&self) -> (DType, &[usize]) {
        (self.dtype(), self.shape())
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
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
