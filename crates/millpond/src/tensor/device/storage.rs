//! Memory on a device for elements of a type, and the one way to its bytes from the host.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::AllocError;
use crate::gpu::{CudaQueue, CudaStream, DeviceBuffer, DevicePool, kernels};
use crate::tensor::error::TensorError;
use crate::tensor::layout::Layout;
use std::fmt;

/// Memory for elements. Work on it is put on the stream of its queue, or ordered with that.
pub(super) struct DeviceStorage {
    /// Of whole elements. Its stream is the queue's.
    bytes: DeviceBuffer<u8>,
    dtype: DType,
    queue: CudaQueue,
}

impl DeviceStorage {
    /// For so many elements; what they are is not said.
    pub(super) fn new(queue: &CudaQueue, dtype: DType, elements: usize) -> Result<Self, TensorError> {
        let bytes = elements.checked_mul(dtype.size());
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        Ok(Self {
            bytes: queue.pool().alloc(bytes, queue.stream())?,
            dtype,
            queue: queue.clone(),
        })
    }

    /// Makes all of it zero.
    pub(super) fn fill_zero(&mut self) -> Result<(), TensorError> {
        Ok(self.bytes.fill_zero()?)
    }

    /// Copies all elements from the host, and waits until they are there.
    pub(super) fn write(&mut self, elements: &[u8]) -> Result<(), TensorError> {
        Ok(self.bytes.copy_from_host(elements)?)
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn queue(&self) -> &CudaQueue {
        &self.queue
    }

    pub(super) fn device(&self) -> Device {
        self.bytes.device()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.bytes()
    }

    pub(super) fn pool(&self) -> Option<&DevicePool> {
        self.bytes.pool()
    }

    /// Where its elements are.
    pub(super) fn place(&self) -> Place<'_> {
        Place {
            address: self.bytes.address(),
            elements: self.bytes.len() / self.dtype.size(),
            dtype: self.dtype,
            queue: &self.queue,
        }
    }
}

/// Where elements are, whoever keeps them there. Work on them is put on the stream of the queue, or ordered with that.
///
/// Invariant: they are there, and may be used in the order of that stream, for `'a`.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// 0 where there are none.
    address: u64,
    elements: usize,
    dtype: DType,
    queue: &'a CudaQueue,
}

impl<'a> Place<'a> {
    /// # Safety
    /// The invariant holds.
    pub(super) unsafe fn new(address: u64, elements: usize, dtype: DType, queue: &'a CudaQueue) -> Self {
        Self {
            address,
            elements,
            dtype,
            queue,
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn queue(&self) -> &'a CudaQueue {
        self.queue
    }

    fn device(&self) -> Device {
        Device::Cuda(self.queue.device().number())
    }
}

/// A view that borrows, to read. Invariant: its elements lie in the place.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    place: Place<'a>,
    layout: Layout,
}

impl<'a> Side<'a> {
    pub(super) fn of(place: Place<'a>, layout: Layout) -> Self {
        debug_assert!(layout.last().is_none_or(|last| last < place.elements));
        Self { place, layout }
    }

    /// The same memory in another layout, which was made of this one's.
    pub(super) fn with(&self, layout: Layout) -> Self {
        Self::of(self.place, layout)
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    pub(super) fn dtype(&self) -> DType {
        self.place.dtype
    }

    pub(super) fn queue(&self) -> &'a CudaQueue {
        self.place.queue
    }

    pub(super) fn stream(&self) -> &'a CudaStream {
        self.place.queue.stream()
    }

    /// The first element's address.
    pub(super) fn address(&self) -> u64 {
        match self.place.address {
            0 => 0,
            first => first + (self.layout.offset() * self.dtype().size()) as u64,
        }
    }

    pub(super) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("shape", &self.shape())
            .field("strides", &self.layout.strides())
            .field("dtype", &self.dtype())
            .field("device", &self.place.device())
            .finish_non_exhaustive()
    }
}

impl Side<'_> {
    /// Copies the elements, which follow one another, to the host, and waits for them.
    pub(super) fn read(&self, elements: &mut [u8]) -> Result<(), TensorError> {
        debug_assert!(self.layout.is_contiguous());
        debug_assert_eq!(elements.len(), self.layout.len() * self.dtype().size());
        if elements.is_empty() {
            return Ok(());
        }
        // SAFETY: the elements lie in the place and are as many; whoever writes them keeps to the stream, and nobody does while
        // this is borrowed.
        Ok(unsafe { kernels::read(self.stream(), self.address(), elements) }?)
    }
}
