//! The driver's own functions.
//!
//! # Invariant
//! A function is called with the arguments that the program passed to the function of the same name, or with pointers to variables of this
//! library. So the contract of the driver is fulfilled if the program fulfils it.

use crate::lookup;
use crate::sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The result of a call to a function that the driver does not have: `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NOT_FOUND: i32 = 500;

/// A function of the driver, and its address, which is null until the function is found.
pub(crate) struct Slot {
    pub(crate) name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Slot {
    /// Stores the address at which the program or this library found the function, unless an address is stored already. Returns whether
    /// it was stored.
    pub(crate) fn keep(&self, at: *mut c_void) -> bool {
        let kept = self
            .at
            .compare_exchange(ptr::null_mut(), at, Ordering::Release, Ordering::Relaxed);
        kept.is_ok()
    }

    /// Returns the function of the driver, or `None` if no driver is loaded or the driver does not have it.
    #[inline]
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let at = self.at.load(Ordering::Acquire);
        if at.is_null() { self.find() } else { Some(at) }
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let of_handle = |handle: *mut c_void| lookup::in_library(handle, self.name);
        let by_name = [c"libcuda.so.1", c"libcuda.so"]
            .into_iter()
            .find_map(|name| of_handle(sys::loaded(name)?));
        let at = by_name.or_else(|| of_handle(sys::NEXT))?;
        self.keep(at);
        self.get()
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The addresses of the functions.
        #[allow(non_upper_case_globals)]
        pub(crate) mod slots {
            use super::*;
            $(pub(crate) static $name: Slot = Slot {
                name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                at: AtomicPtr::new(ptr::null_mut()),
            };)*
        }
        $(#[allow(non_snake_case)]
        #[inline]
        pub(crate) fn $name($($argument: $type),*) -> c_int {
            let Some(at) = slots::$name.get() else { return NOT_FOUND };
            // SAFETY: the driver's function of this name has this type.
            let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(at) };
            // SAFETY: by the invariant of this module.
            unsafe { function($($argument),*) }
        })*
    };
}

functions! {
    cuMemAlloc_v2(at: *mut u64, bytes: usize);
    cuMemAllocPitch_v2(at: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    cuMemAllocManaged(at: *mut u64, bytes: usize, flags: c_uint);
    cuMemFree_v2(at: u64);
    cuMemAllocHost_v2(at: *mut u64, bytes: usize);
    cuMemHostAlloc(at: *mut u64, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: u64);
    cuMemHostRegister_v2(at: u64, bytes: usize, flags: c_uint);
    cuMemHostUnregister(at: u64);
    cuMemAllocAsync(at: *mut u64, bytes: usize, stream: u64);
    cuMemAllocAsync_ptsz(at: *mut u64, bytes: usize, stream: u64);
    cuMemAllocFromPoolAsync(at: *mut u64, bytes: usize, pool: u64, stream: u64);
    cuMemAllocFromPoolAsync_ptsz(at: *mut u64, bytes: usize, pool: u64, stream: u64);
    cuMemFreeAsync(at: u64, stream: u64);
    cuMemFreeAsync_ptsz(at: u64, stream: u64);
    cuMemPoolCreate(pool: *mut u64, properties: *const c_void);
    cuMemPoolDestroy(pool: u64);
    cuMemPoolTrimTo(pool: u64, keep: usize);
    cuMemPoolGetAttribute(pool: u64, number: c_int, value: *mut u64);
    cuDeviceGetMemPool(pool: *mut u64, device: c_int);
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_void, flags: c_ulonglong);
    cuMemRelease(handle: u64);
    cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong);
    cuMemUnmap(at: u64, bytes: usize);
    cuMemRetainAllocationHandle(handle: *mut u64, at: u64);
    cuArrayCreate_v2(array: *mut u64, described: *const c_void);
    cuArray3DCreate_v2(array: *mut u64, described: *const c_void);
    cuArrayDestroy(array: u64);
    cuMipmappedArrayCreate(array: *mut u64, described: *const c_void, levels: c_uint);
    cuMipmappedArrayDestroy(array: u64);
    cuGraphAddMemAllocNode(node: *mut u64, graph: u64, after: *const u64, count: usize, parameters: *mut c_void);
    cuGraphAddNode(node: *mut u64, graph: u64, after: *const u64, count: usize, parameters: *mut c_void);
    cuGraphAddNode_v2(
        node: *mut u64, graph: u64, after: *const u64, edges: *const c_void, count: usize, parameters: *mut c_void
    );
    cuGraphLaunch(graph: u64, stream: u64);
    cuGraphLaunch_ptsz(graph: u64, stream: u64);
    cuDeviceGraphMemTrim(device: c_int);
    cuDeviceGetGraphMemAttribute(device: c_int, number: c_int, value: *mut u64);
    cuStreamIsCapturing(stream: u64, status: *mut c_int);
    cuStreamIsCapturing_ptsz(stream: u64, status: *mut c_int);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuCtxGetCurrent(context: *mut u64);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxDestroy_v2(context: u64);
    cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
    cuGetProcAddress_v2(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
}
