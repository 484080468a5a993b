//! How tensors come to be.

use super::Tensor;
use super::error::TensorError;
use super::layout::{Layout, count};
use super::number::{Number, with_number};
use super::scalar::Scalar;
use crate::block::Origin;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::AllocError;
use crate::memory::MemoryKind;
use crate::pool::Pool;
use crate::pools::{draw, pools};
use crate::storage::Storage;

/// Numbers from one on by steps, as many as lie before an end.
enum Ramp {
    Float { start: f64, step: f64 },
    Int { start: i128, step: i128 },
}

impl Ramp {
    /// The ramp and its length.
    fn new(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<(Self, usize), TensorError> {
        let refused = TensorError::Unsupported {
            operation: "arange",
            dtype,
        };
        let long = || TensorError::TooLarge {
            shape: Box::new([usize::MAX]),
        };
        let zero = TensorError::Zero { what: "a step" };
        match (start, end, step) {
            (Scalar::Float(start), Scalar::Float(end), Scalar::Float(step)) => {
                if step == 0.0 {
                    return Err(zero);
                }
                let steps = ((end - start) / step).ceil();
                if !steps.is_finite() || steps >= isize::MAX as f64 {
                    return Err(long());
                }
                // What is negative becomes 0.
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
            // Inside the range of `T`, as start and end are.
            Self::Int { start, step } => {
                let number = start + at as i128 * step;
                i64::try_from(number).map_or_else(|_| T::of_u64(number as u64), T::of_i64)
            }
        }
    }
}

/// Elements in a storage of their own.
pub(super) fn collect<T: Element>(
    from: &impl Origin,
    shape: &[usize],
    values: impl ExactSizeIterator<Item = T>,
) -> Result<Tensor, TensorError> {
    let expected = count(shape)?;
    if values.len() != expected {
        return Err(TensorError::Elements {
            shape: shape.into(),
            expected,
            found: values.len(),
        });
    }
    Tensor::from_buffer(Buffer::collect(from.handle().0, values)?, shape)
}

/// Truth values in a storage of their own.
fn bools(
    from: &impl Origin,
    values: impl ExactSizeIterator<Item = bool>,
    shape: &[usize],
) -> Result<Tensor, TensorError> {
    let bytes = Buffer::collect(from.handle().0, values.map(u8::from))?;
    Tensor::of(Storage::of(bytes, DType::Bool), shape)
}

/// The index of each element in order, handed to a function.
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

/// New tensors. Those whose name ends in `_in` are of a pool, tenant or source of choice, the others of the
/// [set of pools](crate::pools) that holds here. All can fail for want of memory, and where a shape has too many dimensions
/// or more elements than can be counted.
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
    /// All zero, or false.
    ///
    /// # Errors
    /// See above.
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::zeros_in(pool, shape, dtype))
    }

    /// All zero, or false.
    ///
    /// # Errors
    /// See above.
    pub fn zeros_in(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape.as_ref())?;
        let storage = Storage::zeroed(from.handle().0, dtype, layout.len())?.into();
        Ok(Self { storage, layout })
    }

    /// All zero, or false, in memory of a device.
    ///
    /// # Errors
    /// See above; and where the device's pool cannot be made.
    pub fn zeros_on(device: Device, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let pool = pools().pool(device, MemoryKind::Host);
        let pool = pool.map_err(|error| AllocError::Pool(Box::new(error)))?;
        Self::zeros_in(&pool, shape, dtype)
    }

    /// All one, or true.
    ///
    /// # Errors
    /// See above.
    pub fn ones(shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::ones_in(pool, shape, dtype))
    }

    /// All one, or true.
    ///
    /// # Errors
    /// See above; and for half precision without the feature `half`.
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

    /// All of one value.
    ///
    /// # Errors
    /// See above.
    pub fn full<T: Element>(shape: impl AsRef<[usize]>, value: T) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::full_in(pool, shape, value))
    }

    /// All of one value.
    ///
    /// # Errors
    /// See above.
    pub fn full_in<T: Element>(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        value: T,
    ) -> Result<Self, TensorError> {
        Ok(Self::empty_in::<T>(from, shape)?.fill(value))
    }

    /// All of one value, of a type that is known when the program runs.
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
    /// See above; where the number is none of the type, and for half precision without the feature `half`.
    pub fn full_of(
        shape: impl AsRef<[usize]>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::full_of_in(pool, shape, value, dtype))
    }

    /// All of one value, of a type that is known when the program runs.
    ///
    /// # Errors
    /// As [`full_of`](Self::full_of).
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

    /// A copy of a slice, row after row.
    ///
    /// # Errors
    /// See above; and where the shape has another number of elements.
    pub fn from_slice<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::from_slice_in(pool, values, shape))
    }

    /// A copy of a slice, row after row.
    ///
    /// # Errors
    /// See above; and where the shape has another number of elements.
    pub fn from_slice_in<T: Element>(
        from: &impl Origin,
        values: &[T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        collect(from, shape.as_ref(), values.iter().copied())
    }

    /// What a function makes of each element's index, in order.
    ///
    /// # Errors
    /// See above.
    pub fn from_fn<T: Element>(
        shape: impl AsRef<[usize]>,
        value: impl FnMut(&[usize]) -> T,
    ) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::from_fn_in(pool, shape, value))
    }

    /// What a function makes of each element's index, in order.
    ///
    /// # Errors
    /// See above.
    pub fn from_fn_in<T: Element>(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
        value: impl FnMut(&[usize]) -> T,
    ) -> Result<Self, TensorError> {
        let shape = shape.as_ref();
        Ok(Self::empty_in::<T>(from, shape)?.write_with(by_index(shape, value)))
    }

    /// Truth values.
    ///
    /// # Errors
    /// See above; and where the shape has another number of elements.
    pub fn from_bools(values: &[bool], shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::from_bools_in(pool, values, shape))
    }

    /// Truth values.
    ///
    /// # Errors
    /// See above; and where the shape has another number of elements.
    pub fn from_bools_in(
        from: &impl Origin,
        values: &[bool],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        bools(from, values.iter().copied(), shape.as_ref())
    }

    /// From one number on by steps, up to an end that is not reached.
    ///
    /// # Errors
    /// See above; where the step is 0, and for complex numbers.
    pub fn arange<T: Element + Into<Scalar>>(start: T, end: T, step: T) -> Result<Self, TensorError> {
        draw(|pool: &Pool| Self::arange_in(pool, start, end, step))
    }

    /// From one number on by steps, up to an end that is not reached.
    ///
    /// # Errors
    /// See above; where the step is 0, and for complex numbers.
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

    /// A `Vec` as a tensor, row after row, in its own memory; nothing is copied.
    ///
    /// That memory is the program's: no pool counts it, [`foreign_memory`](crate::foreign_memory) does, and it is
    /// aligned for its elements only. [`from_slice`](Self::from_slice) makes a copy in a pool.
    ///
    /// # Errors
    /// Where the shape has another number of elements; the memory is then given back.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        Self::of(Storage::of(Buffer::of_vec(values), T::DTYPE), shape.as_ref())
    }

    /// A buffer as a tensor, row after row; nothing is copied.
    ///
    /// # Errors
    /// Where the shape has another number of elements; the memory is then given back.
    pub fn from_buffer<T: Element>(
        buffer: Buffer<T>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        Self::of(buffer.into(), shape.as_ref())
    }

    /// A storage as a tensor, row after row; nothing is copied.
    ///
    /// # Errors
    /// Where the shape has another number of elements; the memory is then given back.
    pub fn from_storage(storage: Storage, shape: impl AsRef<[usize]>) -> Result<Self, TensorError> {
        Self::of(storage, shape.as_ref())
    }
}

/// A tensor of one dimension, in the memory of the `Vec` itself; nothing is copied.
impl<T: Element> From<Vec<T>> for Tensor {
    fn from(values: Vec<T>) -> Self {
        Storage::of(Buffer::of_vec(values), T::DTYPE).into()
    }
}

/// A tensor of one dimension; nothing is copied.
impl<T: Element> From<Buffer<T>> for Tensor {
    fn from(buffer: Buffer<T>) -> Self {
        Storage::from(buffer).into()
    }
}

/// A tensor of one dimension; nothing is copied.
impl From<Storage> for Tensor {
    fn from(storage: Storage) -> Self {
        let layout = Layout::vector(storage.elements());
        Self {
            storage: storage.into(),
            layout,
        }
    }
}
