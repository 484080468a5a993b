//! Blocks with the alignment that suits every type.

use libc::{EINVAL, ENOMEM, c_int, c_void};
use millpond_pool::global::malloc::{self, ALIGN};
use std::ptr::{self, NonNull};

/// The largest size of a block. In a larger block, the difference of two pointers would overflow `ptrdiff_t`.
const MOST: usize = isize::MAX as usize;

/// Sets the error of this thread.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the function returns the address of this thread's error, which lives as long as the thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.write(error) };
}

/// Allocates a block, and sets the error if there is not enough memory.
#[inline(always)]
pub(crate) fn allocate(bytes: usize, align: usize, zeroed: bool) -> *mut c_void {
    if bytes <= MOST {
        let block = malloc::allocate(bytes, align, zeroed);
        if !block.is_null() {
            return block.cast();
        }
    }
    refuse()
}

#[cold]
#[inline(never)]
fn refuse() -> *mut c_void {
    set_errno(ENOMEM);
    ptr::null_mut()
}

/// Aborts the program, because a pointer does not belong to a block. Continuing would corrupt memory.
#[cold]
#[inline(never)]
fn wrong_pointer(function: &str, pointer: *mut c_void) -> ! {
    millpond_pool::global::malloc::abort(&format!(
        "millpond: {function}({pointer:p}): this is not the address of a block that malloc returned\n"
    ))
}

/// Allocates a block of at least `bytes` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    allocate(bytes, ALIGN, false)
}

/// Allocates a zeroed block for `count` elements of `bytes` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        Some(bytes) => allocate(bytes, ALIGN, true),
        None => refuse(),
    }
}

/// Frees a block. Does nothing with a null pointer.
///
/// # Safety
/// The pointer is null, or that of a live block from these functions. Nothing uses the block any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    let Some(of) = NonNull::new(block.cast()) else {
        return;
    };
    // SAFETY: the caller guarantees the conditions.
    if !unsafe { malloc::free(of) } {
        wrong_pointer("free", block);
    }
}

/// Frees a block like [`free`]. The size is not needed.
///
/// # Safety
/// The conditions of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _bytes: usize) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { free(block) };
}

/// Frees a block like [`free`]. The size and the alignment are not needed.
///
/// # Safety
/// The conditions of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _bytes: usize) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { free(block) };
}

/// Frees a block like [`free`]. Old programs call this.
///
/// # Safety
/// The conditions of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { free(block) };
}

/// Changes the size of a block, which may move.
///
/// # Safety
/// The conditions of [`free`]. After success only the returned block is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(old) = NonNull::new(block.cast::<u8>()) else {
        return malloc(bytes);
    };
    if bytes == 0 {
        // SAFETY: the caller guarantees the conditions.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: the caller guarantees the conditions.
    let Some(has) = (unsafe { malloc::usable_bytes(old) }) else {
        wrong_pointer("realloc", block);
    };
    if bytes > MOST {
        return refuse();
    }
    // SAFETY: the caller guarantees the conditions, and the block has as many bytes.
    let new = unsafe { malloc::reallocate(old, has, bytes) };
    if new.is_null() { refuse() } else { new.cast() }
}

/// Changes the size of a block to that of `count` elements of `bytes` bytes.
///
/// # Safety
/// The conditions of [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller guarantees the conditions.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => refuse(),
    }
}

/// Returns the size of a block, or 0 for a null pointer. The program may use all of these bytes.
///
/// # Safety
/// The pointer is null, or that of a live block from these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    let Some(of) = NonNull::new(block.cast()) else {
        return 0;
    };
    // SAFETY: the caller guarantees the conditions.
    match unsafe { malloc::usable_bytes(of) } {
        Some(bytes) => bytes,
        None => wrong_pointer("malloc_usable_size", block),
    }
}

/// Returns an error code if an alignment is not a power of two.
pub(crate) fn check_align(align: usize) -> Result<(), c_int> {
    if align.is_power_of_two() {
        Ok(())
    } else {
        Err(EINVAL)
    }
}
