//! Tensors in the memory of a CUDA device.
//!
//! ```text
//!   storage      memory of a pool, and the stream that all work on it is ordered by
//!   make         constructors
//!   borrowed     borrowed views of elements with any owner
//!   copy         copies from and to the host, and on the device
//!   operand      operands (tensors and numbers) and outputs
//!   arithmetic   element-wise arithmetic: new, in place, into an output
//!   cast, reduce, matmul
//!   blas         the calls of cuBLAS for products of matrices
//!   product      products of matrices, by cuBLAS or by this crate's kernel
//!   launch       the unsafe calls that launch kernels and cuBLAS
//! ```
//!
//! Shapes, views and errors are the same as those of host tensors, because both use [`Layout`]. Kernels (`kernels/*.cu` of millpond-cuda)
//! compute with the elements, on a stream.
//!
//! An operation runs on the stream of its output, or of its first operand if it makes a new tensor. That stream first waits on the device
//! for the streams of the other operands, and these then wait for it. So later work on an operand, and the next owner of its memory, come
//! after the operation. Operands on the same stream need no event. It would not suffice to record the use on the block: that orders the
//! next owner of the memory, but not the next change of the operand.
//!
//! Results are bit-identical to the host's, except for sums. Multiplications and additions are not fused, half precision is computed in
//! single precision and rounded after each step, and casts truncate as Rust's `as` does. Sums are computed in parts. The number of parts
//! depends only on the number of elements, so the result is the same in every run.

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
/// Like a [`Tensor`](crate::Tensor), it is a view of a reference-counted storage. Other views share the storage without a copy, and
/// writing requires `&mut` and a storage that no other tensor shares. It is a separate type because its elements are not accessible as a
/// slice. [`to`](Self::to) brings them to the host, and [`Tensor::to`](crate::Tensor::to) brings them from the host. Both share managed
/// memory, and copy other memory.
///
/// All work on a tensor is queued on one stream, that of the [`CudaQueue`] with which the tensor was created. Only operations that return
/// numbers to the host wait for the stream. If the tensors of an operation have different streams, the operation is queued on the
/// output's stream, or on the first operand's stream if the result is a new tensor. The operation runs after all work that was queued
/// earlier on the other streams, and work that is queued on them later runs after the operation. New tensors are allocated from the first
/// operand's pool. Operations that end in `_into` or `_assign` allocate nothing.
///
/// Arithmetic supports `f64`, `f32`, `f16`, `bf16` and integers of 8 to 64 bits. Its results are bit-identical to the host's, except for
/// floating-point sums and products of matrices. These are added in another order, which is the same in every run. Complex numbers
/// support only copies and fills, and `bool` also supports casts and sums.
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

/// A borrowed view of elements on a device, for writing. [`view_mut`](DeviceTensor::view_mut) creates one of a [`DeviceTensor`], and
/// [`from_buffer`](Self::from_buffer) one of a buffer. A temporary tensor of a workspace is also a view of this type.
pub struct DeviceTensorMut<'a> {
    /// The memory of the elements. Access to them is exclusive during `'a`.
    place: ElementMemory<'a>,
    /// The layout. Its elements lie in `place` and do not overlap.
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

    /// Returns the pool and stream with which the tensor was created.
    #[must_use]
    pub fn queue(&self) -> &CudaQueue {
        self.storage.queue()
    }

    /// Returns the pool of the storage, or `None` if it came from the [device itself](millpond_cuda::UnpooledDevice).
    #[must_use]
    pub fn pool(&self) -> Option<&DevicePool> {
        self.storage.pool()
    }

    /// Returns the size of the storage, which all views share, in bytes.
    #[must_use]
    pub fn storage_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Returns the stream on which all work is queued.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        self.queue().stream()
    }

    /// Returns the first element's address on the device, or 0 if the storage has none. An access through the address has the
    /// requirements of a raw pointer, and must be ordered with the [stream](Self::stream).
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
    /// Borrows the same view for a shorter time.
    pub fn reborrow(&mut self) -> DeviceTensorMut<'_> {
        DeviceTensorMut::alone(self.place, self.layout)
    }

    /// Creates a view. The caller has exclusive access to the elements, which do not overlap.
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
    /// The memory at the address must have as many elements as the shape. During `'a`, access to them must be exclusive, and they may be
    /// used in the order of the queue's stream.
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

/// Methods that consume the view and return another view of the same memory.
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
