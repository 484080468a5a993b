//! Memory on a device for the elements of tensors, and the copies between it and the host.

use crate::error::TensorError;
use crate::layout::Layout;
use millpond_account::MemoryKind;
use millpond_account::error::AllocError;
use millpond_cuda::launch::sealed::Elements;
use millpond_cuda::{CudaError, CudaQueue, CudaStream, DeviceBuffer, DevicePool};
use millpond_os::device::Device;
use millpond_pool::dtype::DType;
use millpond_pool::storage::Storage;
use std::fmt;
use std::sync::Arc;

/// Memory for elements. Work on it is queued on its queue's stream, and ordered with the buffer's stream if that is a different one.
pub(super) struct DeviceStorage {
    memory: Memory,
    dtype: DType,
    queue: CudaQueue,
}

/// Whole elements that a device can access.
enum Memory {
    Device(DeviceBuffer<u8>),
    /// Managed memory, which tensors of the host may share. It is not written while it is shared. The host waits for the queue's stream
    /// before a tensor of the host receives the memory.
    Managed(Arc<Storage>),
}

impl DeviceStorage {
    /// Allocates memory for a number of elements and calls `fill` with it.
    pub(super) fn new(
        queue: &CudaQueue,
        dtype: DType,
        elements: usize,
        fill: impl FnOnce(&mut DeviceBuffer<u8>) -> Result<(), CudaError>,
    ) -> Result<Self, TensorError> {
        let bytes = elements.checked_mul(dtype.size());
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        let mut buffer = queue.pool().alloc(bytes, queue.stream())?;
        fill(&mut buffer)?;
        Ok(Self::of(queue.clone(), buffer, dtype))
    }

    /// Takes the memory of a buffer of whole elements. Both are on the same device.
    pub(super) fn of(queue: CudaQueue, bytes: DeviceBuffer<u8>, dtype: DType) -> Self {
        Self {
            memory: Memory::Device(bytes),
            dtype,
            queue,
        }
    }

    /// Shares the storage of a tensor of the host, or returns `None` if the device cannot use its memory.
    pub(super) fn sharing(queue: &CudaQueue, storage: &Arc<Storage>) -> Result<Option<Self>, TensorError> {
        // Work on a stream that is being captured may run later than any wait for the stream.
        let managed = storage.kind() == MemoryKind::Managed && !storage.is_foreign();
        if !managed || queue.stream().is_capturing()? {
            return Ok(None);
        }
        Ok(Some(Self {
            memory: Memory::Managed(Arc::clone(storage)),
            dtype: storage.dtype(),
            queue: queue.clone(),
        }))
    }

    /// Returns the storage for tensors of the host, or `None` if the host cannot use the memory. Waits for the stream.
    pub(super) fn shared_with_host(&self) -> Result<Option<Arc<Storage>>, TensorError> {
        match &self.memory {
            Memory::Device(_) => Ok(None),
            Memory::Managed(storage) => {
                self.queue.stream().wait()?;
                Ok(Some(Arc::clone(storage)))
            }
        }
    }

    /// Returns an error if a tensor of the host shares the memory.
    pub(super) fn expect_alone(&mut self) -> Result<(), TensorError> {
        match &mut self.memory {
            Memory::Device(_) => Ok(()),
            Memory::Managed(storage) => crate::only_holder(storage).map(|_| ()),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn queue(&self) -> &CudaQueue {
        &self.queue
    }

    pub(super) fn device(&self) -> Device {
        Device::Cuda(self.queue.device().number())
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Device(buffer) => buffer.bytes(),
            Memory::Managed(storage) => storage.bytes(),
        }
    }

    pub(super) fn pool(&self) -> Option<&DevicePool> {
        match &self.memory {
            Memory::Device(buffer) => buffer.pool(),
            Memory::Managed(_) => None,
        }
    }

    /// Returns the location of its elements.
    pub(super) fn place(&self) -> ElementMemory<'_> {
        let (address, stream) = match &self.memory {
            Memory::Device(buffer) => (buffer.address(), buffer.stream()),
            Memory::Managed(storage) if storage.bytes() == 0 => (0, self.queue.stream()),
            Memory::Managed(storage) => (storage.pointer().addr().get() as u64, self.queue.stream()),
        };
        ElementMemory {
            address,
            elements: self.bytes() / self.dtype.size(),
            dtype: self.dtype,
            stream,
            queue: &self.queue,
        }
    }
}

impl Drop for DeviceStorage {
    fn drop(&mut self) {
        if let Memory::Managed(storage) = &self.memory
            && self.queue.stream().wait().is_err()
        {
            // The stream is being captured, so its work may run later, or the device is lost. The memory is therefore never freed.
            std::mem::forget(Arc::clone(storage));
        }
    }
}

/// The location of elements with any owner. Work on them is queued on the queue's stream, and ordered with the stream of the elements.
///
/// Invariant: during `'a`, the elements exist and may be used in the order of their stream.
#[derive(Clone, Copy)]
pub(super) struct ElementMemory<'a> {
    /// 0 if there are no elements.
    address: u64,
    elements: usize,
    dtype: DType,
    /// The stream of the elements. It is usually the queue's.
    stream: &'a CudaStream,
    queue: &'a CudaQueue,
}

impl<'a> ElementMemory<'a> {
    /// Returns the location of elements that another type owns.
    ///
    /// # Errors
    /// Returns an error if the queue belongs to another device.
    pub(super) fn borrowed(queue: &'a CudaQueue, elements: &'a impl Elements) -> Result<Self, TensorError> {
        let (span, dtype) = elements.elements();
        queue.stream().expect_on(span.stream().device())?;
        Ok(Self {
            address: span.address(),
            elements: span.bytes() / dtype.size(),
            dtype,
            stream: span.stream(),
            queue,
        })
    }

    /// # Safety
    /// The invariant holds.
    pub(super) unsafe fn new(address: u64, elements: usize, dtype: DType, queue: &'a CudaQueue) -> Self {
        Self {
            address,
            elements,
            dtype,
            stream: queue.stream(),
            queue,
        }
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
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

/// A borrowed view for reading. Invariant: its elements lie in `place`.
#[derive(Clone, Copy)]
pub(super) struct DeviceView<'a> {
    place: ElementMemory<'a>,
    layout: Layout,
}

impl<'a> DeviceView<'a> {
    pub(super) fn of(place: ElementMemory<'a>, layout: Layout) -> Self {
        debug_assert!(layout.last().is_none_or(|last| last < place.elements));
        Self { place, layout }
    }

    /// Returns a view of the same memory in another layout, which must be derived from this one's.
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

    /// Returns the stream of the elements, with which all work on them is ordered.
    pub(super) fn stream(&self) -> &'a CudaStream {
        self.place.stream
    }

    /// Returns the address of the first element.
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

impl DeviceView<'_> {
    /// Copies the elements, which must be contiguous, to the host, and waits until the copy is complete.
    pub(super) fn read(&self, elements: &mut [u8]) -> Result<(), TensorError> {
        debug_assert!(self.layout.is_contiguous());
        debug_assert_eq!(elements.len(), self.layout.len() * self.dtype().size());
        if elements.is_empty() {
            return Ok(());
        }
        // SAFETY: the elements lie in `place`, and the slice has the same number of bytes. Writes follow the order of the stream, and
        // no write is queued while this view is borrowed.
        Ok(unsafe { self.queue().read(self.stream(), self.address(), elements) }?)
    }
}
