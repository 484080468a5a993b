//! Tests with a client that knows nothing about the emulator: cudarc's safe interface, and its raw calls for the rest.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, result};
use std::ffi::c_void;
use std::ptr::null_mut;

const PAGE: usize = 2 << 20;

fn context() -> std::sync::Arc<CudaContext> {
    common::load();
    CudaContext::new(0).unwrap()
}

#[test]
fn bytes_go_to_the_device_and_back() {
    let context = context();
    let stream = context.default_stream();
    let numbers: Vec<f32> = (0..100_000).map(|n| n as f32).collect();
    let slice = stream.clone_htod(&numbers).unwrap();
    let copy = stream.clone_dtod(&slice).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), numbers);
    assert_eq!(
        stream.clone_dtoh(&stream.alloc_zeros::<u8>(77).unwrap()).unwrap(),
        [0; 77]
    );
    assert_eq!(context.name().unwrap(), "Millpond CUDA emulator 0");
    assert_eq!(context.total_mem().unwrap(), 80 << 30);
}

#[test]
fn allocations_larger_than_the_device_are_refused() {
    let context = context();
    let (_, total) = context.mem_get_info().unwrap();
    let stream = context.default_stream();
    // SAFETY: no unwritten memory is read.
    let too_much = unsafe { stream.alloc::<u8>(total + 1) };
    assert_eq!(too_much.unwrap_err().0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    // SAFETY: as above.
    let most = unsafe { stream.alloc::<u8>(total / 2) }.unwrap();
    assert_eq!(most.num_bytes_used(), total / 2);
}

trait Used {
    fn num_bytes_used(&self) -> usize;
}

impl Used for cudarc::driver::CudaSlice<u8> {
    fn num_bytes_used(&self) -> usize {
        cudarc::driver::DeviceSlice::len(self)
    }
}

fn prop() -> sys::CUmemAllocationProp {
    // SAFETY: all zeros are a valid value of every field.
    let mut prop: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop
}

fn open(at: u64, bytes: usize) {
    let access = sys::CUmemAccessDesc {
        location: prop().location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    ok!(cuMemSetAccess(at, bytes, &access, 1));
}

#[test]
fn one_handle_mapped_twice_shows_the_same_bytes() {
    let _context = context();
    let (mut at, mut handle) = (0, 0);
    ok!(cuMemAddressReserve(&mut at, 4 * PAGE, 0, 0, 0));
    ok!(cuMemCreate(&mut handle, PAGE, &prop(), 0));
    let (one, two) = (at, at + 2 * PAGE as u64);
    for place in [one, two] {
        ok!(cuMemMap(place, PAGE, 0, handle, 0));
    }
    assert_eq!(
        cu!(cuMemMap(one, PAGE, 0, handle, 0)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    open(one, PAGE);
    open(two, PAGE);
    ok!(cuMemsetD32_v2(one + 8, 0xfeed, 2));
    let mut word = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), two + 12, 4));
    assert_eq!(word, 0xfeed);
    // Released memory stays valid while it is mapped.
    ok!(cuMemRelease(handle));
    ok!(cuMemUnmap(one, PAGE));
    ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), two + 8, 4));
    assert_eq!(word, 0xfeed);
    assert_eq!(
        cu!(cuMemAddressFree(at, 4 * PAGE)),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "still mapped"
    );
    ok!(cuMemUnmap(two, PAGE));
    ok!(cuMemAddressFree(at, 4 * PAGE));
    assert_eq!(cu!(cuMemRelease(handle)), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn invalid_addresses_and_sizes_are_refused() {
    let _context = context();
    let mut bytes = [0u8; 8];
    let place = bytes.as_mut_ptr().cast::<c_void>();
    for (at, host, code) in [
        (0, place, CUresult::CUDA_ERROR_INVALID_VALUE),
        (0xdead_0000, place, CUresult::CUDA_ERROR_INVALID_VALUE),
    ] {
        assert_eq!(cu!(cuMemcpyDtoH_v2(host, at, 8)), code);
    }
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, 8));
    assert_eq!(at % 512, 0);
    assert_eq!(
        cu!(cuMemcpyDtoH_v2(null_mut(), at, 8)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        cu!(cuMemcpyDtoH_v2(place, at, 9)),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "past its end"
    );
    ok!(cuMemFree_v2(at));
    assert_eq!(cu!(cuMemFree_v2(at)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(
        cu!(cuMemAlloc_v2(null_mut(), 8)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(cu!(cuMemAlloc_v2(&mut at, 0)), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn pinned_and_registered_memory_is_recognised() {
    let _context = context();
    let mut pinned = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 4096, 0));
    let mut kind = 0u32;
    let kind_of = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    ok!(cuPointerGetAttribute(
        (&raw mut kind).cast(),
        kind_of,
        pinned as u64 + 100
    ));
    assert_eq!(kind, 1);
    let mut own = vec![0u8; 4096];
    let at = own.as_mut_ptr();
    let register = || cu!(cuMemHostRegister_v2(at.cast(), 4096, 0));
    assert_eq!(
        cu!(cuMemHostUnregister(at.cast())),
        CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    );
    assert_eq!(register(), CUresult::CUDA_SUCCESS);
    assert_eq!(register(), CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    let mut device = 0;
    ok!(cuMemHostGetDevicePointer_v2(&mut device, at.cast(), 0));
    assert_eq!(device, at as u64);
    ok!(cuMemHostUnregister(at.cast()));
    ok!(cuMemFreeHost(pinned));
    assert_eq!(cu!(cuMemFreeHost(pinned)), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_pool_keeps_memory_up_to_its_threshold() {
    let context = context();
    let stream = context.new_stream().unwrap();
    // SAFETY: all zeros are a valid value of every field.
    let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = prop().location;
    let mut pool = null_mut();
    ok!(cuMemPoolCreate(&mut pool, &props));
    let get = |attribute| {
        let mut value = 0u64;
        ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
        value
    };
    use sys::CUmemPool_attribute as A;
    let reserved = || get(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    let used = || get(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    let take_and_give = || {
        let mut at = 0;
        ok!(cuMemAllocFromPoolAsync(&mut at, 1000, pool, stream.cu_stream()));
        assert_eq!((used(), reserved()), (1024, 32 << 20));
        ok!(cuMemFreeAsync(at, stream.cu_stream()));
        ok!(cuStreamSynchronize(stream.cu_stream()));
        at
    };
    take_and_give();
    assert_eq!((used(), reserved()), (0, 0), "the threshold is 0 at first");
    let mut all = u64::MAX;
    ok!(cuMemPoolSetAttribute(
        pool,
        A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        (&raw mut all).cast()
    ));
    let first = take_and_give();
    assert_eq!(take_and_give(), first);
    assert_eq!((used(), reserved()), (0, 32 << 20));
    assert_eq!(get(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1024);
    ok!(cuMemPoolTrimTo(pool, 0));
    assert_eq!(reserved(), 0);
    ok!(cuMemPoolDestroy(pool));
    assert_eq!(cu!(cuMemPoolTrimTo(pool, 0)), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn errors_have_names_and_entry_points_versions() {
    let _context = context();
    assert_eq!(
        result::DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
            .error_name()
            .unwrap()
            .to_str()
            .unwrap(),
        "CUDA_ERROR_ILLEGAL_ADDRESS"
    );
    let find = |name: &std::ffi::CStr, version, flags| {
        let mut function = null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
        let code = cu!(cuGetProcAddress_v2(
            name.as_ptr(),
            &mut function,
            version,
            flags,
            &mut status
        ));
        (code, function.addr(), status as u32)
    };
    let symbol = |name: &[u8]| {
        // SAFETY: only the address is used.
        unsafe { common::load().get::<*const c_void>(name) }
            .unwrap()
            .addr()
    };
    assert_eq!(find(c"cuMemAlloc", 12080, 0).1, symbol(b"cuMemAlloc_v2"));
    assert_eq!(find(c"cuMemAdvise", 12000, 0).1, symbol(b"cuMemAdvise"));
    assert_eq!(find(c"cuMemAdvise", 12080, 0).1, symbol(b"cuMemAdvise_v2"));
    assert_eq!(find(c"cuMemcpyHtoD", 12080, 2).1, symbol(b"cuMemcpyHtoD_v2_ptds"));
    assert_eq!(
        find(c"cuLaunchKernel", 12080, 2).1,
        symbol(b"cuLaunchKernel_ptsz")
    );
    assert_eq!(find(c"cuMemCreate", 9000, 0), (CUresult::CUDA_SUCCESS, 0, 2));
    assert_eq!(find(c"cuNothing", 12080, 0), (CUresult::CUDA_SUCCESS, 0, 1));
}

/// Every function that cudarc's `result` and `safe` layers call.
const CALLED: &[&str] = &[
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuCtxDestroy_v2",
    "cuCtxGetCacheConfig",
    "cuCtxGetCurrent",
    "cuCtxGetLimit",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCacheConfig",
    "cuCtxSetCurrent",
    "cuCtxSetFlags",
    "cuCtxSetLimit",
    "cuCtxSynchronize",
    "cuDestroyExternalMemory",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceSetMemPool",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuExternalMemoryGetMappedBuffer",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuImportExternalMemory",
    "cuInit",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAdvise_v2",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemPrefetchAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyMaxPotentialClusterSize",
    "cuProfilerStart",
    "cuProfilerStop",
    "cuStreamAttachMemAsync",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

#[test]
fn every_function_that_cudarc_calls_exists() {
    for name in CALLED {
        // SAFETY: only the presence of the symbol is checked.
        let found = unsafe { common::load().get::<*const c_void>(name.as_bytes()) };
        assert!(found.is_ok(), "{name} is missing");
    }
}

/// The last release of a primary context may race with the next retain while slow work is still queued.
#[test]
fn primary_contexts_are_retained_and_released_on_many_threads() {
    extern "C" fn rest(_: *mut c_void) {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let name = "primary_contexts_are_retained_and_released_on_many_threads";
    common::with_options(name, "streams:threads", || {
        ok!(cuInit(0));
        let work = || {
            for _ in 0..300 {
                let mut context = null_mut();
                ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
                ok!(cuCtxSetCurrent(context));
                ok!(cuLaunchHostFunc(null_mut(), Some(rest), null_mut()));
                ok!(cuDevicePrimaryCtxRelease_v2(0));
            }
        };
        std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(work));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
}
