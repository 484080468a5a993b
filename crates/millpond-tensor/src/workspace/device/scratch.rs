//! Temporaries of a scope on a device, which are allocated from the arena.

use super::refused;
use crate::DeviceTensorMut;
use crate::TensorError;
use crate::workspace::arena::{Arena, ArenaMemory, Chunk, Scope};
use millpond_account::error::AllocError;
use millpond_cuda::{CudaError, CudaQueue, CudaStream, DeviceBuffer, DeviceSlice, settle_on};
use millpond_pool::dtype::{DType, Element};
use std::cell::RefCell;
use std::fmt;

/// The alignment of every temporary, the same as that of a pool's blocks.
const ALIGN: usize = 256;

/// Returns an error if the workspace's stream is being captured. Memory that is allocated during a capture belongs to the graph, and no
/// other work may use it.
pub(super) fn expect_no_capture(queue: &CudaQueue) -> Result<(), AllocError> {
    match queue.stream().is_capturing().map_err(refused)? {
        true => Err(refused(CudaError::RoomInCapture)),
        false => Ok(()),
    }
}

impl ArenaMemory for CudaQueue {
    type Chunk = DeviceBuffer<u8>;
    const ALIGN: usize = ALIGN;

    fn chunk(&self, bytes: usize) -> Result<DeviceBuffer<u8>, AllocError> {
        expect_no_capture(self)?;
        self.pool().alloc(bytes, self.stream())
    }
}

impl Chunk for DeviceBuffer<u8> {
    fn start(&self) -> usize {
        self.address() as usize
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

/// The streams that use temporaries of a scope. When this is dropped, also on a panic, the workspace's stream waits for them on the
/// device. If that fails, this thread waits for them.
struct Uses<'a> {
    stream: &'a CudaStream,
    others: RefCell<Vec<CudaStream>>,
}

impl Drop for Uses<'_> {
    fn drop(&mut self) {
        for other in self.others.get_mut() {
            if self.stream.wait_for(other).is_err() {
                // If the device is lost, no work continues on it, so the error is ignored.
                let _ = settle_on(other, || other.synchronize());
            }
        }
    }
}

/// Allocates temporaries on a device, which live as long as the scope.
///
/// Invariant: while this exists, the arena is not reset to a mark before the beginning of the scope. An inner scope borrows this one
/// exclusively, and resets the arena to a mark after everything that was taken here. Memory that was returned for `'s` is therefore not
/// returned again during `'s`. No chunk is freed during `'s`, because the arena is borrowed exclusively. Chunks are blocks of the
/// queue's pool and stream. The work of the next scope comes after this scope's work in the order of that stream, and after the work of
/// the recorded streams.
pub struct DeviceScratch<'s> {
    arena: RefCell<&'s mut Arena<CudaQueue>>,
    queue: &'s CudaQueue,
    uses: &'s Uses<'s>,
}

impl fmt::Debug for DeviceScratch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceScratch")
            .field("queue", self.queue)
            .finish_non_exhaustive()
    }
}

/// Runs `work` in a new scope.
pub(super) fn enter<R>(
    arena: &mut Arena<CudaQueue>,
    queue: &CudaQueue,
    work: impl for<'s> FnOnce(&mut DeviceScratch<'s>) -> R,
) -> R {
    let scope = Scope::enter(arena);
    let uses = Uses {
        stream: queue.stream(),
        others: RefCell::default(),
    };
    work(&mut DeviceScratch {
        arena: RefCell::new(&mut *scope.arena),
        queue,
        uses: &uses,
    })
}

