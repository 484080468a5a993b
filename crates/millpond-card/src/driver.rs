//! The driver's symbols, with our own declarations.
//!
//! The probes test the driver itself, so they call it directly and not through `millpond` or `cudarc`.
//!
//! # The invariant of every call
//!
//! The declarations below are those of `cuda.h`. A probe passes pointers to its own locals or to memory that outlives the work that
//! uses it, and handles that this driver gave to this process. A probe passes a handle after its end only to test what the driver
//! answers, in a process that does nothing else afterwards.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_void};
use std::fmt;

/// The result code of a driver function. 0 is success.
pub(crate) type Code = i32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 600;
/// Stands for a function that the driver lacks. The driver itself never returns this code.
pub(crate) const NO_FUNCTION: Code = -1;

/// The name by which the loader finds the driver.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

/// A symbol that only the emulated driver has.
const EMULATED: &[u8] = b"millpond_emu_calls\0";
/// A part of the emulated driver's device names. The names contain it even if the emulator's own symbols are hidden.
const EMULATED_NAME: &str = "CUDA emulator";

macro_rules! functions {
    ($($name:ident($($of:ty),*);)*) => {
        /// The functions that the probes use. A function that the driver lacks is `None`.
        #[allow(non_snake_case, reason = "the names of the driver's functions")]
        pub(crate) struct Driver {
            library: Library,
            $(pub(crate) $name: Option<unsafe extern "C" fn($($of),*) -> Code>,)*
        }

        impl Driver {
            fn of(library: Library) -> Self {
                Self {
                    $($name: {
                        // SAFETY: the declaration is that of `cuda.h`.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        found.ok().map(|function| *function)
                    },)*
                    library,
                }
            }
        }
    };
}

/// A `CUstream` and every other handle that `cuda.h` declares as a pointer.
pub(crate) type Handle = usize;

functions! {
    cuInit(u32);
    cuDriverGetVersion(*mut i32);
    cuGetErrorName(Code, *mut *const c_char);
    cuDeviceGetCount(*mut i32);
    cuDeviceGet(*mut i32, i32);
    cuDeviceGetName(*mut c_char, i32, i32);
    cuDeviceGetAttribute(*mut i32, i32, i32);
    cuDeviceTotalMem_v2(*mut usize, i32);
    cuDevicePrimaryCtxRetain(*mut Handle, i32);
    cuDevicePrimaryCtxRelease_v2(i32);
    cuDevicePrimaryCtxReset_v2(i32);
    cuCtxSetCurrent(Handle);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostAlloc(*mut usize, usize, u32);
    cuMemFreeHost(usize);
    cuMemHostRegister_v2(usize, usize, u32);
    cuMemHostUnregister(usize);
    cuMemHostGetDevicePointer_v2(*mut u64, usize, u32);
    cuMemHostGetFlags(*mut u32, usize);
    cuMemAllocManaged(*mut u64, usize, u32);
    cuMemPrefetchAsync(u64, usize, i32, Handle);
    cuPointerGetAttribute(*mut c_void, i32, u64);
    cuMemPoolCreate(*mut Handle, *const PoolProperties);
    cuMemPoolDestroy(Handle);
    cuMemPoolSetAttribute(Handle, i32, *mut c_void);
    cuMemPoolGetAttribute(Handle, i32, *mut c_void);
    cuMemPoolTrimTo(Handle, usize);
    cuDeviceGetMemPool(*mut Handle, i32);
    cuMemAllocFromPoolAsync(*mut u64, usize, Handle, Handle);
    cuMemFreeAsync(u64, Handle);
    cuMemGetAllocationGranularity(*mut usize, *const AllocationProperties, u32);
    cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    cuMemAddressFree(u64, usize);
    cuMemCreate(*mut u64, usize, *const AllocationProperties, u64);
    cuMemRelease(u64);
    cuMemMap(u64, usize, usize, u64, u64);
    cuMemUnmap(u64, usize);
    cuMemSetAccess(u64, usize, *const Access, usize);
    cuStreamCreate(*mut Handle, u32);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamQuery(Handle);
    cuStreamWaitEvent(Handle, Handle, u32);
    cuStreamBeginCapture_v2(Handle, u32);
    cuStreamEndCapture(Handle, *mut Handle);
    cuStreamIsCapturing(Handle, *mut i32);
    cuThreadExchangeStreamCaptureMode(*mut u32);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphDestroy(Handle);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuEventCreate(*mut Handle, u32);
    cuEventDestroy_v2(Handle);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuEventElapsedTime(*mut f32, Handle, Handle);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuModuleLoadDataEx(*mut Handle, *const c_void, u32, *mut u32, *mut *mut c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuFuncGetAttribute(*mut i32, i32, Handle);
    cuFuncGetParamInfo(Handle, usize, *mut usize, *mut usize);
    cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// Calls a function of the driver and returns its code, or [`NO_FUNCTION`] if the driver lacks the function.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $driver.$function {
            None => $crate::driver::NO_FUNCTION,
            #[allow(clippy::macro_metavars_in_unsafe, reason = "arguments are plain values in every probe")]
            // SAFETY: the invariant of `crate::driver`.
            Some(function) => unsafe { function($($argument),*) },
        }
    };
}

