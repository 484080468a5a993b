//! Tensors in the memory of a CUDA device.
//!
//! ```text
//!   storage      memory of a pool, and the stream that all work on it is ordered by
//!   make         how they come to be
//!   borrowed     views of elements, whoever owns them
//!   copy         copies, to the host and back and on the device
//!   operand      tensors and numbers as operands, and what can be written
//!   arithmetic   element by element: new, in place, into an output
//!   cast, reduce, matmul
//!   product      matrices and batches of them: by cuBLAS as blas puts it, or by our kernel
//!   launch       the one way to kernels and to cuBLAS: the only unsafe code
//! ```
//!
//! Shapes, views and errors are those of the host's tensors, by the same [`Layout`]. What is done with elements is done by kernels
//! (`kernels/*.cu` of millpond-cuda), on a stream.
//!
//! An operation runs on the stream of its output, or of its first operand if it makes a new tensor. That stream first waits on the device
//! for the streams of the other operands, and these then wait for it. So later work on an operand, and the next owner of its memory, come
//! after the operation. Operands of one stream need no event. Recording the use on the block instead would order only the next use of the
//! memory, and not the next change of the operand itself.
//!
//! Results are equal to the host's to the bit, except for sums: products and sums are not fused, half precision is computed in single
//! precision and rounded after each step, and casts cut off as Rust's `as` does. Sums are added up in parts whose number depends only on
//! the number of elements, so they are the same at every run.

#[forbid(unsafe_code)]
mod arithmetic;
#[forbid(unsafe_code)]
mod blas;
#[forbid(unsafe_code)]
mod borrowed;
#[forbid(unsafe_code)]
mod cast;
#[forbid(unsafe_code)]
mod copy;
mod launch;
#[forbid(unsafe_code)]
mod make;
#[forbid(unsafe_code)]
mod matmul;
#[forbid(unsafe_code)]
mod operand;
#[forbid(unsafe_code)]
mod product;
#[forbid(unsafe_code)]
mod reduce;
mod storage;

pub use borrowed::DeviceTensorRef;
pub use make::IntoQueue;
pub use operand::{DeviceOperand, DeviceOutput};

use super::batches::{Batched, Batches};
use super::error::TensorError;
use super::layout::Layout;
use super::view::{facts, shared_storage};
use super::views::{batched, repeats, views};
use borrowed::borrowed_facts;
use millpond_cuda::{CudaQueue, CudaStream, DevicePool};
use millpond_os::device::Device;
use millpond_pool::dtype::DType;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;
use storage::{DeviceStorage, DeviceView, ElementMemory};

/// A tensor in the memory of a CUDA device.
///
/// Like a [`Tensor`](crate::Tensor), it is a view of a counted storage. Other views share the storage without a copy, and writing
/// requires `&mut` and a storage that no other tensor shares. It is a separate type because its elements are not accessible as a
/// slice. [`to`](Self::to) brings them to the host, and [`Tensor::to`](crate::Tensor::to) brings them from the host. Both share
/// managed memory, and copy other memory.
///
/// All work is queued on a stream, that of the [`CudaQueue`] on which the tensor was made. Only operations that bring numbers to
/// the host wait for it. If the tensors of an operation have several streams, it is queued on the output's, or on the first one's
/// if the result is new. It runs after all work that is queued on the other streams by then, and their later work runs after it.
/// New tensors allocate from the first one's pool. Operations that end in `_into` or `_assign` allocate nothing.
///
/// Arithmetic supports `f64`, `f32`, `f16`, `bf16` and integers of 8 to 64 bits. Its results are bit-identical to the host's,
/// except for sums and products of matrices of floating point, which are added in another order, the same in every run. `bool` and
/// complex numbers support copies and fills only.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
/// use millpond::{Device, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// // The default pool and stream of a device serve many programs: `DeviceTensor::zeros(Device::Cuda(0), [2, 2], DType::F32)`.
/// let queue = DevicePool::new(&device)?.on(&CudaStream::new(&device)?)?;
/// let there = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?.to(&queue)?.into_tensor();
/// let mut product = there.matmul(&there.transpose(0, 1)?)?;
/// product.add_assign(0.5)?;
/// let back = product.to(Device::Host)?;
/// assert_eq!(back.as_slice::<f32>()?, [5.5, 11.5, 11.5, 25.5]);
/// assert!(product.add(&product.slice(0, ..1)?.reshape([1, 1, 2])?)?.shape() == [1, 2, 2]);
/// # Ok(())
/// # }
/// ```
pub struct DeviceTensor {
    /// The storage that all views share. It has no weak references.
    storage: Arc<DeviceStorage>,
    /// The layout. Its elements lie in the storage.
    layout: Layout,
}

