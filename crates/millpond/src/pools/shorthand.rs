//! What acts on the set that holds here, see [`pools`].

use super::here::with_host;
use super::{PoolsStats, pools};
use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::storage::Storage;
use bytemuck::AnyBitPattern;
use millpond_engine::Compaction;
use std::mem::MaybeUninit;

/// Draws from the host's pool that holds here.
pub(crate) fn draw<R, E: From<AllocError>>(work: impl FnOnce(&Pool) -> Result<R, E>) -> Result<R, E> {
    with_host(work).unwrap_or_else(|error| Err(AllocError::Pool(Box::new(error)).into()))
}

/// A buffer of host memory of `len` elements of which nothing is known until they are written, from the
/// [set](pools) that holds here; as [`Pool::alloc`].
///
/// ```
/// let squares = millpond::alloc::<u64>(100)?.write_with(|at| (at * at) as u64);
/// assert_eq!(squares[9], 81);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// When there is no memory for it; [`AllocError::Pool`] where its pool cannot be made.
pub fn alloc<T: AnyBitPattern>(len: usize) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
    draw(|pool| pool.alloc(len))
}

/// A buffer of host memory of `len` elements, all zero, from the [set](pools) that holds here.
///
/// ```
/// assert!(millpond::alloc_zeroed::<f32>(1000)?.iter().all(|x| *x == 0.0));
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// As [`alloc`].
pub fn alloc_zeroed<T: AnyBitPattern>(len: usize) -> Result<Buffer<T>, AllocError> {
    draw(|pool| pool.alloc_zeroed(len))
}

/// A buffer of host memory that holds a copy of a slice, from the [set](pools) that holds here.
///
/// ```
/// assert_eq!(millpond::alloc_from(&[1u8, 2, 3])?[..], [1, 2, 3]);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// As [`alloc`].
pub fn alloc_from<T: AnyBitPattern>(values: &[T]) -> Result<Buffer<T>, AllocError> {
    draw(|pool| pool.alloc_from(values))
}

/// A buffer of host memory of `len` elements that a function makes from their places, from the [set](pools) that holds
/// here.
///
/// ```
/// assert_eq!(millpond::alloc_from_fn(4, |at| at as u32)?[..], [0, 1, 2, 3]);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// As [`alloc`].
pub fn alloc_from_fn<T: AnyBitPattern>(
    len: usize,
    value: impl FnMut(usize) -> T,
) -> Result<Buffer<T>, AllocError> {
    draw(|pool| pool.alloc_from_fn(len, value))
}

/// Host memory for elements of a type that is known when the program runs, all zero, from the [set](pools) that holds
/// here.
///
/// ```
/// use millpond::DType;
///
/// assert_eq!(millpond::storage(DType::F64, 100)?.bytes(), 800);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// As [`alloc`].
pub fn storage(dtype: DType, elements: usize) -> Result<Storage, AllocError> {
    draw(|pool| pool.storage(dtype, elements))
}

/// The account of the [set](pools) that holds here.
///
/// ```
/// let buffer = millpond::alloc_zeroed::<f32>(1000)?;
/// let stats = millpond::memory_stats();
/// assert!(stats.total.allocated.current >= 4000);
/// println!("{stats}");
/// # Ok::<(), millpond::AllocError>(())
/// ```
#[must_use]
pub fn memory_stats() -> PoolsStats {
    pools().stats()
}

/// Gives everything that no block uses back to the system, from every pool of the [set](pools) that holds here; as
/// [`Pool::trim`].
///
/// ```
/// millpond::empty_cache();
/// ```
pub fn empty_cache() {
    pools().trim();
}

/// Compacts every pool of the [set](pools) that holds here, and answers what it came to; as [`Pool::compact`].
///
/// ```
/// println!("{}", millpond::compact());
/// ```
pub fn compact() -> Compaction {
    pools().compact()
}

/// Finishes what is pending in every pool of the [set](pools) that holds here; as [`Pool::collect_garbage`].
///
/// ```
/// millpond::collect_garbage();
/// ```
pub fn collect_garbage() {
    pools().collect_garbage();
}
