//! Storage: owned memory for elements whose type is known only at run time.

#[cfg(test)]
mod tests;

use crate::block::{ALIGN, Memory, Owner};
use crate::buffer::Buffer;
use crate::dtype::{DType, DTypeError, Element};
use crate::pool::{Pool, PoolRef};
use crate::tenant::Tenant;
use crate::unpooled::Unpooled;
use millpond_account::error::AllocError;
use millpond_account::memory::MemoryKind;
use millpond_os::device::Device;
use std::fmt;
use std::ptr::NonNull;

/// Memory for elements of a [`DType`], from a pool or a source. Tensors are built on it.
///
/// It is aligned to 64 bytes, and freed when dropped or by [`free`](Self::free), on any thread. The pointer, the bytes, the
/// number of elements, the device, the type and the pool can be read at any time.
///
/// ```
/// use millpond::{DType, Device, Pool};
///
/// let pool = Pool::host()?;
/// let mut storage = pool.storage(DType::F32, 100)?;
/// storage.as_mut_slice::<f32>()?.fill(2.0);
/// assert_eq!((storage.elements(), storage.bytes()), (100, 400));
/// assert_eq!((storage.dtype(), storage.device()), (DType::F32, Device::Host));
/// assert!(storage.pool().is_some_and(|of| of == pool));
/// assert!(storage.as_slice::<i32>().is_err());
///
/// let buffer = storage.try_into_buffer::<f32>().expect("they are f32");
/// assert_eq!(buffer.iter().sum::<f32>(), 200.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Storage {
    /// Whole elements, aligned for their type.
    bytes: Buffer<u8>,
    dtype: DType,
}

impl Storage {
    #[doc(hidden)]
    pub fn zeroed(owner: Owner, dtype: DType, elements: usize) -> Result<Self, AllocError> {
        let bytes = elements.checked_mul(dtype.size());
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        Ok(Self {
            bytes: Buffer::zeroed(owner, bytes, ALIGN)?,
            dtype,
        })
    }

    /// Creates a storage from bytes that are whole elements of a type.
    #[doc(hidden)]
    pub fn of(bytes: Buffer<u8>, dtype: DType) -> Self {
        debug_assert!(bytes.len().is_multiple_of(dtype.size()));
        Self { bytes, dtype }
    }

    /// Returns a pointer to the first byte. If there are no elements, there is no first byte.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        self.bytes.pointer()
    }

    /// Returns the bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.bytes() / self.dtype.size()
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the device of the memory.
    #[must_use]
    pub fn device(&self) -> Device {
        self.bytes.device()
    }

    /// Returns the kind of the memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.bytes.kind()
    }

    /// Returns the pool that the memory belongs to, or `None` if it came from a source directly.
    #[must_use]
    pub fn pool(&self) -> Option<PoolRef> {
        self.bytes.pool()
    }

    /// Returns whether the memory belongs to another library, which lent it to a tensor. Such
    /// memory is aligned for its elements only.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.bytes.is_foreign()
    }

    /// Returns whether the memory may be written. This does not depend on borrows.
    #[doc(hidden)]
    pub fn is_writable(&self) -> bool {
        self.bytes.is_writable()
    }

    /// Returns the elements as a slice.
    ///
    /// # Errors
    /// Returns an error if the elements are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], DTypeError> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice(&self.bytes))
    }

    /// Returns the elements as a mutable slice.
    ///
    /// # Errors
    /// Returns an error if the elements are of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], DTypeError> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice_mut(&mut self.bytes))
    }

    /// Returns the elements as truth values, or `None` if the type is not [`DType::Bool`] or a byte is neither 0 nor 1.
    #[must_use]
    pub fn as_bools(&self) -> Option<&[bool]> {
        let bools = bytemuck::checked::try_cast_slice(&self.bytes).ok();
        bools.filter(|_| self.dtype == DType::Bool)
    }

    /// Returns the elements as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the elements as mutable bytes.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the owner that allocated the memory and can allocate more, or `None` if the memory is foreign.
    #[doc(hidden)]
    pub fn home(&self) -> Option<&Owner> {
        Some(self.bytes.owner()).filter(|owner| owner.foreign().is_none())
    }

    /// Returns the same owner as [`home`](Self::home), and the elements as mutable bytes.
    #[doc(hidden)]
    pub fn parts_mut(&mut self) -> (Option<&Owner>, &mut [u8]) {
        let (owner, bytes) = self.bytes.parts_mut();
        (Some(owner).filter(|owner| owner.foreign().is_none()), bytes)
    }

    /// Returns a copy in memory of the same pool or source.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or if the memory belongs to another library
    /// ([`AllocError::Foreign`]).
    pub fn try_clone(&self) -> Result<Self, AllocError> {
        Ok(Self {
            bytes: self.bytes.try_clone()?,
            dtype: self.dtype,
        })
    }

    /// Converts the storage to a buffer. Nothing is copied.
    ///
    /// # Errors
    /// Returns the storage itself if its elements are of another type.
    pub fn try_into_buffer<T: Element>(self) -> Result<Buffer<T>, Self> {
        if self.expect::<T>().is_err() {
            return Err(self);
        }
        let dtype = self.dtype;
        self.bytes.try_cast().map_err(|bytes| Self { bytes, dtype })
    }

    /// Frees the memory now.
    pub fn free(self) {}

    fn expect<T: Element>(&self) -> Result<(), DTypeError> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(DTypeError {
            expected: T::DTYPE,
            found: self.dtype,
        })
    }
}

/// Adds an allocation method to the types that buffers are allocated from.
macro_rules! make_storage {
    ($($from:ty)*) => {
        $(impl $from {
            /// Allocates zeroed memory for elements of a type that is known only at run time.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory.
            pub fn storage(&self, dtype: DType, elements: usize) -> Result<Storage, AllocError> {
                Storage::zeroed(self.owner(), dtype, elements)
            }
        })*
    };
}

make_storage!(Pool Tenant Unpooled);

/// Takes over the memory of the buffer. Nothing is copied.
impl<T: Element> From<Buffer<T>> for Storage {
    fn from(buffer: Buffer<T>) -> Self {
        Self {
            bytes: buffer.into_bytes(),
            dtype: T::DTYPE,
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage")
            .field("dtype", &self.dtype)
            .field("elements", &self.elements())
            .field("device", &self.device())
            .field("pool", &self.pool())
            .finish_non_exhaustive()
    }
}
