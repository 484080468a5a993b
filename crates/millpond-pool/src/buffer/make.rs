//! Allocates buffers from pools and sources.

use super::Buffer;
use crate::block::{ALIGN, Memory, OwnedBlock, Owner, align_of_elements, bytes_of};
use crate::pool::Pool;
use crate::tenant::Tenant;
use crate::unpooled::Unpooled;
use bytemuck::AnyBitPattern;
use millpond_account::error::AllocError;
use std::mem::MaybeUninit;

macro_rules! make_buffers {
    ($from:ty; $(#[$doc:meta])*) => {
        $(#[$doc])*
        impl $from {
            /// Allocates a buffer of `len` uninitialised elements.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory.
            #[inline(always)]
            pub fn alloc<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
                Buffer::uninit(self.owner(), len, ALIGN)
            }

            /// Allocates a buffer of `len` uninitialised elements at an address that is a multiple of `align`, of 64 and of
            /// the elements' alignment. Buffers for larger pages or for direct reads need alignments of up to 2 MiB.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory, or if `align` is not a power of two.
            #[inline(always)]
            pub fn alloc_aligned<T: AnyBitPattern>(
                &self,
                len: usize,
                align: usize,
            ) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
                Buffer::uninit(self.owner(), len, align)
            }

            /// Allocates a buffer of `len` elements, all zero.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory.
            #[inline(always)]
            pub fn alloc_zeroed<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
                Buffer::zeroed(self.owner(), len, ALIGN)
            }

            /// Allocates a buffer of `len` elements, all zero, with the alignment of
            /// [`alloc_aligned`](Self::alloc_aligned).
            ///
            /// # Errors
            /// Returns an error if there is not enough memory, or if `align` is not a power of two.
            #[inline(always)]
            pub fn alloc_zeroed_aligned<T: AnyBitPattern>(
                &self,
                len: usize,
                align: usize,
            ) -> Result<Buffer<T>, AllocError> {
                Buffer::zeroed(self.owner(), len, align)
            }

            /// Allocates a buffer that contains a copy of a slice.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory.
            #[inline(always)]
            pub fn alloc_from<T: AnyBitPattern>(&self, values: &[T]) -> Result<Buffer<T>, AllocError> {
                let mut buffer = self.alloc::<T>(values.len())?;
                buffer.write_first(values);
                // SAFETY: every element was written just now, because the buffer is as long as the slice.
                Ok(unsafe { buffer.assume_init() })
            }

            /// Allocates a buffer of `len` elements. `value` returns the element for each index.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory.
            #[inline]
            pub fn alloc_from_fn<T: AnyBitPattern>(
                &self,
                len: usize,
                value: impl FnMut(usize) -> T,
            ) -> Result<Buffer<T>, AllocError> {
                Ok(self.alloc(len)?.write_with(value))
            }

            /// Allocates a buffer of an iterator's elements. If the iterator has more elements than its length says, the
            /// buffer contains only the first of them, and the others stay in the iterator. If it has fewer, the buffer is
            /// shorter.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory.
            #[inline]
            pub fn alloc_from_iter<T: AnyBitPattern, I: IntoIterator<Item = T>>(
                &self,
                values: I,
            ) -> Result<Buffer<T>, AllocError>
            where
                I::IntoIter: ExactSizeIterator,
            {
                Buffer::collect(self.owner(), values.into_iter())
            }
        }
    };
}

make_buffers!(
    Pool;
    /// Allocation of buffers in a pool. A buffer of length 0 allocates no block and is not counted.
    ///
    /// ```
    /// use millpond::Pool;
    ///
    /// let pool = Pool::host()?;
    /// let ramp = pool.alloc_from_iter((0..1000).map(f64::from))?;
    /// let table = pool.alloc_aligned::<[f32; 4]>(256, 2 << 20)?.fill([0.5; 4]);
    /// assert_eq!((ramp[999], table[255]), (999.0, [0.5; 4]));
    /// assert!(table.as_ptr().addr().is_multiple_of(2 << 20));
    /// assert!(pool.alloc::<u64>(usize::MAX).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
);
make_buffers!(
    Tenant;
    /// Allocation of buffers that are charged to a tenant.
);
make_buffers!(
    Unpooled;
    /// Allocation of buffers in a source. Each buffer has its own mapping. A buffer of length 0 needs no memory.
);

impl<T: AnyBitPattern> Buffer<MaybeUninit<T>> {
    /// Allocates `len` uninitialised elements.
    #[doc(hidden)]
    #[inline(always)]
    pub fn uninit(owner: Owner, len: usize, align: usize) -> Result<Self, AllocError> {
        let align = align_of_elements::<T>(align)?;
        let block = OwnedBlock::allocate(owner, bytes_of::<T>(len)?, align, false)?;
        // Any bytes are a value of `MaybeUninit`.
        Ok(Self::of(block, len))
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Allocates `len` elements, all zero.
    #[doc(hidden)]
    #[inline(always)]
    pub fn zeroed(owner: Owner, len: usize, align: usize) -> Result<Self, AllocError> {
        let align = align_of_elements::<T>(align)?;
        let block = OwnedBlock::allocate(owner, bytes_of::<T>(len)?, align, true)?;
        // All zeros are a value of `T`.
        Ok(Self::of(block, len))
    }
}