/// Calls a function of the driver and returns [`Failed`] if it does not succeed, for calls that the probe cannot go on without.
macro_rules! ok {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $driver.check(stringify!($function), $crate::driver::call!($driver, $function($($argument),*)))
    };
}

pub(crate) use {call, ok};

/// `CUmemLocation` of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: i32,
    id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationProperties {
    kind: i32,
    handle_types: i32,
    location: Location,
    win32: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    location: Location,
    flags: i32,
}

/// `CUmemPoolProps`. `max_bytes` exists since CUDA 12.2. Earlier drivers treat it as reserved bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    kind: i32,
    handle_types: i32,
    location: Location,
    win32: usize,
    pub(crate) max_bytes: usize,
    reserved: [u8; 56],
}

const PINNED: i32 = 1;
const DEVICE: i32 = 1;
const READ_WRITE: i32 = 3;

impl Location {
    fn of(device: i32) -> Self {
        Self {
            kind: DEVICE,
            id: device,
        }
    }
}

impl AllocationProperties {
    pub(crate) fn on(device: i32) -> Self {
        Self {
            kind: PINNED,
            handle_types: 0,
            location: Location::of(device),
            win32: 0,
            flags: [0; 8],
        }
    }
}

impl Access {
    pub(crate) fn on(device: i32) -> Self {
        Self {
            location: Location::of(device),
            flags: READ_WRITE,
        }
    }
}

impl PoolProperties {
    pub(crate) fn on(device: i32, max_bytes: usize) -> Self {
        Self {
            kind: PINNED,
            handle_types: 0,
            location: Location::of(device),
            win32: 0,
            max_bytes,
            reserved: [0; 56],
        }
    }
}

/// The failure of something that a probe needs, such as a call of the driver.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Driver {
    /// Loads the driver from a path. If the path is a plain name, the loader searches for it.
    pub(crate) fn open(path: &str) -> Result<Self, Failed> {
        // SAFETY: loading a driver runs its initialisers and nothing else, and the driver stays loaded as long as this value lives.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        library
            .map(Self::of)
            .map_err(|error| Failed(format!("cannot load the CUDA driver: {error}")))
    }

    /// Returns the address of a symbol, or `None` if the driver lacks it.
    pub(crate) fn symbol(&self, name: &[u8]) -> Option<*mut c_void> {
        // SAFETY: only the address is taken. Nothing is read from it or called here.
        let found = unsafe { self.library.get::<*mut c_void>(name) };
        found.ok().map(|found| found.as_raw_ptr())
    }

    /// Returns whether this is the emulated driver, by its symbols or by the name of its first device.
    pub(crate) fn is_emulated(&self, device: &str) -> bool {
        self.symbol(EMULATED).is_some() || device.contains(EMULATED_NAME)
    }

    pub(crate) fn check(&self, function: &str, code: Code) -> Result<(), Failed> {
        match code {
            SUCCESS => Ok(()),
            code => Err(Failed(format!("{function} returned {}", self.name(code)))),
        }
    }

    /// Returns a code with its name, such as `1 INVALID_VALUE`.
    pub(crate) fn name(&self, code: Code) -> String {
        match code {
            SUCCESS => return "0".to_owned(),
            NO_FUNCTION => return "no such function".to_owned(),
            _ => {}
        }
        let mut text = std::ptr::null();
        if call!(self, cuGetErrorName(code, &raw mut text)) != SUCCESS || text.is_null() {
            return code.to_string();
        }
        // SAFETY: the driver's names are zero-terminated constants in a library that stays loaded.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        format!("{code} {}", text.trim_start_matches("CUDA_ERROR_"))
    }
}
