//! The driver: a table of its functions, each of which is looked up only one time. A missing function is `None`.

use super::abi::{
    Access, AllocationProperties, Code, ContextHandle, DeviceNumber, DevicePtr, EventHandle,
    ExecutableHandle, FunctionHandle, GraphHandle, MemoryHandle, ModuleHandle, NOT_READY, PoolHandle,
    PoolProperties, STUB_LIBRARY, SUCCESS, StreamCallback, StreamHandle,
};
use super::calls::{self, DriverCalls, Tally};
use super::error::CudaError;
use super::fork;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

macro_rules! table {
    ($($name:ident = $symbol:literal($($arg:ident: $of:ty),*);)*) => {
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($of),*) -> Code>,)*
        }

        impl Functions {
            /// Returns the names of the missing functions.
            fn missing(&self) -> Vec<&'static str> {
                let all = [$(($symbol, self.$name.is_some())),*];
                all.into_iter().filter(|(_, there)| !there).map(|(symbol, _)| symbol).collect()
            }

            /// # Safety
            /// The library must be the driver, or it must have none of these symbols. It must stay loaded.
            unsafe fn of(library: &Library) -> Self {
                Self {
                    $($name: {
                        // SAFETY: the driver's function of this name has this signature according to its header.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        found.ok().map(|function| *function)
                    },)*
                }
            }
        }

        /// The counts of observed calls of each function.
        #[derive(Default)]
        struct Watched {
            $($name: Tally,)*
        }

        impl Watched {
            fn calls(&self) -> Vec<DriverCalls> {
                vec![$(self.$name.of($symbol)),*]
            }
        }

        /// The functions. They are unsafe because of their pointers and handles: pointers must be valid, and handles must be live handles
        /// of the driver.
        impl Driver {
            $(
                #[allow(clippy::too_many_arguments, reason = "as the driver has it")]
                pub(super) unsafe fn $name(&self $(, $arg: $of)*) -> Result<(), CudaError> {
                    let function = self.functions.$name;
                    let function = function.ok_or(CudaError::Missing { function: $symbol })?;
                    let begun = calls::begin();
                    // SAFETY: the caller guarantees this, as above.
                    let code = unsafe { function($($arg),*) };
                    if let Some(begun) = begun {
                        self.watched.$name.ended(begun, code != SUCCESS);
                    }
                    self.check($symbol, code)
                }
            )*
        }
    };
}

