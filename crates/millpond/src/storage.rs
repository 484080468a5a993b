//! Storage: owned memory for elements whose type is known only when the program runs.

#[cfg(test)]
mod tests;

use crate::block::{ALIGN, Memory, Owner};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::{DType, DTypeError, Element};
use crate::error::AllocError;
use crate::memory::MemoryKind;
use crate::pool::{Pool, PoolRef};
use crate::tenant::Tenant;
use crate::unpooled::Unpooled;
use std::fmt;
use std::ptr::NonNull;

/// Memory for elements of a [`DType`], of a pool or of none. What a tensor stands on.
///
/// Aligned to 64 bytes, given back when dropped or by [`free`](Self::free), from any thread. Pointer, bytes, elements,
/// device, dtype and pool can be read at any time.
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
    /// Of whole elements, and as aligned as any of them.
    bytes: Buffer<u8>,
    dtype: DType,
}

impl Storage {
    pub(crate) fn zeroed(owner: Owner, dtype: DType, elements: usize) -> Result<Self, AllocError> {
        let bytes = elements.checked_mul(dtype.size());
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        Ok(Self {
            bytes: Buffer::zeroed(owner, bytes, ALIGN)?,
            dtype,
        })
    }

    /// Bytes that are whole elements of a type.
    pub(crate) fn of(bytes: Buffer<u8>, dtype: DType) -> Self {
        debug_assert!(bytes.len().is_multiple_of(dtype.size()));
        Self { bytes, dtype }
    }

    /// The first byte; there is none where there are no elements.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        self.bytes.pointer()
    }

    /// Bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.bytes() / self.dtype.size()
    }

    /// Their type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where they are.
    #[must_use]
    pub fn device(&self) -> Device {
        self.bytes.device()
    }

    /// The kind of memory they are in.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.bytes.kind()
    }

    /// The pool the memory came from; none where it came from a source directly.
    #[must_use]
    pub fn pool(&self) -> Option<PoolRef> {
        self.bytes.pool()
    }

    /// Whether the memory is that of others, who lent it to a [tensor](crate::Tensor::is_foreign). It is then aligned for its
    /// elements and not more.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.bytes.is_foreign()
    }

    /// Whether the memory may be written, which is not a question of who borrows it.
    pub(crate) fn is_writable(&self) -> bool {
        self.bytes.is_writable()
    }

    /// The elements.
    ///
    /// # Errors
    /// Where they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], DTypeError> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice(&self.bytes))
    }

    /// The elements, to be written too.
    ///
    /// # Errors
    /// Where they are of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], DTypeError> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice_mut(&mut self.bytes))
    }

    /// The elements as truth values; none where the type is not [`DType::Bool`] or a byte is neither 0 nor 1.
    #[must_use]
    pub fn as_bools(&self) -> Option<&[bool]> {
        let bools = bytemuck::checked::try_cast_slice(&self.bytes).ok();
        bools.filter(|_| self.dtype == DType::Bool)
    }

    /// The elements as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as bytes, to be written too.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the owner that allocated the memory and can allocate more, or `None` if the memory is foreign.
    pub(crate) fn home(&self) -> Option<&Owner> {
        Some(self.bytes.owner()).filter(|owner| owner.foreign().is_none())
    }

    /// Returns the same owner as [`home`](Self::home), and the elements as mutable bytes.
    pub(crate) fn parts_mut(&mut self) -> (Option<&Owner>, &mut [u8]) {
        let (owner, bytes) = self.bytes.parts_mut();
        (Some(owner).filter(|owner| owner.foreign().is_none()), bytes)
    }

    /// A copy in memory of the same pool or source.
    ///
    /// # Errors
    /// When there is no memory for it, and where it is that of others ([`AllocError::Foreign`]).
    pub fn try_clone(&self) -> Result<Self, AllocError> {
        Ok(Self {
            bytes: self.bytes.try_clone()?,
            dtype: self.dtype,
        })
    }

    /// The same memory as a buffer; nothing is copied.
    ///
    /// # Errors
    /// The storage itself, where its elements are of another type.
    pub fn try_into_buffer<T: Element>(self) -> Result<Buffer<T>, Self> {
        if self.expect::<T>().is_err() {
            return Err(self);
        }
        let dtype = self.dtype;
        self.bytes.try_cast().map_err(|bytes| Self { bytes, dtype })
    }

    /// Gives the memory back now.
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

/// The same memory; nothing is copied.
macro_rules! make_storage {
    ($($from:ty)*) => {
        $(impl $from {
            /// Allocates memory for elements of a type that is known when the program runs, all zero.
            ///
            /// # Errors
            /// If there is no memory for it.
            pub fn storage(&self, dtype: DType, elements: usize) -> Result<Storage, AllocError> {
                Storage::zeroed(self.owner(), dtype, elements)
            }
        })*
    };
}

make_storage!(Pool Tenant Unpooled);

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