impl<'s> DeviceScratch<'s> {
    /// Returns the stream on which temporaries are used.
    #[must_use]
    pub fn stream(&self) -> &'s CudaStream {
        self.queue.stream()
    }

    /// Declares that work on another stream uses temporaries of this scope. This is required for work that this library does not queue,
    /// for example that of another library or of a graph. When the scope ends, the workspace's stream waits for the work that is queued
    /// on that stream.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another device.
    pub fn record_use(&self, stream: &CudaStream) -> Result<(), CudaError> {
        stream.expect_on(self.queue.device())?;
        let mut others = self.uses.others.borrow_mut();
        if stream != self.stream() && !others.contains(stream) {
            others.push(stream.clone());
        }
        Ok(())
    }

    /// Takes `bytes` bytes and returns their address, or 0 for no bytes. Fails if `bytes` is `None`, which means an overflow.
    fn take(&self, bytes: Option<usize>) -> Result<u64, AllocError> {
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        if bytes == 0 {
            return Ok(0);
        }
        let mut arena = self.arena.borrow_mut();
        let (chunk, start) = arena.take(bytes, ALIGN)?;
        Ok(chunk.address() + start as u64)
    }

    /// Returns a temporary of `len` elements with unspecified contents.
    ///
    /// # Errors
    /// Returns an error if the workspace has to grow and memory cannot be allocated, or the stream is being captured.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<DeviceSlice<'s, T>, AllocError> {
        let address = self.take(len.checked_mul(size_of::<T>()))?;
        // SAFETY: the memory has room for `len` aligned elements. By the invariant no other code uses it during `'s`.
        Ok(unsafe { DeviceSlice::new(address, len, self.queue.stream()) })
    }

    /// Returns a temporary of `len` elements, which are zeroed in the order of the stream.
    ///
    /// # Errors
    /// Returns an error as [`alloc`](Self::alloc) does, or if the driver reports one.
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<DeviceSlice<'s, T>, AllocError> {
        let mut elements = self.alloc(len)?;
        elements.fill_zero().map_err(refused)?;
        Ok(elements)
    }

    /// Returns a temporary copy of elements of the host, and waits for the copy.
    ///
    /// # Errors
    /// Returns an error as [`alloc`](Self::alloc) does, or if the driver reports one.
    pub fn alloc_from<T: Element>(&self, values: &[T]) -> Result<DeviceSlice<'s, T>, AllocError> {
        let mut elements = self.alloc(values.len())?;
        elements.copy_from_host(values).map_err(refused)?;
        Ok(elements)
    }

    /// Returns a temporary tensor with unspecified contents.
    ///
    /// # Errors
    /// Returns an error as [`alloc`](Self::alloc) does, or if the shape is invalid.
    pub fn tensor<T: Element>(&self, shape: impl AsRef<[usize]>) -> Result<DeviceTensorMut<'s>, TensorError> {
        self.tensor_of(shape, T::DTYPE)
    }

    /// Returns a temporary tensor of a type that is chosen at run time. Its contents are unspecified, except that elements of `bool`
    /// are all false.
    ///
    /// # Errors
    /// Returns an error as [`tensor`](Self::tensor) does, or if the driver reports one.
    pub fn tensor_of(
        &self,
        shape: impl AsRef<[usize]>,
        dtype: DType,
    ) -> Result<DeviceTensorMut<'s>, TensorError> {
        let shape = shape.as_ref();
        let len = crate::count(shape)?;
        let address = self.take(len.checked_mul(dtype.size()))?;
        // SAFETY: the memory has room for the tensor's aligned elements. By the invariant no other code uses it during `'s`.
        let mut tensor = unsafe { DeviceTensorMut::of_room(address, shape, dtype, self.queue) }?;
        if dtype == DType::Bool {
            // `bool` is the only type for which some bytes are invalid elements.
            tensor.fill(false)?;
        }
        Ok(tensor)
    }

    /// Runs `work` in an inner scope. The temporaries of the inner scope end when `work` returns or panics.
    pub fn scope<R>(&mut self, work: impl for<'i> FnOnce(&mut DeviceScratch<'i>) -> R) -> R {
        enter(self.arena.get_mut(), self.queue, work)
    }
}
