//! How pools and sources make buffers.

use super::Buffer;
use crate::block::{ALIGN, Memory};
use crate::error::AllocError;
use crate::pool::Pool;
use crate::tenant::Tenant;
use crate::unpooled::Unpooled;
use bytemuck::AnyBitPattern;
use std::mem::MaybeUninit;

macro_rules! make_buffers {
    ($from:ty; $(#[$doc:meta])*) => {
        $(#[$doc])*
        impl $from {
            /// A buffer of `len` elements of which nothing is known until they are written.
            ///
            /// # Errors
            /// When there is no memory for it.
            pub fn alloc<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
                Buffer::uninit(self.owner(), len, ALIGN)
            }

            /// The same, at an address that is a multiple of `align`, of 64 and of the elements' own alignment. What is
            /// made for larger pages or direct reads takes up to 2 MiB.
            ///
            /// # Errors
            /// When there is no memory for it, or `align` is no power of two.
            pub fn alloc_aligned<T: AnyBitPattern>(
                &self,
                len: usize,
                align: usize,
            ) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
                Buffer::uninit(self.owner(), len, align)
            }

            /// A buffer of `len` elements, all zero.
            ///
            /// # Errors
            /// When there is no memory for it.
            pub fn alloc_zeroed<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
                Buffer::zeroed(self.owner(), len, ALIGN)
            }

            /// The same, aligned as [`alloc_aligned`](Self::alloc_aligned) does.
            ///
            /// # Errors
            /// When there is no memory for it, or `align` is no power of two.
            pub fn alloc_zeroed_aligned<T: AnyBitPattern>(
                &self,
                len: usize,
                align: usize,
            ) -> Result<Buffer<T>, AllocError> {
                Buffer::zeroed(self.owner(), len, align)
            }

            /// A buffer that holds a copy of a slice.
            ///
            /// # Errors
            /// When there is no memory for it.
            pub fn alloc_from<T: AnyBitPattern>(&self, values: &[T]) -> Result<Buffer<T>, AllocError> {
                let mut buffer = self.alloc::<T>(values.len())?;
                buffer.write_first(values);
                // SAFETY: every element was written just now, as the buffer is as long as the slice.
                Ok(unsafe { buffer.assume_init() })
            }

            /// A buffer of `len` elements that a function makes from their places.
            ///
            /// # Errors
            /// When there is no memory for it.
            pub fn alloc_from_fn<T: AnyBitPattern>(
                &self,
                len: usize,
                value: impl FnMut(usize) -> T,
            ) -> Result<Buffer<T>, AllocError> {
                Ok(self.alloc(len)?.write_with(value))
            }

            /// A buffer of what an iterator gives, which says how many that are. Of one that says too few the rest is
            /// left in it; of one that says too many the buffer is as long as what came.
            ///
            /// # Errors
            /// When there is no memory for it.
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
    /// Buffers of a pool. A length of 0 asks for nothing: no block is taken, and none is counted.
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
    /// Buffers at a tenant's expense.
);
make_buffers!(
    Unpooled;
    /// Buffers of a source, each mapped for itself. A length of 0 asks for nothing.
);
