//! Copies of tensors. If possible, a view is returned instead of a copy.

use super::Tensor;
use super::error::TensorError;
use super::layout::Layout;
use super::number::with_plain;
use super::operand::{Operand, beside, bytes_of};
use super::scalar::Scalar;
use super::threads;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use bytemuck::Pod;
use millpond_os::device::Device;
use millpond_pool::block::Origin;
use millpond_pool::buffer::Buffer;
use millpond_pool::storage::Storage;
use std::ops::{Deref, Range};

/// A tensor that either shares the storage of the original tensor or is a copy of it. Dereferences to the tensor.
///
/// ```
/// use millpond::{DType, Device, Tensor, tensor::SharedOrCopied};
///
/// let tensor = Tensor::zeros([2, 3], DType::F32)?;
/// assert!(tensor.to_contiguous()?.is_shared() && tensor.to(Device::Host)?.is_shared());
/// let turned = tensor.transpose(0, 1)?;
/// match turned.to_contiguous()? {
///     SharedOrCopied::Shared(_) => unreachable!("its elements do not follow one another"),
///     SharedOrCopied::Copied(copy) => assert_eq!((copy.strides(), turned.strides()), (&[2, 1][..], &[1, 3][..])),
/// }
/// # Ok::<(), millpond::TensorError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub enum SharedOrCopied<T = Tensor> {
    /// A view of the same storage. Nothing was copied.
    Shared(T),
    /// A tensor with its own storage. The elements were copied.
    Copied(T),
}

impl<T> SharedOrCopied<T> {
    /// Returns whether the storage is shared.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Returns the tensor.
    #[must_use]
    pub fn into_tensor(self) -> T {
        match self {
            Self::Shared(tensor) | Self::Copied(tensor) => tensor,
        }
    }
}

impl<T> Deref for SharedOrCopied<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Shared(tensor) | Self::Copied(tensor) => tensor,
        }
    }
}

/// A destination to which a tensor can be brought: a [`Device`], or with the feature `cuda` a `CudaDevice` or a `CudaQueue`. It
/// determines the type of the result.
pub trait Destination<T> {
    /// The type of a tensor at the destination.
    type Tensor;

    /// Returns a tensor at the destination: the same storage if it is already there, otherwise a copy.
    ///
    /// # Errors
    /// Returns an error if memory for a copy cannot be allocated, and errors of the devices.
    fn bring(self, tensor: &T) -> Result<SharedOrCopied<Self::Tensor>, TensorError>;
}

impl Destination<Tensor> for Device {
    type Tensor = Tensor;

    fn bring(self, tensor: &Tensor) -> Result<SharedOrCopied, TensorError> {
        if tensor.device() == self {
            return Ok(SharedOrCopied::Shared(tensor.clone()));
        }
        let mut copy = Tensor::zeros_on(self, tensor.shape(), tensor.dtype())?;
        copy.view_mut()?.copy_from(tensor)?;
        Ok(SharedOrCopied::Copied(copy))
    }
}