table! {
    init = "cuInit"(flags: c_uint);
    driver_get_version = "cuDriverGetVersion"(version: *mut c_int);
    device_get_count = "cuDeviceGetCount"(count: *mut c_int);
    device_get = "cuDeviceGet"(device: *mut DeviceNumber, ordinal: c_int);
    device_get_name = "cuDeviceGetName"(name: *mut c_char, bytes: c_int, device: DeviceNumber);
    device_get_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: DeviceNumber);
    device_get_bus = "cuDeviceGetPCIBusId"(bus: *mut c_char, bytes: c_int, device: DeviceNumber);
    can_access_peer = "cuDeviceCanAccessPeer"(can: *mut c_int, device: DeviceNumber, peer: DeviceNumber);
    primary_context_retain = "cuDevicePrimaryCtxRetain"(context: *mut ContextHandle, device: DeviceNumber);
    primary_context_release = "cuDevicePrimaryCtxRelease_v2"(device: DeviceNumber);
    context_push = "cuCtxPushCurrent_v2"(context: ContextHandle);
    context_pop = "cuCtxPopCurrent_v2"(context: *mut ContextHandle);
    context_synchronize = "cuCtxSynchronize"();
    memory_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    allocate = "cuMemAlloc_v2"(address: *mut DevicePtr, bytes: usize);
    free = "cuMemFree_v2"(address: DevicePtr);
    host_allocate = "cuMemHostAlloc"(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    host_free = "cuMemFreeHost"(at: *mut c_void);
    host_register = "cuMemHostRegister_v2"(at: *mut c_void, bytes: usize, flags: c_uint);
    host_unregister = "cuMemHostUnregister"(at: *mut c_void);
    host_device_address = "cuMemHostGetDevicePointer_v2"(address: *mut DevicePtr, at: *mut c_void, flags: c_uint);
    pointer_attributes = "cuPointerGetAttributes"(
        count: c_uint, attributes: *mut c_uint, data: *mut *mut c_void, at: DevicePtr
    );
    managed_allocate = "cuMemAllocManaged"(address: *mut DevicePtr, bytes: usize, flags: c_uint);
    managed_advise = "cuMemAdvise"(address: DevicePtr, bytes: usize, advice: c_uint, place: DeviceNumber);
    managed_prefetch = "cuMemPrefetchAsync"(
        address: DevicePtr, bytes: usize, place: DeviceNumber, stream: StreamHandle
    );
    pool_create = "cuMemPoolCreate"(pool: *mut PoolHandle, properties: *const PoolProperties);
    pool_destroy = "cuMemPoolDestroy"(pool: PoolHandle);
    pool_set_attribute = "cuMemPoolSetAttribute"(pool: PoolHandle, attribute: c_uint, value: *mut c_void);
    pool_get_attribute = "cuMemPoolGetAttribute"(pool: PoolHandle, attribute: c_uint, value: *mut c_void);
    device_get_pool = "cuDeviceGetMemPool"(pool: *mut PoolHandle, device: DeviceNumber);
    device_set_pool = "cuDeviceSetMemPool"(device: DeviceNumber, pool: PoolHandle);
    pool_trim = "cuMemPoolTrimTo"(pool: PoolHandle, keep: usize);
    allocate_from_pool = "cuMemAllocFromPoolAsync"(
        address: *mut DevicePtr, bytes: usize, pool: PoolHandle, stream: StreamHandle
    );
    free_async = "cuMemFreeAsync"(address: DevicePtr, stream: StreamHandle);
    address_reserve = "cuMemAddressReserve"(
        address: *mut DevicePtr, bytes: usize, align: usize, at: DevicePtr, flags: c_ulonglong
    );
    address_free = "cuMemAddressFree"(address: DevicePtr, bytes: usize);
    granularity = "cuMemGetAllocationGranularity"(
        bytes: *mut usize, properties: *const AllocationProperties, option: c_uint
    );
    create = "cuMemCreate"(
        handle: *mut MemoryHandle, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong
    );
    release = "cuMemRelease"(handle: MemoryHandle);
    map = "cuMemMap"(
        address: DevicePtr, bytes: usize, offset: usize, handle: MemoryHandle, flags: c_ulonglong
    );
    unmap = "cuMemUnmap"(address: DevicePtr, bytes: usize);
    set_access = "cuMemSetAccess"(address: DevicePtr, bytes: usize, access: *const Access, count: usize);
    stream_create = "cuStreamCreate"(stream: *mut StreamHandle, flags: c_uint);
    stream_destroy = "cuStreamDestroy_v2"(stream: StreamHandle);
    stream_synchronize = "cuStreamSynchronize"(stream: StreamHandle);
    stream_query = "cuStreamQuery"(stream: StreamHandle);
    stream_wait_event = "cuStreamWaitEvent"(stream: StreamHandle, event: EventHandle, flags: c_uint);
    stream_add_callback = "cuStreamAddCallback"(
        stream: StreamHandle, function: Option<StreamCallback>, data: *mut c_void, flags: c_uint
    );
    stream_begin_capture = "cuStreamBeginCapture_v2"(stream: StreamHandle, mode: c_uint);
    stream_end_capture = "cuStreamEndCapture"(stream: StreamHandle, graph: *mut GraphHandle);
    stream_is_capturing = "cuStreamIsCapturing"(stream: StreamHandle, status: *mut c_uint);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint);
    graph_instantiate = "cuGraphInstantiateWithFlags"(
        executable: *mut ExecutableHandle, graph: GraphHandle, flags: c_ulonglong
    );
    graph_destroy = "cuGraphDestroy"(graph: GraphHandle);
    graph_launch = "cuGraphLaunch"(executable: ExecutableHandle, stream: StreamHandle);
    executable_destroy = "cuGraphExecDestroy"(executable: ExecutableHandle);
    event_create = "cuEventCreate"(event: *mut EventHandle, flags: c_uint);
    event_destroy = "cuEventDestroy_v2"(event: EventHandle);
    event_record = "cuEventRecord"(event: EventHandle, stream: StreamHandle);
    event_query = "cuEventQuery"(event: EventHandle);
    event_synchronize = "cuEventSynchronize"(event: EventHandle);
    event_elapsed = "cuEventElapsedTime"(milliseconds: *mut f32, from: EventHandle, to: EventHandle);
    copy_to_device = "cuMemcpyHtoDAsync_v2"(
        to: DevicePtr, from: *const c_void, bytes: usize, stream: StreamHandle
    );
    copy_to_host = "cuMemcpyDtoHAsync_v2"(
        to: *mut c_void, from: DevicePtr, bytes: usize, stream: StreamHandle
    );
    copy_on_device = "cuMemcpyDtoDAsync_v2"(
        to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle
    );
    copy_between = "cuMemcpyPeerAsync"(
        to: DevicePtr, to_context: ContextHandle, from: DevicePtr, from_context: ContextHandle, bytes: usize,
        stream: StreamHandle
    );
    set_bytes = "cuMemsetD8Async"(address: DevicePtr, value: u8, bytes: usize, stream: StreamHandle);
    module_load = "cuModuleLoadDataEx"(
        module: *mut ModuleHandle, image: *const c_void, count: c_uint, options: *mut c_uint,
        values: *mut *mut c_void
    );
    module_unload = "cuModuleUnload"(module: ModuleHandle);
    module_function = "cuModuleGetFunction"(
        function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char
    );
    function_parameter = "cuFuncGetParamInfo"(
        function: FunctionHandle, index: usize, offset: *mut usize, bytes: *mut usize
    );
    launch = "cuLaunchKernel"(
        function: FunctionHandle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: StreamHandle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// Names of the driver's library. The driver installs the first. The others come with a toolkit or belong to another operating
/// system.
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "nvcuda.dll"];

