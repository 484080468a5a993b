//! Conversions from and to `ndarray` without a copy: borrowed arrays become borrowed views, and owned arrays keep their memory.

use super::Tensor;
use super::error::TensorError;
use super::expect;
use super::layout::Layout;
use super::view::{TensorMut, TensorRef};
use millpond_pool::dtype::Element;
use ndarray::{
    Array, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Dimension, IxDyn, ShapeBuilder, StrideShape,
};

/// Returns the shape and strides in ndarray's types, and the range of memory from the first element to the last.
fn shaped(layout: &Layout) -> (StrideShape<IxDyn>, std::ops::Range<usize>) {
    if layout.len() == 0 {
        // The strides have no meaning here, and ndarray requires them to be 0.
        return (IxDyn(layout.shape()).into(), 0..0);
    }
    let shape = IxDyn(layout.shape()).strides(IxDyn(layout.strides()));
    let end = layout.last().map_or(layout.offset(), |last| last + 1);
    (shape, layout.offset()..end)
}

/// Returns the layout of an array whose elements fill a slice of `len`.
fn layout_of(shape: &[usize], strides: &[isize], len: usize) -> Result<Layout, TensorError> {
    // The stride of a dimension of size 1 has no meaning and may have any value.
    let strides: Option<Vec<usize>> = strides
        .iter()
        .zip(shape)
        .map(|(stride, size)| {
            if *size > 1 {
                usize::try_from(*stride).ok()
            } else {
                Some(1)
            }
        })
        .collect();
    Layout::contiguous(shape)?;
    let layout = strides.and_then(|strides| Layout::strided(shape, &strides, len));
    layout.ok_or_else(|| not_standard(shape))
}

fn not_standard(shape: &[usize]) -> TensorError {
    TensorError::NotStandardLayout { shape: shape.into() }
}

/// Conversions from and to ndarray, with the feature `ndarray`.
///
/// ```
/// use millpond::{DType, Tensor, TensorRef};
/// use ndarray::{Array, Axis};
///
/// let tensor = Tensor::arange(0.0f64, 6.0, 1.0)?.reshape([2, 3])?;
/// let turned = tensor.transpose(0, 1)?;
/// assert_eq!(turned.as_ndarray::<f64>()?.sum_axis(Axis(0)), ndarray::arr1(&[3.0, 12.0]).into_dyn());
///
/// let array = Array::from_shape_fn((3, 2), |(row, column)| (row * column) as f64);
/// let mut sum = Tensor::zeros([3, 2], DType::F64)?;
/// turned.add_into(TensorRef::from_ndarray(array.view())?, &mut sum)?;
/// sum.view_mut()?.into_ndarray::<f64>()?.mapv_inplace(|x| -x);
/// assert_eq!(sum.to_vec::<f64>()?, [0.0, -3.0, -1.0, -5.0, -2.0, -7.0]);
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    /// Returns the elements as an ndarray view that borrows them.
    ///
    /// # Errors
    /// Returns an error if the elements are not of type `T`, or if they overlap, as those of a broadcast tensor do.
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError> {
        self.view()?.to_ndarray()
    }

    /// Converts an ndarray array to a tensor that keeps the array's memory. Nothing is copied. As for
    /// [`from_vec`](Self::from_vec), no pool counts the memory.
    ///
    /// # Errors
    /// Returns [`TensorError::NotStandardLayout`] if some elements are in reversed order or overlap (the array's `as_standard_layout`
    /// fixes this), and an error if there are too many dimensions. In both cases the memory is freed.
    pub fn from_ndarray<T: Element, D: Dimension>(array: Array<T, D>) -> Result<Self, TensorError> {
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        let (values, first) = array.into_raw_vec_and_offset();
        let first = first.unwrap_or(0);
        let mut tensor = Self::from(values);
        tensor.layout = layout_of(&shape, &strides, tensor.len().saturating_sub(first))?;
        tensor.layout.begin_at(first);
        Ok(tensor)
    }
}

impl<'a> TensorRef<'a> {
    /// Returns the elements as an ndarray view that borrows them.
    ///
    /// # Errors
    /// Returns an error if the elements are not of type `T`, or if they overlap, as those of a broadcast tensor do.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayViewD<'a, T>, TensorError> {
        expect(T::DTYPE, self.dtype())?;
        let (shape, range) = shaped(self.layout());
        let elements = &self.plain::<T>()[range];
        ArrayViewD::from_shape(shape, elements).map_err(|_| self.layout().overlapping())
    }

    /// Returns a view that borrows the elements of an ndarray array.
    ///
    /// # Errors
    /// Returns [`TensorError::NotStandardLayout`] if other elements lie between them, or if some are in reversed order (the array's
    /// `as_standard_layout` fixes this), and an error if there are too many dimensions.
    pub fn from_ndarray<T: Element, D: Dimension>(array: ArrayView<'a, T, D>) -> Result<Self, TensorError> {
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        let elements = array
            .to_slice_memory_order()
            .ok_or_else(|| not_standard(&shape))?;
        let layout = layout_of(&shape, &strides, elements.len())?;
        Ok(Self::of(bytemuck::cast_slice(elements), T::DTYPE, layout))
    }
}

impl<'a> TensorMut<'a> {
    /// Converts the view to a mutable ndarray view.
    ///
    /// # Errors
    /// Returns an error if the elements are not of type `T`.
    pub fn into_ndarray<T: Element>(self) -> Result<ArrayViewMutD<'a, T>, TensorError> {
        expect(T::DTYPE, self.dtype())?;
        let layout = *self.layout();
        let (shape, range) = shaped(&layout);
        let elements = &mut self.into_plain::<T>()[range];
        ArrayViewMutD::from_shape(shape, elements).map_err(|_| layout.overlapping())
    }

    /// Returns a mutable view that borrows the elements of an ndarray array.
    ///
    /// # Errors
    /// Returns the errors of [`TensorRef::from_ndarray`].
    pub fn from_ndarray<T: Element, D: Dimension>(
        array: ArrayViewMut<'a, T, D>,
    ) -> Result<Self, TensorError> {
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        let elements = array
            .into_slice_memory_order()
            .ok_or_else(|| not_standard(&shape))?;
        let layout = layout_of(&shape, &strides, elements.len())?;
        Ok(Self::of(bytemuck::cast_slice_mut(elements), T::DTYPE, layout))
    }
}
