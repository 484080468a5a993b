//! Copies, and what is shared instead where it can be.

use super::Tensor;
use super::error::TensorError;
use super::layout::Layout;
use super::number::with_plain;
use super::operand::{Operand, beside};
use super::threads;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use crate::block::Origin;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::storage::Storage;
use bytemuck::Pod;
use std::ops::{Deref, Range};

/// A tensor, and whether it shares the storage it was made from. Derefs to the tensor.
///
/// ```
/// use millpond::{DType, Device, SharedOrCopied, Tensor};
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
    /// A view of the same storage: nothing was copied.
    Shared(T),
    /// A storage of its own: the elements were copied.
    Copied(T),
}

impl<T> SharedOrCopied<T> {
    /// Whether it shares the storage.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The tensor.
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

/// Where a tensor can be taken: it decides what kind of tensor is there. A [`Device`], or with the feature `cuda` a
/// `CudaQueue`.
pub trait Destination<T> {
    /// What a tensor is there.
    type Tensor;

    /// Takes a tensor there: the same storage where it is there already, else a copy.
    ///
    /// # Errors
    /// When there is no memory for a copy, and what the devices say.
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

/// Copies, contiguous and in a storage of their own; and what is one only where it has to be, which it says.
impl Tensor {
    /// Copies the elements to a new tensor of the same [pool](Tensor).
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn deep_copy(&self) -> Result<Self, TensorError> {
        self.view()?.to_tensor()
    }

    /// A copy of the elements in memory of a pool, tenant or source of choice.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn deep_copy_in(&self, from: &impl Origin) -> Result<Self, TensorError> {
        self.view()?.to_tensor_in(from)
    }

    /// Returns a tensor whose elements are contiguous in memory: this tensor if they already are, otherwise a copy in the same
    /// [pool](Tensor).
    ///
    /// # Errors
    /// When there is no memory for a copy.
    pub fn to_contiguous(&self) -> Result<SharedOrCopied, TensorError> {
        if self.is_contiguous() {
            return Ok(SharedOrCopied::Shared(self.clone()));
        }
        self.deep_copy().map(SharedOrCopied::Copied)
    }

    /// Returns the same elements in another shape: as a view if that is possible, otherwise as a copy in the same
    /// [pool](Tensor). [`reshape`](Self::reshape) never copies.
    ///
    /// # Errors
    /// Where the shape has another number of elements, and when there is no memory for a copy.
    pub fn reshaped(&self, shape: impl AsRef<[usize]>) -> Result<SharedOrCopied, TensorError> {
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

    /// The tensor somewhere else: this one where it is there, else a copy, of the kind that is there. For [`Device::Host`] that is
    /// a tensor; with the feature `cuda` it is a `DeviceTensor` for a pool of a device and a stream, `&pool.on(&stream)?`.
    ///
    /// # Errors
    /// When there is no memory for a copy, and what the devices say.
    pub fn to<D: Destination<Self>>(&self, destination: D) -> Result<SharedOrCopied<D::Tensor>, TensorError> {
        destination.bring(self)
    }

    /// Overwrites the elements with those of another tensor, repeated where they are fewer, or with a number.
    ///
    /// # Errors
    /// Where types differ or shapes do not go together, and where this tensor cannot be [written](Self::view_mut).
    pub fn copy_from<'b>(&mut self, source: impl Into<Operand<'b>>) -> Result<(), TensorError> {
        self.view_mut()?.copy_from(source)
    }

    /// Overwrites the elements with a number, or a truth value.
    ///
    /// # Errors
    /// Where it is none of the elements' type, and where the tensor cannot be [written](Self::view_mut).
    pub fn fill(&mut self, value: impl Into<super::Scalar>) -> Result<(), TensorError> {
        self.view_mut()?.fill(value)
    }
}

impl TensorRef<'_> {
    /// Copies the elements to a new tensor of the same [pool](Tensor). The elements of a slice are copied to the current [set
    /// of pools](crate::pools).
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn to_tensor(&self) -> Result<Tensor, TensorError> {
        beside(self.home(), |from| self.to_tensor_in(from))
    }

    /// A copy of the elements, as a tensor in memory of a pool, tenant or source of choice.
    ///
    /// # Errors
    /// When there is no memory for it.
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
    /// Overwrites the elements with those of another tensor, repeated where they are fewer, or with a number.
    ///
    /// # Errors
    /// Where types differ or shapes do not go together.
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

    /// Overwrites the elements with a number, or a truth value.
    ///
    /// # Errors
    /// Where it is none of the elements' type.
    pub fn fill(&mut self, value: impl Into<super::Scalar>) -> Result<(), TensorError> {
        let one: [u64; 2] = bytemuck::cast(super::operand::bytes_of(value.into(), self.dtype())?);
        let bytes = bytemuck::bytes_of(&one).get(..self.dtype().size()).unwrap_or(&[]);
        let first = bytes.first().copied().unwrap_or(0);
        let alike = bytes.iter().all(|byte| *byte == first);
        if alike
            && threads::parts(self.len() * bytes.len()) < 2
            && let Ok(all) = self.as_mut_bytes()
        {
            // Zero above all, which the library's own loop writes twice as fast.
            all.fill(first);
            return Ok(());
        }
        let layout = Layout::repeated(self.layout().dims());
        let one = TensorRef::of(bytemuck::bytes_of(&one), self.dtype(), layout);
        share(self.reborrow(), one)
    }
}

/// Copies elements of a view of the same type and shape, by several threads where it pays.
fn share(to: TensorMut<'_>, from: TensorRef<'_>) -> Result<(), TensorError> {
    let parts = threads::parts(to.len() * to.dtype().size());
    threads::share(to, [from], parts, &|mut to, [from]| {
        with_plain!(to.dtype(), P => copy::<P>(&mut to, from.plain(), from.layout()));
        Ok(())
    })
}

/// Copies elements to places of their own; both layouts are of one shape.
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

/// Places along a dimension that are copied together. Where neighbours in the one tensor lie apart in the other, a block
/// of them both ways is small enough to stay in the cache: 16 MiB turned around took three times as long without (2026).
const BLOCK: usize = 32;

/// The dimension along which neighbours are nearest, if it is long enough for blocks and any is.
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
