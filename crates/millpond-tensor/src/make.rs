//! Constructors of tensors.

use super::Tensor;
use super::error::TensorError;
use super::layout::{Layout, count};
use super::number::{Number, with_number};
use super::scalar::Scalar;
use millpond_account::error::AllocError;
use millpond_account::memory::MemoryKind;
use millpond_os::device::Device;
use millpond_pool::block::Origin;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::{DType, Element};
use millpond_pool::pool::Pool;
use millpond_pool::storage::Storage;
use millpond_set::pools::{draw, pools};

/// The numbers from a start up to an end, which is excluded, in steps.
enum Ramp {
    Float { start: f64, step: f64 },
    Int { start: i128, step: i128 },
}

impl Ramp {
    /// Returns the ramp and its length.
    fn new(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<(Self, usize), TensorError> {
        let refused = TensorError::Unsupported {
            operation: "arange",
            dtype,
        };
        let long = || TensorError::TooLarge {
            shape: Box::new([usize::MAX]),
        };
        let zero = TensorError::Zero { what: "the step" };
        match (start, end, step) {
            (Scalar::Float(start), Scalar::Float(end), Scalar::Float(step)) => {
                for (number, what) in [(start, "the start"), (end, "the end"), (step, "the step")] {
                    if number.is_nan() {
                        return Err(TensorError::NotANumber { what });
                    }
                }
                if step == 0.0 {
                    return Err(zero);
                }
                let steps = ((end - start) / step).ceil();
                if !steps.is_finite() || steps >= isize::MAX as f64 {
                    return Err(long());
                }
                // The conversion turns a negative length into 0.
                Ok((Self::Float { start, step }, steps as usize))
            }
            (Scalar::Complex(_) | Scalar::Bool(_), ..) => Err(refused),
            _ => {
                let whole = |number: Scalar| match number {
                    Scalar::Int(number) => i128::from(number),
                    Scalar::UInt(number) => i128::from(number),
                    _ => 0,
                };
                let (start, end, step) = (whole(start), whole(end), whole(step));
                if step == 0 {
                    return Err(zero);
                }
                let away = (end - start) * step.signum();
                let steps = (away.max(0) + step.abs() - 1) / step.abs();
                let steps = usize::try_from(steps).map_err(|_| long())?;
                Ok((Self::Int { start, step }, steps))
            }
        }
    }

    fn at<T: Number>(&self, at: usize) -> T {
        match self {
            Self::Float { start, step } => T::of_f64(start + at as f64 * step),
            // The number lies in the range of `T`, because start and end do.
            Self::Int { start, step } => {
                let number = start + at as i128 * step;
                i64::try_from(number).map_or_else(|_| T::of_u64(number as u64), T::of_i64)
            }
        }
    }
}

/// Collects elements in a new storage.
pub(super) fn collect<T: Element>(
    from: &impl Origin,
    shape: &[usize],
    values: impl ExactSizeIterator<Item = T>,
) -> Result<Tensor, TensorError> {
    Layout::of_elements(shape, values.len())?;
    Tensor::from_buffer(Buffer::collect(from.handle().0, values)?, shape)
}

/// Collects booleans in a new storage.
fn bools(
    from: &impl Origin,
    values: impl ExactSizeIterator<Item = bool>,
    shape: &[usize],
) -> Result<Tensor, TensorError> {
    let bytes = Buffer::collect(from.handle().0, values.map(u8::from))?;
    Tensor::of(Storage::of(bytes, DType::Bool), shape)
}

/// Returns a function that calls `value` with the index of each element in order.
fn by_index<T>(shape: &[usize], mut value: impl FnMut(&[usize]) -> T) -> impl FnMut(usize) -> T {
    let mut index = vec![0; shape.len()];
    let shape = shape.to_vec();
    move |_| {
        let made = value(&index);
        for (at, size) in index.iter_mut().zip(&shape).rev() {
            *at += 1;
            if *at < *size {
                break;
            }
            *at = 0;
        }
        made
    }
}

/// Constructors. Those whose name ends in `_in` allocate from the given pool, tenant or source, the others from the current [set of
/// pools](fn@millpond_set::pools). All return an error if memory cannot be allocated, or if a shape has too many dimensions or too many
/// elements.
///
/// ```
/// use millpond::{DType, Device, Pool, Tensor};
///
/// let ones = Tensor::ones([2, 2], DType::F64)?;
/// let table = Tensor::from_fn([2, 3], |at| (10 * at[0] + at[1]) as u32)?;
/// assert_eq!((ones.item().is_err(), table.as_slice::<u32>()?), (true, &[0, 1, 2, 10, 11, 12][..]));
/// assert_eq!(Tensor::arange(1.0f32, 2.0, 0.25)?.to_vec::<f32>()?, [1.0, 1.25, 1.5, 1.75]);
///
/// let pool = Pool::host()?;
/// let thirds = Tensor::full_in(&pool, [100], 1.0f32 / 3.0)?;
/// assert!(thirds.pool().is_some_and(|of| of == pool) && thirds.device() == Device::Host);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Tensor {
    /// Creates a tensor whose elements are all zero or false.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::zeros_in(pool, shape, dtype))
    }

    /// Creates a tensor whose elements are all zero or false.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn zeros_in(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape.as_ref())?;
        let storage = Storage::zeroed(from.handle().0, dtype, layout.len())?.into();
        Ok(Self { storage, layout })
    }

    /// Creates a tensor whose elements are all zero or false, in memory of a device.
    ///
    /// # Errors
    /// Returns an error as described above, and if the device's pool cannot be created.
    pub fn zeros_on(device: Device, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let pool = pools().pool(device, MemoryKind::Host);
        let pool = pool.map_err(|error| AllocError::Pool(Box::new(error)))?;
        Self::zeros_in(&pool, shape, dtype)
    }

    /// Creates a tensor whose elements are all one or true.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn ones(shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::ones_in(pool, shape, dtype))
    }

    /// Creates a tensor whose elements are all one or true.
    ///
    /// # Errors
    /// Returns an error as described above, and for half precision without the feature `half`.
    pub fn ones_in(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        let shape = shape.as_ref();
        with_number!(
            dtype,
            T => Self::full_in(from, shape, T::of_u64(1)),
            else match dtype {
                DType::Bool => bools(from, std::iter::repeat_n(true, count(shape)?), shape),
                dtype => Err(TensorError::Unsupported { operation: "ones", dtype }),
            }
        )
    }

    /// Creates a tensor whose elements all have one value.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn full<T: Element>(shape: impl AsRef<[usize]>, value: T) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::full_in(pool, shape, value))
    }

    /// Creates a tensor whose elements all have one value.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn full_in<T: Element>(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        value: T,
    ) -> Result<Self, TensorError> {
        Ok(Self::empty_in::<T>(from, shape)?.fill(value))
    }

    /// Creates a tensor whose elements all have one value, of a type that is chosen at run time.
    ///
    /// ```
    /// use millpond::{DType, Tensor};
    ///
    /// let halves = Tensor::full_of([2, 3], 0.5, DType::F64)?;
    /// assert_eq!(halves.to_vec::<f64>()?, [0.5; 6]);
    /// assert!(Tensor::full_of([2], 0.5, DType::I32).is_err() && Tensor::full_of([2], 300, DType::U8).is_err());
    /// # Ok::<(), millpond::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error as described above, if the type cannot represent the number, and for half precision without the feature
    /// `half`.
    pub fn full_of(
        shape: impl AsRef<[usize]>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::full_of_in(pool, shape, value, dtype))
    }

    /// Creates a tensor whose elements all have one value, of a type that is chosen at run time.
    ///
    /// # Errors
    /// Returns the errors of [`full_of`](Self::full_of).
    pub fn full_of_in(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        let (shape, value) = (shape.as_ref(), value.into());
        if !value.fits(dtype) {
            return Err(TensorError::Scalar { value, dtype });
        }
        with_number!(
            dtype,
            T => Self::full_in(from, shape, T::of_scalar(value)),
            else match value.to_bool() {
                Some(is) => bools(from, std::iter::repeat_n(is, count(shape)?), shape),
                None => Err(TensorError::Unsupported { operation: "full_of", dtype }),
            }
        )
    }

    /// Copies a slice to a new tensor, row by row.
    ///
    /// # Errors
    /// Returns an error as described above, and if the number of elements does not match the shape.
    pub fn from_slice<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::from_slice_in(pool, values, shape))
    }

    /// Copies a slice to a new tensor, row by row.
    ///
    /// # Errors
    /// Returns an error as described above, and if the number of elements does not match the shape.
    pub fn from_slice_in<T: Element>(
        from: &impl Origin,
        values: &[T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        collect(from, shape.as_ref(), values.iter().copied())
    }

    /// Creates a tensor from the results of a function that is called with the index of each element, in order.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn from_fn<T: Element>(
        shape: impl AsRef<[usize]>,
        value: impl FnMut(&[usize]) -> T,
    ) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::from_fn_in(pool, shape, value))
    }

    /// Creates a tensor from the results of a function that is called with the index of each element, in order.
    ///
    /// # Errors
    /// Returns an error as described above.
    pub fn from_fn_in<T: Element>(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        value: impl FnMut(&[usize]) -> T,
    ) -> Result<Self, TensorError> {
        let shape = shape.as_ref();
        Ok(Self::empty_in::<T>(from, shape)?.write_with(by_index(shape, value)))
    }

    /// Creates a tensor of booleans, row by row.
    ///
    /// # Errors
    /// Returns an error as described above, and if the number of elements does not match the shape.
    pub fn from_bools(values: &[bool], shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::from_bools_in(pool, values, shape))
    }

    /// Creates a tensor of booleans, row by row.
    ///
    /// # Errors
    /// Returns an error as described above, and if the number of elements does not match the shape.
    pub fn from_bools_in(
        from: &impl Origin,
        values: &[bool],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        bools(from, values.iter().copied(), shape.as_ref())
    }

    /// Creates a tensor of the numbers from `start` up to `end`, which is excluded, in steps of `step`.
    ///
    /// # Errors
    /// Returns an error as described above, if the step is 0, and for complex numbers.
    pub fn arange<T: Element + Into<Scalar>>(start: T, end: T, step: T) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::arange_in(pool, start, end, step))
    }

    /// Creates a tensor of the numbers from `start` up to `end`, which is excluded, in steps of `step`.
    ///
    /// # Errors
    /// Returns an error as described above, if the step is 0, and for complex numbers.
    pub fn arange_in<T: Element + Into<Scalar>>(
        from: &impl Origin,
        start: T,
        end: T,
        step: T,
    ) -> Result<Self, TensorError> {
        let (ramp, len) = Ramp::new(start.into(), end.into(), step.into(), T::DTYPE)?;
        with_number!(
            T::DTYPE,
            N => collect(from, &[len], (0..len).map(|at| ramp.at::<N>(at))),
            else Err(TensorError::Unsupported { operation: "arange", dtype: T::DTYPE })
        )
    }

    /// Creates a tensor in the memory of a `Vec`, row by row. Nothing is copied.
    ///
    /// The memory belongs to the program's allocator. No pool counts it, but [`foreign_memory`](millpond_pool::foreign_memory) does. It is
    /// aligned only for its elements. [`from_slice`](Self::from_slice) copies the elements to memory of a pool instead.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape. The memory is then freed.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        Self::of(Storage::of(Buffer::of_vec(values), T::DTYPE), shape.as_ref())
    }

    /// Creates a tensor in the memory of a buffer, row by row. Nothing is copied.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape. The memory is then freed.
    pub fn from_buffer<T: Element>(
        buffer: Buffer<T>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        Self::of(buffer.into(), shape.as_ref())
    }

    /// Creates a tensor in the memory of a storage, row by row. Nothing is copied.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape. The memory is then freed.
    pub fn from_storage(storage: Storage, shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        Self::of(storage, shape.as_ref())
    }
}

/// Creates a tensor of one dimension in the memory of the `Vec`. Nothing is copied.
impl<T: Element> From<Vec<T>> for Tensor {
    fn from(values: Vec<T>) -> Self {
        Storage::of(Buffer::of_vec(values), T::DTYPE).into()
    }
}

/// Creates a tensor of one dimension. Nothing is copied.
impl<T: Element> From<Buffer<T>> for Tensor {
    fn from(buffer: Buffer<T>) -> Self {
        Storage::from(buffer).into()
    }
}

/// Creates a tensor of one dimension. Nothing is copied.
impl From<Storage> for Tensor {
    fn from(storage: Storage) -> Self {
        let layout = Layout::vector(storage.elements());
        Self {
            storage: storage.into(),
            layout,
        }
    }
}
