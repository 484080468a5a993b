//! How pools and sources make buffers.

use super::Buffer;
use crate::block::{ALIGN, Owner};
use crate::dtype::DType;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::storage::Storage;
use crate::tenant::Tenant;
use crate::unpooled::Unpooled;
use bytemuck::AnyBitPattern;
use std::mem::MaybeUninit;

/// Where the types that hold memory get it from.
pub(crate) trait Memory {
    /// Who hands the blocks out.
    fn owner(&self) -> Owner;
}

/// What memory can be had from: a [`Pool`], a [`Tenant`] of one, a source that is [`Unpooled`]. No other type can be it.
pub trait Origin {
    /// Who hands the blocks out.
    #[doc(hidden)]
    fn handle(&self) -> Handle;
}

/// Who hands blocks out, for those outside who can do nothing with it.
#[derive(Debug)]
pub struct Handle(pub(crate) Owner);

macro_rules! origins {
    ($($from:ty)*) => {
        $(
            impl Origin for $from {
                #[inline]
                fn handle(&self) -> Handle {
                    Handle(Memory::owner(self))
                }
            }
        )*
    };
}

origins! { Pool Tenant Unpooled }

impl Memory for Pool {
    #[inline]
    fn owner(&self) -> Owner {
        Owner::Pool(self.heap())
    }
}

impl Memory for Unpooled {
    fn owner(&self) -> Owner {
        Self::owner(self)
    }
}

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

            /// Memory for elements of a type that is known when the program runs, all zero.
            ///
            /// # Errors
            /// When there is no memory for it.
            pub fn storage(&self, dtype: DType, elements: usize) -> Result<Storage, AllocError> {
                Storage::zeroed(self.owner(), dtype, elements)
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

impl Pool {
    /// The pool's number, which no other pool of this process ever has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.heap().number()
    }
}
