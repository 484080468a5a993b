//! A scope's hold on an arena of a device.

use super::refused;
use crate::dtype::{DType, Element};
use crate::error::AllocError;
use crate::gpu::{CudaError, CudaQueue, CudaStream, DeviceBuffer, DeviceSlice, settle_on};
use crate::tensor::DeviceTensorMut;
use crate::tensor::TensorError;
use crate::workspace::arena::{Arena, Chunk, Room, Scope};
use std::cell::RefCell;
use std::fmt;

/// What every temporary begins at a multiple of: as the blocks of a pool.
const ALIGN: usize = 256;

/// Refuses to take memory for a workspace while its stream is captured: it would be the graph's, and no other work's.
pub(super) fn expect_no_capture(queue: &CudaQueue) -> Result<(), AllocError> {
    match queue.stream().is_capturing().map_err(refused)? {
        true => Err(refused(CudaError::RoomInCapture)),
        false => Ok(()),
    }
}

impl Room for CudaQueue {
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

/// Streams that use temporaries of a scope. The workspace's own waits for them when this goes, also by a panic: on the device, or
/// where that cannot be, here.
struct Uses<'a> {
    stream: &'a CudaStream,
    others: RefCell<Vec<CudaStream>>,
}

impl Drop for Uses<'_> {
    fn drop(&mut self) {
        for other in self.others.get_mut() {
            if self.stream.wait_for(other).is_err() {
                // Of a device that is lost nothing goes on.
                let _ = settle_on(other, || other.synchronize());
            }
        }
    }
}

/// Gives room on a device for temporaries, which live as long as the scope.
///
/// Invariant: while this is there the arena is reset to no mark before the one at which the scope began. A scope inside
/// borrows this one alone, and resets the arena to a mark after all that was taken here. So what is handed out for `'s` is
/// handed out to nobody else while `'s` lasts, and no chunk goes back, as the arena is borrowed alone for as long. Chunks are
/// blocks of the queue's pool and stream: what the next scope does comes after this one's in the order of that stream, and after
/// that of others which were recorded.
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

/// Runs `work` in a scope of its own.
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
    /// The stream that temporaries are used on.
    #[must_use]
    pub fn stream(&self) -> &'s CudaStream {
        self.queue.stream()
    }

    /// Says that work on another stream uses temporaries of this scope, which this library does not see: that of other libraries, or
    /// of a graph. When the scope ends, the workspace's stream waits for what that stream has to do by then.
    ///
    /// # Errors
    /// Where the stream is another device's.
    pub fn record_use(&self, stream: &CudaStream) -> Result<(), CudaError> {
        stream.expect_on(self.queue.device())?;
        let mut others = self.uses.others.borrow_mut();
        if stream != self.stream() && !others.contains(stream) {
            others.push(stream.clone());
        }
        Ok(())
    }

    /// Room for so many bytes: its address, 0 for none.
    fn take(&self, bytes: Option<usize>) -> Result<u64, AllocError> {
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        if bytes == 0 {
            return Ok(0);
        }
        let mut arena = self.arena.borrow_mut();
        let (chunk, start) = arena.take(bytes, ALIGN)?;
        Ok(chunk.address() + start as u64)
    }

    /// A temporary of `len` elements; what they hold is not said.
    ///
    /// # Errors
    /// When there is no memory for more room, and where more would be needed while the stream is captured.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<DeviceSlice<'s, T>, AllocError> {
        let address = self.take(len.checked_mul(size_of::<T>()))?;
        // SAFETY: the room has as many, aligned, and is ours for `'s` by the invariant.
        Ok(unsafe { DeviceSlice::new(address, len, self.queue.stream()) })
    }

    /// A temporary of `len` elements, all zero once the stream has come so far.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what the driver says.
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<DeviceSlice<'s, T>, AllocError> {
        let mut elements = self.alloc(len)?;
        elements.fill_zero().map_err(refused)?;
        Ok(elements)
    }

    /// A temporary copy of elements of the host; they are there when this returns.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what the driver says.
    pub fn alloc_from<T: Element>(&self, values: &[T]) -> Result<DeviceSlice<'s, T>, AllocError> {
        let mut elements = self.alloc(values.len())?;
        elements.copy_from_host(values).map_err(refused)?;
        Ok(elements)
    }

    /// A temporary tensor; what it holds is not said.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and where the elements of the shape cannot be counted.
    pub fn tensor<T: Element>(&self, shape: impl AsRef<[usize]>) -> Result<DeviceTensorMut<'s>, TensorError> {
        self.tensor_of(shape, T::DTYPE)
    }

    /// A temporary tensor of a type that is known when the program runs; what it holds is not said, but that truth values are all
    /// false.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), and what the driver says.
    pub fn tensor_of(
        &self,
        shape: impl AsRef<[usize]>,
        dtype: DType,
    ) -> Result<DeviceTensorMut<'s>, TensorError> {
        let shape = shape.as_ref();
        let len = crate::tensor::count(shape)?;
        let address = self.take(len.checked_mul(dtype.size()))?;
        // SAFETY: the room has as many, aligned, and is ours for `'s` by the invariant.
        let mut tensor = unsafe { DeviceTensorMut::of_room(address, shape, dtype, self.queue) }?;
        if dtype == DType::Bool {
            // Only of these there are bytes that are none.
            tensor.fill(false)?;
        }
        Ok(tensor)
    }

    /// Runs `work` with temporaries that end with it, before those of this scope.
    pub fn scope<R>(&mut self, work: impl for<'i> FnOnce(&mut DeviceScratch<'i>) -> R) -> R {
        enter(self.arena.get_mut(), self.queue, work)
    }
}
