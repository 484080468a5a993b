//! Rental on devices: buffers of at least a length, for a while.

use super::buffer::DeviceBuffer;
use super::graph;
use super::pool::DevicePool;
use super::stream::CudaStream;
use crate::dtype::Element;
use crate::error::AllocError;
use crate::rental::shelves::{Shelves, class_bytes, class_of};
use crate::rental::{KEPT, RentalStats};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A set of buffers on a device for those who may see each other's data, as a [`Rental`](crate::Rental) of the host's.
///
/// What is given back is kept by the set, and rented again on the stream that it was asked for on, as it is: **contents are what the
/// last renter of the same set left**. What comes from the pool holds any bytes; where that may not be, the pool is one that
/// [clears](super::DevicePoolBuilder::zero_on_reuse), or [`DevicePool::rent`] is used. What a captured stream rents is the graph's,
/// and never kept. Cloning makes another handle.
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
    /// Rents a buffer of at least `min_len` elements, all zero once the stream has come so far. Its length is what memory comes in, a
    /// power of two of bytes from 1 KiB to 1 MiB or whole MiB. It goes back when dropped.
    ///
    /// # Errors
    /// As [`alloc_zeroed`](Self::alloc_zeroed).
    pub fn rent<T: Element>(
        &self,
        min_len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceRented<T>, AllocError> {
        let (_, bytes) = class_of(bytes_of::<T>(min_len)?)?;
        let buffer = self.alloc_zeroed(bytes, stream)?;
        Ok(DeviceRented::new(buffer, None))
    }

    /// A set of buffers to rent, which keeps up to 16 of each class.
    #[must_use]
    pub fn rental(&self) -> DeviceRental {
        self.rental_of(KEPT)
    }

    /// The same, which keeps up to so many of each class.
    #[must_use]
    pub fn rental_of(&self, most_kept: usize) -> DeviceRental {
        DeviceRental {
            shelves: Arc::new(Shelves::new(most_kept)),
            pool: self.clone(),
        }
    }
}

fn bytes_of<T: Element>(len: usize) -> Result<usize, AllocError> {
    len.checked_mul(size_of::<T>()).ok_or(AllocError::UNCOUNTABLE)
}

impl DeviceRental {
    /// Rents a buffer of at least `min_len` elements. Its length is that of its class, and [`DeviceBuffer::len`] says it.
    /// Buffers of more than 1 MiB are made anew each time.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn rent<T: Element>(
        &self,
        min_len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceRented<T>, AllocError> {
        let (class, bytes) = class_of(bytes_of::<T>(min_len)?)?;
        let class = class.filter(|_| !(graph::are_captured() && graph::is_captured(stream.raw())));
        let kept = self.shelves.take(class, |kept| kept.stream() == stream);
        // Work on other streams comes before the next renter's. One that cannot be made to goes back as it is.
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

    /// What was rented, and what is kept now.
    #[must_use]
    pub fn stats(&self) -> RentalStats {
        self.shelves.stats()
    }

    /// Gives back to the pool what waits to be rented.
    pub fn clear(&self) {
        self.shelves.clear();
    }

    fn keep(&self, class: usize, buffer: DeviceBuffer<u8>) {
        // It may be another one, swapped in by the renter; what is a graph's stays so; and of what was lent, and never came back,
        // nobody knows who uses it.
        let ours = buffer.len() == class_bytes(class) && buffer.pool() == Some(&self.pool);
        if ours && !buffer.is_lent() {
            self.shelves.keep(class, buffer);
        }
    }
}

/// A rented buffer on a device: derefs to a [`DeviceBuffer`], all elements of which may be used, and goes back when dropped.
pub struct DeviceRented<T: Element> {
    buffer: DeviceBuffer<T>,
    home: Option<(DeviceRental, usize)>,
}

impl<T: Element> DeviceRented<T> {
    /// Of a buffer of whole elements.
    fn new(mut bytes: DeviceBuffer<u8>, home: Option<(DeviceRental, usize)>) -> Self {
        Self {
            buffer: bytes.take(),
            home,
        }
    }

    /// Gives the buffer back now.
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

impl<T: Element> fmt::Debug for DeviceRented<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}