/// A borrowed view for writing: of a [`DeviceTensor`], created by [`view_mut`](DeviceTensor::view_mut), of a buffer, created by
/// [`from_buffer`](Self::from_buffer), or of a workspace's temporary.
pub struct DeviceTensorMut<'a> {
    /// Nobody else has access to it during `'a`.
    place: ElementMemory<'a>,
    /// The layout. Its elements lie in the place and do not overlap.
    layout: Layout,
    alone: PhantomData<&'a mut DeviceStorage>,
}

shared_storage!(DeviceTensor);

impl DeviceTensor {
    fn of(storage: DeviceStorage, layout: Layout) -> Self {
        Self {
            storage: Arc::new(storage),
            layout,
        }
    }

    fn side(&self) -> DeviceView<'_> {
        DeviceView::of(self.storage.place(), self.layout)
    }

    /// Returns the pool and stream on which it was made.
    #[must_use]
    pub fn queue(&self) -> &CudaQueue {
        self.storage.queue()
    }

    /// Returns the pool of the storage, or `None` if it came from the [device itself](millpond_cuda::UnpooledDevice).
    #[must_use]
    pub fn pool(&self) -> Option<&DevicePool> {
        self.storage.pool()
    }

    /// Returns the bytes of the storage, which all views of it share.
    #[must_use]
    pub fn storage_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Returns the stream on which all work is queued.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        self.queue().stream()
    }

    /// Returns the first element's address on the device, or 0 if the storage has none. An access has the requirements of any raw
    /// pointer, and has to be ordered with the [stream](Self::stream).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.side().address()
    }

    /// Borrows a view for writing.
    ///
    /// # Errors
    /// Returns [`TensorError::Shared`] if other tensors share the storage, and [`TensorError::Overlapping`] if elements of this
    /// tensor overlap.
    pub fn view_mut(&mut self) -> Result<DeviceTensorMut<'_>, TensorError> {
        self.layout.expect_apart()?;
        let layout = self.layout;
        let storage = crate::only_holder(&mut self.storage)?;
        storage.expect_alone()?;
        Ok(DeviceTensorMut::alone(storage.place(), layout))
    }
}

impl<'a> DeviceTensorMut<'a> {
    /// Lends the same view.
    pub fn reborrow(&mut self) -> DeviceTensorMut<'_> {
        DeviceTensorMut::alone(self.place, self.layout)
    }

    /// The caller has exclusive access to the elements, which do not overlap.
    fn alone(place: ElementMemory<'a>, layout: Layout) -> Self {
        Self {
            place,
            layout,
            alone: PhantomData,
        }
    }

    /// Creates a view of contiguous elements.
    ///
    /// # Safety
    /// There are as many elements as the shape has. They may be used in the order of the queue's stream and belong to nobody else,
    /// during `'a`.
    pub(crate) unsafe fn of_room(
        address: u64,
        shape: &[usize],
        dtype: DType,
        queue: &'a CudaQueue,
    ) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape)?;
        // SAFETY: the caller guarantees it.
        let place = unsafe { ElementMemory::new(address, layout.len(), dtype, queue) };
        Ok(Self::alone(place, layout))
    }

    fn side(&self) -> DeviceView<'_> {
        DeviceView::of(self.place, self.layout)
    }

    fn viewed(
        mut self,
        change: impl FnOnce(&mut Layout) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        change(&mut self.layout)?;
        Ok(self)
    }
}

impl DeviceTensor {
    facts!();
}

impl DeviceTensorMut<'_> {
    facts!();
    borrowed_facts!();

    /// Returns the type of the elements and the sizes of the dimensions.
    pub(crate) fn typed_shape(&self) -> (DType, &[usize]) {
        (self.dtype(), self.shape())
    }
}

/// Views: other tensors of the same storage. None of these methods copies an element or calls an allocator or the driver.
impl DeviceTensor {
    views!(self, [&self], Self);
    repeats!(Self);
}

batched!(DeviceTensor);

/// Views of the same memory, which replace this one.
impl<'a> DeviceTensorMut<'a> {
    views!(self, [self], DeviceTensorMut<'a>);
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.side().debug("DeviceTensor", f)
    }
}

impl fmt::Debug for DeviceTensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.side().debug("DeviceTensorMut", f)
    }
}
