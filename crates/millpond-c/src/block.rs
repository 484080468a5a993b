//! Blocks of host pools.

use crate::arguments::{Out, alignment};
use crate::handles::{HostPool, closed, end_if_empty, host_pool, millpond_pool};
use crate::status::{Failure, guard, millpond_status};
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

/// All bytes of the block are zero.
pub const MILLPOND_ZEROED: u32 = 1;

/// Returns the host pool of a handle, unless it was destroyed. Another thread may destroy it at any time. The functions that allocate
/// therefore check again after the allocation: if the pool was destroyed before the block was counted, the handle may be invalid already.
#[inline]
fn open_pool(pool: *mut millpond_pool) -> Result<&'static HostPool, Failure> {
    let entry = host_pool(pool.addr())?;
    match entry.destroyed.load(Ordering::Acquire) {
        false => Ok(entry),
        true => Err(closed()),
    }
}

/// Returns the failure of a request. If another thread has destroyed the pool in the meantime, this is the failure for a destroyed pool.
#[cold]
fn unless_destroyed(entry: &HostPool, error: impl Into<Failure>) -> Failure {
    match entry.destroyed.load(Ordering::Acquire) {
        true => closed(),
        false => error.into(),
    }
}

/// Returns whether a block is to be zeroed.
#[inline]
fn zeroed(flags: u32) -> Result<bool, Failure> {
    match flags {
        0 => Ok(false),
        MILLPOND_ZEROED => Ok(true),
        _ => Err(Failure::argument(format!(
            "the flags are {flags:#x}: pass 0 or MILLPOND_ZEROED"
        ))),
    }
}

/// Returns the layout of a request.
#[inline]
fn layout(bytes: usize, align: usize) -> Result<Layout, Failure> {
    let align = alignment(align)?;
    Layout::from_size_align(bytes, align).map_err(|_| {
        let text =
            format!("a request of {bytes} bytes at a multiple of {align} is larger than an address space");
        Failure::new(millpond_status::MILLPOND_TOO_LARGE, text)
    })
}

/// Allocates a block of host memory, at a multiple of `align` and of 64. `align` is a power of two, or 0 for 64. `flags` is 0 or
/// `MILLPOND_ZEROED`. The pool records the block, so `millpond_free` needs only its address and returns an error for a wrong one. A block of 0
/// bytes has an address of its own. On failure `block` is not changed.
///
/// Errors: `MILLPOND_OUT_OF_MEMORY`, `MILLPOND_TOO_LARGE`, `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE`, `MILLPOND_BROKEN`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc(
    pool: *mut millpond_pool,
    bytes: usize,
    align: usize,
    flags: u32,
    block: *mut *mut c_void,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(block, "block") }?;
        let entry = open_pool(pool)?;
        let zeroed = zeroed(flags)?;
        let layout = layout(bytes, align)?;
        let block = entry
            .pool
            .alloc_raw(layout.size(), layout.align())
            .map_err(|error| unless_destroyed(entry, error))?
            .cast::<u8>();
        if entry.destroyed.load(Ordering::Acquire) {
            // SAFETY: the block was allocated just now, and no other code has its address.
            let _ = unsafe { entry.pool.free_raw(block) };
            end_if_empty(pool, entry);
            return Err(closed());
        }
        let address = block.as_ptr();
        if zeroed {
            // SAFETY: the block has at least the requested bytes, and no other code has its address.
            unsafe { ptr::write_bytes(address, 0, bytes) };
        }
        out.set(address.cast());
        Ok(())
    })
}

/// Frees a block of `millpond_alloc`, on any thread. Does nothing if `block` is null.
///
/// Errors: `MILLPOND_INVALID_POINTER` if the address is not that of a live block of `millpond_alloc` of this pool, for example after a double
/// free, whose text names the first free; `MILLPOND_INVALID_HANDLE`. In both cases nothing is changed.
///
/// # Safety
/// Nothing uses the block any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free(pool: *mut millpond_pool, block: *mut c_void) -> millpond_status {
    guard(|| {
        let entry = host_pool(pool.addr())?;
        let Some(block) = NonNull::new(block.cast::<u8>()) else {
            return Ok(());
        };
        // SAFETY: the caller guarantees that nothing uses the block. The pool checks that it is one.
        let freed = unsafe { entry.pool.free_raw(block) };
        freed.map_err(|wrong| Failure::new(millpond_status::MILLPOND_INVALID_POINTER, wrong.to_string()))?;
        if entry.destroyed.load(Ordering::Acquire) {
            end_if_empty(pool, entry);
        }
        Ok(())
    })
}

/// Allocates a block of host memory that is freed by `millpond_free_sized` with the same size and alignment. The pool does not record it,
/// so this is several times as fast as `millpond_alloc`. `align` and `flags` are those of `millpond_alloc`. A request of 0 bytes allocates
/// nothing, and its pointer is not null.
///
/// Errors: those of `millpond_alloc`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc_sized(
    pool: *mut millpond_pool,
    bytes: usize,
    align: usize,
    flags: u32,
    block: *mut *mut c_void,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(block, "block") }?;
        let entry = open_pool(pool)?;
        let layout = layout(bytes, align)?;
        let block = match zeroed(flags)? {
            true => entry.pool.allocate_zeroed(layout),
            false => entry.pool.allocate(layout),
        }
        .map_err(|error| unless_destroyed(entry, error))?;
        if entry.destroyed.load(Ordering::Acquire) {
            // SAFETY: the block was allocated just now for this layout, and no other code has its address.
            unsafe { entry.pool.deallocate(block.cast(), layout) };
            end_if_empty(pool, entry);
            return Err(closed());
        }
        out.set(block.cast::<c_void>().as_ptr());
        Ok(())
    })
}

/// Frees a block of `millpond_alloc_sized`, on any thread. `bytes` and `align` are those of its allocation. Does nothing if `block` is null.
///
/// Like `free`, this does not check that the block is live: a wrong pointer, size or alignment is undefined behaviour.
///
/// Errors: `MILLPOND_INVALID_HANDLE`, `MILLPOND_INVALID_ARGUMENT` for an alignment that is not a power of two, and
/// `MILLPOND_INVALID_POINTER` for an address that is not a multiple of the alignment. In these cases nothing is changed.
///
/// # Safety
/// The block is a live block of `millpond_alloc_sized` of this pool with this size and alignment, and nothing uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free_sized(
    pool: *mut millpond_pool,
    block: *mut c_void,
    bytes: usize,
    align: usize,
) -> millpond_status {
    guard(|| {
        let entry = host_pool(pool.addr())?;
        let layout = layout(bytes, align)?;
        let Some(block) = NonNull::new(block.cast::<u8>()) else {
            return Ok(());
        };
        if block.addr().get() & (layout.align() - 1) != 0 {
            return Err(misaligned(block, layout.align()));
        }
        // SAFETY: the caller guarantees it.
        unsafe { entry.pool.deallocate(block, layout) };
        if entry.destroyed.load(Ordering::Acquire) {
            end_if_empty(pool, entry);
        }
        Ok(())
    })
}

#[cold]
fn misaligned(block: NonNull<u8>, align: usize) -> Failure {
    let text = format!("{block:p} is not a multiple of {align}, so it is not a block of this alignment");
    Failure::new(millpond_status::MILLPOND_INVALID_POINTER, text)
}
