//! Functions that use the current set, see [`pools`].

use super::here::with_host;
use super::{PoolsStats, pools};
use bytemuck::AnyBitPattern;
use millpond_account::error::AllocError;
use millpond_engine::Compaction;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::DType;
use millpond_pool::pool::Pool;
use millpond_pool::storage::Storage;
use std::mem::MaybeUninit;

/// Allocates from the current host pool.
pub fn draw<R, E: From<AllocError>>(work: impl FnOnce(&Pool) -> Result<R, E>) -> Result<R, E> {
    with_host(work).unwrap_or_else(|error| Err(AllocError::Pool(Box::new(error)).into()))
}

/// Allocates an uninitialised buffer of `len` elements in host memory of the current [set](pools), like [`Pool::alloc`].
///
/// ```
/// let squares = millpond::alloc::<u64>(100)?.write_with(|at| (at * at) as u64);
/// assert_eq!(squares[9], 81);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// Returns an error if memory cannot be allocated, and [`AllocError::Pool`] if the pool cannot be created.
pub fn alloc<T: AnyBitPattern>(len: usize) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
    draw(|pool| pool.alloc(len))
}

/// Allocates a buffer of `len` zeroed elements in host memory of the current [set](pools).
///
/// ```
/// assert!(millpond::alloc_zeroed::<f32>(1000)?.iter().all(|x| *x == 0.0));
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// Returns the errors of [`alloc`].
pub fn alloc_zeroed<T: AnyBitPattern>(len: usize) -> Result<Buffer<T>, AllocError> {
    draw(|pool| pool.alloc_zeroed(len))
}

/// Copies a slice to a buffer in host memory of the current [set](pools).
///
/// ```
/// assert_eq!(millpond::alloc_from(&[1u8, 2, 3])?[..], [1, 2, 3]);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// Returns the errors of [`alloc`].
pub fn alloc_from<T: AnyBitPattern>(values: &[T]) -> Result<Buffer<T>, AllocError> {
    draw(|pool| pool.alloc_from(values))
}

/// Allocates a buffer in host memory of the current [set](pools), whose `len` elements are the results of a function of their
/// indices.
///
/// ```
/// assert_eq!(millpond::alloc_from_fn(4, |at| at as u32)?[..], [0, 1, 2, 3]);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// Returns the errors of [`alloc`].
pub fn alloc_from_fn<T: AnyBitPattern>(
    len: usize,
    value: impl FnMut(usize) -> T,
) -> Result<Buffer<T>, AllocError> {
    draw(|pool| pool.alloc_from_fn(len, value))
}

/// Allocates zeroed host memory for elements of a type that is chosen at run time, from the current [set](pools).
///
/// ```
/// use millpond::DType;
///
/// assert_eq!(millpond::storage(DType::F64, 100)?.bytes(), 800);
/// # Ok::<(), millpond::AllocError>(())
/// ```
///
/// # Errors
/// Returns the errors of [`alloc`].
pub fn storage(dtype: DType, elements: usize) -> Result<Storage, AllocError> {
    draw(|pool| pool.storage(dtype, elements))
}

/// Returns the statistics of the current [set](pools).
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

/// Returns all unused memory of every pool of the current [set](pools) to the system, like [`Pool::trim`].
///
/// ```
/// millpond::empty_cache();
/// ```
pub fn empty_cache() {
    pools().trim();
}

/// Compacts every pool of the current [set](pools) and returns the result, like [`Pool::compact`].
///
/// ```
/// println!("{}", millpond::compact());
/// ```
pub fn compact() -> Compaction {
    pools().compact()
}

/// Completes pending work in every pool of the current [set](pools), like [`Pool::collect_garbage`].
///
/// ```
/// millpond::collect_garbage();
/// ```
pub fn collect_garbage() {
    pools().collect_garbage();
}
