//! Rental: temporary use of buffers with at least the requested length.
//!
//! Lengths are rounded up to classes, so that a returned buffer fits the next request of a similar length. The classes are powers
//! of two from 1 KiB to 1 MiB. The sizes of longer buffers are multiples of 1 MiB, and these buffers are never kept.

pub mod shelves;
#[cfg(test)]
mod tests;

pub use shelves::RentalStats;

use crate::block::Memory;
use crate::block::{ALIGN, bytes_of};
use crate::buffer::Buffer;
use crate::pool::Pool;
use bytemuck::Pod;
use millpond_account::error::AllocError;
use shelves::{Shelves, class_bytes, class_of};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The default of the number of kept buffers of each class.
pub const KEPT: usize = 16;

/// A set of buffers for users that may see each other's data.
///
/// The set keeps returned buffers and rents them again without clearing them: **a buffer contains the data of its last renter
/// in the same set**, or zeros the first time. Two sets never see each other's data, because buffers that come from the pool
/// are zeroed. Give each tenant a set of its own, or use [`Pool::rent`], which always returns zeroed buffers. Cloning creates
/// another handle.
///
/// ```
/// use millpond::Pool;
///
/// let pool = Pool::host()?;
/// let rental = pool.rental();
/// let mut rows = rental.rent::<f32>(300)?;
/// assert_eq!((rows.len(), rows[0]), (512, 0.0));
/// rows[0] = 1.0;
/// rows.give_back();
/// assert_eq!(rental.rent::<f32>(400)?[0], 1.0);
/// assert_eq!((rental.stats().rents, rental.stats().reuses), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Rental {
    shelves: Arc<Shelves<Buffer<u8>>>,
    from: Arc<dyn Memory + Send + Sync>,
}

impl fmt::Debug for Rental {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl Rental {
    pub(crate) fn over(from: Arc<dyn Memory + Send + Sync>, most: usize) -> Self {
        Self {
            shelves: Arc::new(Shelves::new(most)),
            from,
        }
    }

    /// Rents a buffer of at least `min_len` elements. Its length is that of its class, which [`Rented::len`](slice::len)
    /// returns. Elements with an alignment above 64 bytes, and buffers of more than 1 MiB, are allocated each time.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn rent<T: Pod>(&self, min_len: usize) -> Result<Rented<T>, AllocError> {
        let (class, bytes) = class_of(bytes_of::<T>(min_len)?)?;
        let class = class.filter(|_| align_of::<T>() <= ALIGN);
        let buffer = match self.shelves.take(class, |_| true) {
            Some(buffer) => buffer,
            None => fresh::<T>(&*self.from, bytes)?,
        };
        Ok(Rented {
            buffer: elements(buffer),
            home: class.map(|class| (Arc::clone(&self.shelves), class)),
        })
    }

    /// Returns the counts of rented and of kept buffers.
    #[must_use]
    pub fn stats(&self) -> RentalStats {
        self.shelves.stats()
    }

    /// Returns the kept buffers to the pool.
    pub fn clear(&self) {
        self.shelves.clear();
    }
}

/// Allocates zeroed bytes that are aligned for elements.
fn fresh<T: Pod>(from: &dyn Memory, bytes: usize) -> Result<Buffer<u8>, AllocError> {
    Buffer::zeroed(from.owner(), bytes, ALIGN.max(align_of::<T>()))
}

/// Converts a buffer of bytes to a buffer of as many whole elements as fit. Returns `None` if it is not aligned for them.
fn elements<T: Pod>(mut bytes: Buffer<u8>) -> Option<Buffer<T>> {
    bytes.truncate(bytes.len() / size_of::<T>() * size_of::<T>());
    bytes.try_cast().ok()
}

impl Pool {
    /// Rents a buffer of at least `min_len` elements, all zero. Its length is that of its class: a power of two of bytes
    /// from 1 KiB to 1 MiB, or whole MiB. It is returned when it is dropped.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    ///
    /// ```
    /// let pool = millpond::Pool::host()?;
    /// let mut line = pool.rent::<u8>(3000)?;
    /// assert_eq!(line.len(), 4096);
    /// line[4095] = 1;
    /// line.give_back();
    /// assert_eq!(pool.rent::<u8>(3000)?[4095], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rent<T: Pod>(&self, min_len: usize) -> Result<Rented<T>, AllocError> {
        let (_, bytes) = class_of(bytes_of::<T>(min_len)?)?;
        Ok(Rented {
            buffer: elements(fresh::<T>(self, bytes)?),
            home: None,
        })
    }

    /// Creates a set of buffers to rent, which keeps up to 16 buffers of each class.
    #[must_use]
    pub fn rental(&self) -> Rental {
        self.rental_of(KEPT)
    }

    /// Creates a set of buffers to rent, which keeps up to `most_kept` buffers of each class.
    #[must_use]
    pub fn rental_of(&self, most_kept: usize) -> Rental {
        Rental::over(Arc::new(self.clone()), most_kept)
    }
}

/// A rented buffer. It derefs to its elements, all of which may be used, and is returned when it is dropped.
pub struct Rented<T: Pod> {
    /// `Some` until the drop.
    buffer: Option<Buffer<T>>,
    home: Option<(Arc<Shelves<Buffer<u8>>>, usize)>,
}

impl<T: Pod> Rented<T> {
    /// Returns the buffer now.
    pub fn give_back(self) {}
}

impl<T: Pod> Drop for Rented<T> {
    fn drop(&mut self) {
        if let (Some(buffer), Some((shelves, class))) = (self.buffer.take(), &self.home) {
            let mut bytes = buffer.into_bytes();
            // If the element size does not divide the class, bytes are missing at the end. They are added here.
            if bytes.try_grow_zeroed(class_bytes(*class)).is_ok() {
                shelves.keep(*class, bytes);
            }
        }
    }
}

impl<T: Pod> Deref for Rented<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl<T: Pod> DerefMut for Rented<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Rented<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