/// Returns the libraries that may be the driver: first those that the process has already loaded under one of the names, then
/// those that the loader finds. Each library is loaded when the iterator reaches it.
fn libraries() -> impl Iterator<Item = Library> {
    let loaded = NAMES.iter().filter_map(|name| loaded(name));
    // SAFETY: the library is the driver, or whatever the loader finds under its name. Loading it has no relevant side effects.
    let found = NAMES
        .iter()
        .filter_map(|name| unsafe { Library::new(*name) }.ok());
    loaded.chain(found)
}

/// Returns the library of this name if the process has already loaded it.
#[cfg(target_os = "linux")]
fn loaded(name: &str) -> Option<Library> {
    use libloading::os::unix;
    // SAFETY: `RTLD_NOLOAD` loads nothing, so no code of the library runs.
    let library = unsafe { unix::Library::open(Some(name), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    library.ok().map(Library::from)
}

#[cfg(not(target_os = "linux"))]
fn loaded(_: &str) -> Option<Library> {
    None
}

/// A kernel of the emulated driver. Its arguments are the registered number, the addresses of the parameters, and grid and block as six
/// numbers.
pub(super) type EmulatedKernel = unsafe extern "C" fn(usize, *const *const u8, *const u32) -> Code;
type Register =
    unsafe extern "C" fn(*const c_char, *const usize, usize, u64, Option<EmulatedKernel>, usize) -> Code;
type Read = unsafe extern "C" fn(*mut u8, u64, usize) -> Code;
type Write = unsafe extern "C" fn(u64, *const u8, usize) -> Code;

/// The functions for kernels that only the emulated driver has.
#[derive(Clone, Copy)]
pub(super) struct Emulated {
    register: Register,
    read: Read,
    write: Write,
}

impl Emulated {
    /// # Safety
    /// The library must be the emulated driver, or it must have none of these symbols. It must stay loaded.
    unsafe fn of(library: &Library) -> Option<Self> {
        // SAFETY: the emulated driver's function of this name has this signature.
        let register = unsafe { library.get::<Register>(b"millpond_emu_register\0") };
        // SAFETY: as above.
        let read = unsafe { library.get::<Read>(b"millpond_emu_read\0") };
        // SAFETY: as above.
        let write = unsafe { library.get::<Write>(b"millpond_emu_write\0") };
        Some(Self {
            register: *register.ok()?,
            read: *read.ok()?,
            write: *write.ok()?,
        })
    }

    /// Registers a kernel with parameters of these sizes. The driver passes the number back to it.
    ///
    /// # Safety
    /// The driver may call the kernel with this number on any thread as long as the process lives.
    pub(super) unsafe fn register(
        &self,
        name: &CStr,
        sizes: &[usize],
        kernel: EmulatedKernel,
        number: usize,
    ) -> Code {
        let (name, count, sizes) = (name.as_ptr(), sizes.len(), sizes.as_ptr());
        // SAFETY: the name is a C string, and `count` is the number of sizes. The caller guarantees the kernel.
        unsafe { (self.register)(name, sizes, count, 0, Some(kernel), number) }
    }

    /// Copies bytes from memory that CUDA knows. Other addresses are refused.
    ///
    /// # Safety
    /// No other code may write the memory meanwhile.
    pub(super) unsafe fn read(&self, from: u64, to: &mut [u8]) -> Code {
        // SAFETY: the slice has this length. The caller guarantees the memory.
        unsafe { (self.read)(to.as_mut_ptr(), from, to.len()) }
    }

    /// Copies bytes to memory that CUDA knows. Other addresses are refused.
    ///
    /// # Safety
    /// No other code may use the memory meanwhile.
    pub(super) unsafe fn write(&self, to: u64, from: &[u8]) -> Code {
        // SAFETY: the slice has this length. The caller guarantees the memory.
        unsafe { (self.write)(to, from.as_ptr(), from.len()) }
    }
}

/// The process's CUDA driver.
///
/// Its functions are looked up by name on first use. A missing driver, or a missing function, causes an error and not a panic.
pub(super) struct Driver {
    /// Held here so that leak checkers reach it.
    #[expect(dead_code, reason = "held for leak checkers")]
    library: &'static Library,
    functions: Functions,
    watched: Watched,
    /// Whether it is the driver of `millpond-cuda-emu`.
    is_emulated: bool,
    /// The emulated driver's functions for kernels.
    emulated: Option<Emulated>,
    /// The function that names errors. It is not in the table, because it is called for the results of the others.
    error_name: Option<ErrorName>,
}

type ErrorName = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

impl Driver {
    /// Returns the initialised driver.
    pub(super) fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        let driver = match DRIVER.get() {
            Some(driver) => driver,
            None => {
                // The child of a process that was loading the driver would wait forever.
                fork::check()?;
                fork::watch();
                DRIVER.get_or_init(Self::load)
            }
        };
        driver.as_ref().map_err(|error| *error)
    }

    fn load() -> Result<Self, CudaError> {
        // The stub of a toolkit may be found before the driver. Stubs, and libraries that are not drivers at all, are skipped.
        let begun = libraries().map(Self::begin);
        let mut drivers = begun.filter(|begun| !matches!(begun, Err(CudaError::NoDriver)));
        drivers.next().unwrap_or(Err(CudaError::NoDriver))
    }

    /// Initialises the driver in a library.
    ///
    /// # Errors
    /// Returns [`CudaError::NoDriver`] if the library is not a driver. Otherwise returns the reason why the driver cannot be initialised.
    fn begin(library: Library) -> Result<Self, CudaError> {
        // The library stays loaded, because the driver does not support being unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the driver's function of this name has this signature according to its header.
        let error_name = unsafe { library.get::<ErrorName>(b"cuGetErrorName\0") };
        // SAFETY: only the presence of the symbol is used.
        let own = unsafe { library.get::<*const c_void>(b"millpond_emu_calls\0") };
        let driver = Self {
            library,
            // SAFETY: the library has the driver's name, and stays loaded.
            functions: unsafe { Functions::of(library) },
            watched: Watched::default(),
            is_emulated: own.is_ok(),
            // SAFETY: the emulated driver is the only library with these symbols, and it stays loaded.
            emulated: unsafe { Emulated::of(library) },
            error_name: error_name.ok().map(|function| *function),
        };
        // SAFETY: it takes no pointer.
        match unsafe { driver.init(0) } {
            Ok(()) => Ok(driver),
            Err(
                CudaError::Missing { .. }
                | CudaError::Driver {
                    code: STUB_LIBRARY, ..
                },
            ) => Err(CudaError::NoDriver),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest version of CUDA that the driver supports. 12080 is 12.8.
    pub(super) fn version(&self) -> Result<u32, CudaError> {
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        unsafe { self.driver_get_version(&raw mut version) }?;
        Ok(version.unsigned_abs())
    }

    /// Returns the names of the used functions that the driver does not have.
    pub(super) fn missing_functions(&self) -> Vec<&'static str> {
        self.functions.missing()
    }

    /// Returns the functions with the counts of their observed calls.
    pub(super) fn calls(&self) -> Vec<DriverCalls> {
        self.watched.calls()
    }

    /// Returns whether the driver is the emulated one.
    pub(super) fn is_emulated(&self) -> bool {
        self.is_emulated
    }

    /// Returns the functions for kernels that only the emulated driver has.
    pub(super) fn emulated(&self) -> Option<Emulated> {
        self.emulated
    }

    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        let name = self.name_of(code);
        Err(CudaError::Driver { call, code, name })
    }

    fn name_of(&self, code: Code) -> &'static str {
        const UNKNOWN: &str = "an unknown error";
        // Each query of unfinished work returns this code, so its name is not looked up each time.
        if code == NOT_READY {
            return "CUDA_ERROR_NOT_READY";
        }
        let mut name = std::ptr::null();
        let Some(function) = self.error_name else {
            return UNKNOWN;
        };
        // SAFETY: the pointer is to a local.
        let answer = unsafe { function(code, &raw mut name) };
        if answer != SUCCESS || name.is_null() {
            return UNKNOWN;
        }
        // SAFETY: the driver's names are constants that end with a zero, in a library that stays loaded.
        let name: &'static CStr = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or(UNKNOWN)
    }

    /// Returns whether the driver has all functions for virtual memory management.
    pub(super) fn has_virtual_memory(&self) -> bool {
        let of = &self.functions;
        of.address_reserve.is_some()
            && of.address_free.is_some()
            && of.granularity.is_some()
            && of.create.is_some()
            && of.release.is_some()
            && of.map.is_some()
            && of.unmap.is_some()
            && of.set_access.is_some()
    }

    /// Returns whether the driver has memory pools.
    pub(super) fn has_pools(&self) -> bool {
        let of = &self.functions;
        of.pool_create.is_some()
            && of.pool_destroy.is_some()
            && of.pool_set_attribute.is_some()
            && of.allocate_from_pool.is_some()
            && of.free_async.is_some()
    }
}

/// Returns the counts of the driver's functions that were called while counting was on, since the start of the program. For a part of the
/// program, use the difference of two results.
///
/// ```
/// use millpond::cuda::{self, CudaDevice, CudaError};
///
/// cuda::watch_driver_calls(true);
/// match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => {}
///     device => {
///         device?.memory()?;
///         let calls = cuda::driver_calls()?;
///         assert!(calls.iter().any(|of| of.function == "cuMemGetInfo_v2" && of.calls > 0));
///     }
/// }
/// # Ok::<(), CudaError>(())
/// ```
///
/// # Errors
/// Returns an error if there is no driver.
pub fn driver_calls() -> Result<Vec<DriverCalls>, CudaError> {
    let mut calls = Driver::get()?.calls();
    calls.retain(|of| of.calls > 0);
    Ok(calls)
}
