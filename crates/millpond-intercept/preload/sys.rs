//! The functions of the system that the standard library does not offer.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

mod c {
    use super::{c_char, c_int, c_long, c_void};

    #[repr(C)]
    pub(super) struct Timespec {
        pub(super) seconds: c_long,
        pub(super) nanos: c_long,
    }

    #[repr(C)]
    pub(super) struct DlInfo {
        pub(super) file: *const c_char,
        pub(super) base: *mut c_void,
        pub(super) symbol: *const c_char,
        pub(super) address: *mut c_void,
    }

    unsafe extern "C" {
        pub(super) fn mmap(
            at: *mut c_void,
            bytes: usize,
            access: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void;
        pub(super) fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
        pub(super) safe fn posix_fallocate(fd: c_int, offset: i64, bytes: i64) -> c_int;
        pub(super) fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
        pub(super) fn syscall(number: c_long, ...) -> c_long;
        pub(super) fn prctl(option: c_int, name: *mut c_char, ...) -> c_int;
        pub(super) fn dlopen(name: *const c_char, mode: c_int) -> *mut c_void;
        pub(super) fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char)
        -> *mut c_void;
        pub(super) fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    }
}

const READ_WRITE: c_int = 3;
const SHARED: c_int = 1;
const PRIVATE: c_int = 2;
const ANONYMOUS: c_int = 0x20;
const WIPE_ON_FORK: c_int = 18;
const NOW_IF_LOADED: c_int = 2 | 4;
const GET_NAME: c_int = 15;
const GET_THREAD: c_long = if cfg!(target_arch = "x86_64") { 186 } else { 178 };
/// The handle with which a lookup searches the libraries after the caller's.
pub(crate) const NEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// Maps zeroed memory. Returns `None` if the system refuses.
pub(crate) fn zeroed(bytes: usize) -> Option<*mut u8> {
    // SAFETY: the system chooses unused addresses.
    let at = unsafe { c::mmap(ptr::null_mut(), bytes, READ_WRITE, PRIVATE | ANONYMOUS, -1, 0) };
    (at.addr() != usize::MAX).then_some(at.cast())
}

/// Returns zeroed memory, which is zero again in a child of a fork.
pub(crate) fn zeroed_in_children(bytes: usize) -> Option<*mut u8> {
    let at = zeroed(bytes)?;
    // SAFETY: the memory is the mapping above, which is not used yet.
    let wiped = unsafe { c::madvise(at.cast(), bytes, WIPE_ON_FORK) };
    (wiped == 0).then_some(at)
}

/// Reserves space in a file and maps it, so that writes to it cannot fail later. Returns `None` if the file system is full.
pub(crate) fn mapped(file: &File, offset: usize, bytes: usize) -> Option<*mut u8> {
    let offset = i64::try_from(offset).ok()?;
    if c::posix_fallocate(file.as_raw_fd(), offset, i64::try_from(bytes).ok()?) != 0 {
        return None;
    }
    // SAFETY: the system chooses unused addresses.
    let at = unsafe {
        c::mmap(
            ptr::null_mut(),
            bytes,
            READ_WRITE,
            SHARED,
            file.as_raw_fd(),
            offset,
        )
    };
    (at.addr() != usize::MAX).then_some(at.cast())
}

fn clock(number: c_int) -> u64 {
    let mut time = c::Timespec { seconds: 0, nanos: 0 };
    // SAFETY: the pointer is to a valid structure.
    unsafe { c::clock_gettime(number, &raw mut time) };
    (time.seconds as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.nanos as u64)
}

/// Returns the wall clock in nanoseconds since 1970.
pub(crate) fn wall_clock() -> u64 {
    clock(0)
}

/// Returns the steady clock in nanoseconds.
#[inline]
pub(crate) fn steady_clock() -> u64 {
    clock(1)
}

/// Returns the number of this thread. The C library has a function for this only since version 2.30.
pub(crate) fn thread() -> u32 {
    // SAFETY: this call of the system takes no arguments.
    unsafe { c::syscall(GET_THREAD) as u32 }
}

/// Returns the name of this thread, of at most 15 bytes.
pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    // SAFETY: the call writes at most 16 bytes to the array.
    unsafe { c::prctl(GET_NAME, name.as_mut_ptr().cast()) };
    name
}

/// Returns a handle of a library if it is loaded.
pub(crate) fn loaded(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string. The flags prevent loading, so no code of a library runs.
    let handle = unsafe { c::dlopen(name.as_ptr(), NOW_IF_LOADED) };
    (!handle.is_null()).then_some(handle)
}

/// Returns the symbol of a version in the libraries after this one.
pub(crate) fn versioned(name: &CStr, version: &CStr) -> Option<*mut c_void> {
    // SAFETY: both are C strings.
    let found = unsafe { c::dlvsym(NEXT, name.as_ptr(), version.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns the file of the code at an address, as the loader names it.
pub(crate) fn file_of(address: usize) -> Option<&'static CStr> {
    let mut info = c::DlInfo {
        file: ptr::null(),
        base: ptr::null_mut(),
        symbol: ptr::null(),
        address: ptr::null_mut(),
    };
    // SAFETY: the loader compares the address only. The pointer is to a valid structure.
    let found = unsafe { c::dladdr(ptr::without_provenance(address), &raw mut info) };
    if found == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the name while the library is loaded. Callers use it at once.
    Some(unsafe { CStr::from_ptr(info.file) })
}