/// Defines methods of a tensor that copy only if necessary, and methods that write all elements.
macro_rules! copies {
    ($operand:ident) => {
        /// Returns a tensor whose elements are contiguous in memory: this tensor if they already are, otherwise a
        /// [copy](Self::deep_copy).
        ///
        /// # Errors
        /// Returns an error if memory for a copy cannot be allocated, and errors of the device.
        pub fn to_contiguous(&self) -> Result<SharedOrCopied<Self>, TensorError> {
            if self.is_contiguous() {
                return Ok(SharedOrCopied::Shared(self.clone()));
            }
            self.deep_copy().map(SharedOrCopied::Copied)
        }

        /// Returns the same elements in another shape: as a view if that is possible, otherwise as a
        /// [copy](Self::deep_copy). [`reshape`](Self::reshape) never copies.
        ///
        /// # Errors
        /// Returns an error if the number of elements does not match the shape, or if memory for a copy cannot be allocated, and
        /// errors of the device.
        pub fn reshaped(&self, shape: impl AsRef<[usize]>) -> Result<SharedOrCopied<Self>, TensorError> {
            let shape = shape.as_ref();
            match self.reshape(shape) {
                Ok(view) => Ok(SharedOrCopied::Shared(view)),
                Err(TensorError::NotAView { .. }) => {
                    let copy = self.deep_copy()?.reshape(shape)?;
                    Ok(SharedOrCopied::Copied(copy))
                }
                Err(error) => Err(error),
            }
        }

        /// Returns the tensor at a destination: this tensor if it is already there, otherwise a copy. If the destination is a
        /// [`Device`](millpond_os::device::Device) that is the host, the result is a host tensor. With the feature `cuda`, the
        /// destination may also be a `&CudaDevice`, or a pool of a device with a stream (`&pool.on(&stream)?`). The result is then
        /// a `DeviceTensor`. A copy to a `&CudaDevice` uses the default pool and stream of the device.
        ///
        /// # Errors
        /// Returns an error if memory for a copy cannot be allocated, and errors of the devices.
        pub fn to<D: Destination<Self>>(
            &self,
            destination: D,
        ) -> Result<SharedOrCopied<D::Tensor>, TensorError> {
            destination.bring(self)
        }

        /// Overwrites the elements with a number or with the elements of another tensor in the same memory (host or device),
        /// broadcast to this shape.
        ///
        /// # Errors
        /// Returns an error if types differ, if the other shape cannot be broadcast, or if this tensor cannot be
        /// [written](Self::view_mut), and errors of the device.
        pub fn copy_from<'b>(&mut self, source: impl Into<$operand<'b>>) -> Result<(), TensorError> {
            self.view_mut()?.copy_from(source)
        }

        /// Overwrites the elements with a number or a `bool`.
        ///
        /// # Errors
        /// Returns an error if the elements' type cannot represent it, or if the tensor cannot be [written](Self::view_mut), and
        /// errors of the device.
        pub fn fill(&mut self, value: impl Into<Scalar>) -> Result<(), TensorError> {
            self.view_mut()?.fill(value)
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use copies;

/// Contiguous copies in a new storage, and methods that copy only if necessary.
impl Tensor {
    /// Copies the elements to a new tensor of the same [pool](Tensor).
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn deep_copy(&self) -> Result<Self, TensorError> {
        self.view()?.to_tensor()
    }

    /// Copies the elements to a new tensor of the given pool, tenant or source.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn deep_copy_in(&self, from: &impl Origin) -> Result<Self, TensorError> {
        self.view()?.to_tensor_in(from)
    }

    copies!(Operand);
}

impl TensorRef<'_> {
    /// Copies the elements to a new tensor of the same [pool](Tensor). The elements of a slice are copied to the current [set
    /// of pools](fn@millpond_set::pools).
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn to_tensor(&self) -> Result<Tensor, TensorError> {
        beside(self.home(), |from| self.to_tensor_in(from))
    }

    /// Copies the elements to a new tensor of the given pool, tenant or source.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn to_tensor_in(&self, from: &impl Origin) -> Result<Tensor, TensorError> {
        if self.is_contiguous() {
            return with_plain!(self.dtype(), P => {
                let start = self.layout().offset();
                let elements = &self.plain::<P>()[start..start + self.len()];
                let bytes = Buffer::collect(from.handle().0, elements.iter().copied())?.into_bytes();
                Tensor::of(Storage::of(bytes, self.dtype()), self.shape())
            });
        }
        let mut copy = Tensor::zeros_in(from, self.shape(), self.dtype())?;
        copy.view_mut()?.copy_from(*self)?;
        Ok(copy)
    }
}

