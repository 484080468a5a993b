//! Borrowed views of elements on a device. The elements may have any owner.

use super::storage::{DeviceView, ElementMemory};
use super::{DeviceTensor, DeviceTensorMut};
use crate::batches::{Batched, Batches};
use crate::error::TensorError;
use crate::layout::Layout;
use crate::view::facts;
use crate::views::{batched, repeats, views};
use millpond_cuda::{CudaQueue, CudaStream, DeviceElements};
use millpond_os::device::Device;
use millpond_pool::dtype::DType;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// Defines the methods of borrowed views that describe the memory of the elements.
macro_rules! borrowed_facts {
    () => {
        /// Returns the type of the elements.
        #[must_use]
        pub fn dtype(&self) -> DType {
            self.place.dtype()
        }

        /// Returns the device of the elements.
        #[must_use]
        pub fn device(&self) -> Device {
            Device::Cuda(self.stream().device().number())
        }

        /// Returns the stream on which work is queued.
        #[must_use]
        pub fn stream(&self) -> &CudaStream {
            self.place.queue().stream()
        }

        /// Returns the first element's address on the device, like [`DeviceTensor::address`].
        #[must_use]
        pub fn address(&self) -> u64 {
            self.side().address()
        }
    };
}
pub(super) use borrowed_facts;

/// A borrowed view of elements on a device, for reading. Copying the view does not copy the elements.
///
/// [`view`](DeviceTensor::view) returns one of a [`DeviceTensor`]. Every other buffer on the device can be viewed too: a
/// [`DeviceBuffer`](millpond_cuda::DeviceBuffer), a rented buffer, a chunk of a file, or a
/// [`DeviceSlice`](millpond_cuda::DeviceSlice).
///
/// ```
/// use millpond::Device;
/// use millpond::cuda::{DeviceTensorMut, DeviceTensorRef};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if millpond::cuda::CudaDevice::get(0).is_err() { return Ok(()) }
/// let queue = millpond::pools().cuda_queue(0)?;
/// let x = queue.pool().alloc_from(&[1.0f32, 2.0, 3.0, 4.0], queue.stream())?;
/// let mut y = queue.pool().alloc_from(&[10.0f32, 20.0], queue.stream())?;
/// // y += 0.5 * x[0], x[2]
/// let every_second = DeviceTensorRef::from_buffer(&queue, &x, [4])?.step(0, 2)?;
/// DeviceTensorMut::from_buffer(&queue, &mut y, [2])?.axpy(0.5, every_second)?;
/// assert_eq!(y.to_vec()?, [10.5, 21.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct DeviceTensorRef<'a> {
    place: ElementMemory<'a>,
    /// The layout. Its elements lie in `place`.
    layout: Layout,
}

impl<'a> DeviceTensorRef<'a> {
    /// Returns a view of a buffer's elements with a shape, row by row.
    ///
    /// Work on the view is queued on the queue's stream. It is ordered with the buffer's stream: it runs after work that was queued on
    /// that stream earlier, and before work that is queued on that stream later.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape, or if the queue belongs to another device.
    pub fn from_buffer(
        queue: &'a CudaQueue,
        buffer: &'a impl DeviceElements,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let place = ElementMemory::borrowed(queue, buffer)?;
        let layout = Layout::of_elements(shape.as_ref(), place.elements())?;
        Ok(Self { place, layout })
    }

    pub(super) fn side(&self) -> DeviceView<'a> {
        DeviceView::of(self.place, self.layout)
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn viewed(
        &self,
        change: impl FnOnce(&mut Layout) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        let mut view = *self;
        change(&mut view.layout)?;
        Ok(view)
    }

    facts!();
    borrowed_facts!();

    /// Copies the elements to a new tensor of the queue's pool.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn to_tensor(&self) -> Result<DeviceTensor, TensorError> {
        let mut copy = DeviceTensor::unwritten(self.place.queue(), self.shape(), self.dtype())?;
        copy.view_mut()?.target().copy(self.side())?;
        Ok(copy)
    }
}

/// Views of the same elements. None of these methods copies an element or calls an allocator or the driver.
impl<'a> DeviceTensorRef<'a> {
    views!(self, [&self], DeviceTensorRef<'a>);
    repeats!(DeviceTensorRef<'a>);
}

batched!(DeviceTensorRef<'_>);

impl DeviceTensor {
    /// Borrows a view for reading.
    #[must_use]
    pub fn view(&self) -> DeviceTensorRef<'_> {
        DeviceTensorRef {
            place: self.storage.place(),
            layout: self.layout,
        }
    }
}

impl<'a> DeviceTensorMut<'a> {
    /// Returns a view of a buffer's elements with a shape, row by row. Work is ordered as with [`DeviceTensorRef::from_buffer`].
    ///
    /// # Errors
    /// Returns the errors of [`DeviceTensorRef::from_buffer`].
    pub fn from_buffer(
        queue: &'a CudaQueue,
        buffer: &'a mut impl DeviceElements,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let view = DeviceTensorRef::from_buffer(queue, buffer, shape)?;
        Ok(Self {
            place: view.place,
            layout: view.layout,
            alone: PhantomData,
        })
    }

    /// Returns a view of the same elements for reading.
    #[must_use]
    pub fn as_ref(&self) -> DeviceTensorRef<'_> {
        DeviceTensorRef {
            place: self.place,
            layout: self.layout,
        }
    }
}

impl fmt::Debug for DeviceTensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.side().debug("DeviceTensorRef", f)
    }
}
