//! Blocks with a requested alignment.

use crate::blocks::{allocate, check_align, set_errno};
use libc::{EINVAL, ENOMEM, c_int, c_void};
use millpond_pool::global::malloc::ALIGN;
use std::ptr;

/// Returns the size of a page.
fn page() -> usize {
    millpond_os::page_bytes() as usize
}

/// Allocates a block at a multiple of `align`, and stores its address. Returns 0 or an error, and leaves `errno` as it was.
///
/// # Safety
/// `place` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    if check_align(align).is_err() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return EINVAL;
    }
    // SAFETY: the function returns the address of this thread's error, which lives as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let block = allocate(bytes, align.max(ALIGN), false);
    // SAFETY: as above.
    unsafe { errno.write(before) };
    if block.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller guarantees that `place` is valid for writes.
    unsafe { place.write(block) };
    0
}

/// Allocates a block at a multiple of `align`, a power of two. The size need not be a multiple of it.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    match check_align(align) {
        Ok(()) => allocate(bytes, align.max(ALIGN), false),
        Err(error) => {
            set_errno(error);
            ptr::null_mut()
        }
    }
}

/// Allocates a block aligned to `align`, rounded up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => aligned_alloc(align, bytes),
        None => {
            set_errno(EINVAL);
            ptr::null_mut()
        }
    }
}

/// Allocates a block at a page boundary.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: usize) -> *mut c_void {
    allocate(bytes, page(), false)
}

/// Allocates whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    match bytes.max(1).checked_next_multiple_of(page()) {
        Some(bytes) => allocate(bytes, page(), false),
        None => {
            set_errno(ENOMEM);
            ptr::null_mut()
        }
    }
}