impl TensorMut<'_> {
    /// Overwrites the elements with a number or with the elements of another tensor, broadcast to this shape.
    ///
    /// # Errors
    /// Returns an error if types differ, or if the other shape cannot be broadcast.
    pub fn copy_from<'b>(&mut self, source: impl Into<Operand<'b>>) -> Result<(), TensorError> {
        let source = source.into();
        source.expect("copy_from", self.dtype(), self.shape())?;
        let Some(source) = source.tensor()? else {
            return self.fill(source.scalar());
        };
        let flat = self.is_contiguous() && source.is_contiguous() && self.shape() == source.shape();
        if flat && threads::parts(self.len() * self.dtype().size()) < 2 {
            with_plain!(self.dtype(), P => self.flat_mut::<P>().copy_from_slice(source.flat()));
            return Ok(());
        }
        let layout = source.layout().repeat_to("copy_from", self.shape())?;
        share(self.reborrow(), source.with(layout))
    }

    /// Overwrites the elements with a number or a `bool`.
    ///
    /// # Errors
    /// Returns an error if the elements' type cannot represent it.
    pub fn fill(&mut self, value: impl Into<Scalar>) -> Result<(), TensorError> {
        let one: [u64; 2] = bytemuck::cast(bytes_of(value.into(), self.dtype())?);
        let bytes = bytemuck::bytes_of(&one).get(..self.dtype().size()).unwrap_or(&[]);
        let first = bytes.first().copied().unwrap_or(0);
        let alike = bytes.iter().all(|byte| *byte == first);
        if alike
            && threads::parts(self.len() * bytes.len()) < 2
            && let Ok(all) = self.as_mut_bytes()
        {
            // `fill` writes all elements, in particular zeros, twice as fast as the loop below.
            all.fill(first);
            return Ok(());
        }
        let layout = Layout::repeated(self.layout().dims());
        let one = TensorRef::of(bytemuck::bytes_of(&one), self.dtype(), layout);
        share(self.reborrow(), one)
    }
}

/// Copies the elements of a view of the same type and shape, on several threads if that is faster.
fn share(to: TensorMut<'_>, from: TensorRef<'_>) -> Result<(), TensorError> {
    let parts = threads::parts(to.len() * to.dtype().size());
    threads::share(to, [from], parts, &|mut to, [from]| {
        with_plain!(to.dtype(), P => copy::<P>(&mut to, from.plain(), from.layout()));
        Ok(())
    })
}

/// Copies elements between two layouts of one shape. Elements of the destination do not overlap.
fn copy<P: Pod>(to: &mut TensorMut<'_>, from: &[P], layout: &Layout) {
    let whole = *to.layout();
    let to = to.plain_mut::<P>();
    match (nearest(&whole), nearest(layout)) {
        (Some(near), Some(far)) if near != far => {
            for rows in blocks(&whole, far) {
                for columns in blocks(&whole, near) {
                    let block = |layout: &Layout| {
                        layout.changed(|layout| {
                            layout.slice(far, rows.clone())?;
                            layout.slice(near, columns.clone())
                        })
                    };
                    if let (Ok(whole), Ok(layout)) = (block(&whole), block(layout)) {
                        copy_rows(to, &whole, from, &layout);
                    }
                }
            }
        }
        _ => copy_rows(to, &whole, from, layout),
    }
}

/// The number of indices of a dimension in one block. If adjacent elements of one tensor are far apart in the other, a square block
/// is small enough to stay in the cache. Transposing 16 MiB took three times as long without blocks (2026).
const BLOCK: usize = 32;

/// Returns the dimension with the smallest stride, if it is long enough for blocks.
fn nearest(layout: &Layout) -> Option<usize> {
    let dims = layout.strides().iter().zip(layout.shape()).enumerate();
    let long = dims.filter(|(_, (stride, size))| **size >= 2 * BLOCK && **stride > 0);
    let nearest = long.min_by_key(|(_, (stride, _))| **stride);
    nearest.map(|(dim, _)| dim)
}

fn blocks(layout: &Layout, dim: usize) -> impl Iterator<Item = Range<usize>> {
    let size = layout.shape()[dim];
    (0..size)
        .step_by(BLOCK)
        .map(move |start| start..size.min(start + BLOCK))
}

fn copy_rows<P: Pod>(to: &mut [P], whole: &Layout, from: &[P], layout: &Layout) {
    let walk = Walk::in_any_order([whole, layout]);
    let len = walk.len;
    walk.rows(|[into, out_of]| match walk.strides {
        [1, 1] => to[into..into + len].copy_from_slice(&from[out_of..out_of + len]),
        [1, 0] => to[into..into + len].fill(from[out_of]),
        [into_step, from_step] => {
            for at in 0..len {
                to[into + at * into_step] = from[out_of + at * from_step];
            }
        }
    });
}
