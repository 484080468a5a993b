//! Rental on devices: temporary buffers of at least a given length.

use super::buffer::{DeviceBuffer, bytes_of};
use super::captured;
use super::launch::{DeviceElements, sealed};
use super::pool::DevicePool;
use super::span::Span;
use super::stream::{CudaStream, captures};
use millpond_account::error::AllocError;
use millpond_pool::dtype::{DType, Element};
use millpond_pool::rental::shelves::{Shelves, class_bytes, class_of};
use millpond_pool::rental::{KEPT, RentalStats};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A set of buffers on a device for users that may see each other's data. It is the device's counterpart of
/// [`Rental`](millpond_pool::Rental).
///
/// The set keeps returned buffers and rents them again on the stream that they were allocated on, without clearing them: **the contents are
/// those that the last renter of the same set left**. New memory from the pool contains arbitrary bytes. If that is not acceptable, use a
/// pool that [clears](super::DevicePoolBuilder::zero_on_reuse), or [`DevicePool::rent`]. Buffers that are rented on a captured stream
/// belong to the graph and are never kept. Cloning makes another handle.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let rental = pool.rental();
/// let mut rows = rental.rent::<f32>(300, &stream)?;
/// assert_eq!(rows.len(), 512);
/// rows.copy_from_host(&[1.0; 512])?;
/// rows.give_back();
/// assert_eq!(rental.rent::<f32>(400, &stream)?.to_vec()?[0], 1.0);
/// assert_eq!((rental.stats().rents, rental.stats().reuses), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceRental {
    shelves: Arc<Shelves<DeviceBuffer<u8>>>,
    pool: DevicePool,
}

impl fmt::Debug for DeviceRental {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl DevicePool {
    /// Rents a buffer of at least `min_len` elements and queues its zeroing on the stream. Its size is that of its class: a power of two
    /// from 1 KiB to 1 MiB, or whole MiB. It is freed when it is dropped.
    ///
    /// # Errors
    /// Returns the errors of [`alloc_zeroed`](Self::alloc_zeroed).
    pub fn rent<T: Element>(
        &self,
        min_len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceRented<T>, AllocError> {
        let (_, bytes) = class_of(bytes_of::<T>(min_len)?)?;
        let buffer = self.alloc_zeroed(bytes, stream)?;
        Ok(DeviceRented::new(buffer, None))
    }

    /// Returns a set of buffers to rent, which keeps up to 16 buffers of each class.
    #[must_use]
    pub fn rental(&self) -> DeviceRental {
        self.rental_of(KEPT)
    }

    /// Returns a set of buffers to rent, which keeps up to `most_kept` buffers of each class.
    #[must_use]
    pub fn rental_of(&self, most_kept: usize) -> DeviceRental {
        DeviceRental {
            shelves: Arc::new(Shelves::new(most_kept)),
            pool: self.clone(),
        }
    }
}

impl DeviceRental {
    /// Rents a buffer of at least `min_len` elements. Its length is that of its class, and is returned by [`DeviceBuffer::len`]. Buffers of
    /// more than 1 MiB are allocated each time.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn rent<T: Element>(
        &self,
        min_len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceRented<T>, AllocError> {
        let (class, bytes) = class_of(bytes_of::<T>(min_len)?)?;
        let class = class.filter(|_| !(captured::any() && captures::is_captured(stream.raw())));
        let kept = self.shelves.take(class, |kept| kept.stream() == stream);
        // Work on other streams must come before the work of the next renter. If that is not possible, the buffer is freed.
        let kept = kept.filter(|kept| !kept.would_join());
        let kept = kept.and_then(|mut kept| kept.wait_for_uses().is_ok().then_some(kept));
        let buffer = match kept {
            Some(buffer) => buffer,
            None => self.pool.alloc(bytes, stream)?,
        };
        Ok(DeviceRented::new(
            buffer,
            class.map(|class| (self.clone(), class)),
        ))
    }

    /// Returns counts of rentals and of the buffers that are kept now.
    #[must_use]
    pub fn stats(&self) -> RentalStats {
        self.shelves.stats()
    }

    /// Frees the kept buffers: their memory returns to the pool.
    pub fn clear(&self) {
        self.shelves.clear();
    }

    fn keep(&self, class: usize, buffer: DeviceBuffer<u8>) {
        // The renter may have swapped in another buffer. A graph's buffer stays with the graph. The users of a buffer that was lent to
        // cudarc and never returned are not known.
        let ours = buffer.len() == class_bytes(class) && buffer.pool() == Some(&self.pool);
        if ours && !buffer.is_lent() {
            self.shelves.keep(class, buffer);
        }
    }
}

/// A rented buffer on a device, which dereferences to a [`DeviceBuffer`]. All of its elements may be used. It is returned when it is
/// dropped.
pub struct DeviceRented<T: Element> {
    buffer: DeviceBuffer<T>,
    home: Option<(DeviceRental, usize)>,
}

impl<T: Element> DeviceRented<T> {
    /// Takes a buffer of whole elements.
    fn new(mut bytes: DeviceBuffer<u8>, home: Option<(DeviceRental, usize)>) -> Self {
        Self {
            buffer: bytes.take(),
            home,
        }
    }

    /// Returns the buffer to its set now, or frees it if it has no set.
    pub fn give_back(self) {}
}

impl<T: Element> Drop for DeviceRented<T> {
    fn drop(&mut self) {
        if let Some((rental, class)) = self.home.take() {
            rental.keep(class, self.buffer.take());
        }
    }
}

impl<T: Element> Deref for DeviceRented<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Element> DerefMut for DeviceRented<T> {
    fn deref_mut(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }
}

impl<T: Element> DeviceElements for DeviceRented<T> {}

impl<T: Element> sealed::Elements for DeviceRented<T> {
    fn elements(&self) -> (Span<'_>, DType) {
        (self.buffer.span(), T::DTYPE)
    }
}

impl<T: Element> fmt::Debug for DeviceRented<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}
