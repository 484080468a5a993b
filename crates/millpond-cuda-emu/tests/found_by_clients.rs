//! Tests behaviour on which the tests of other programs rely (`cargo xtask clients`).

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS,
};
use cudarc::driver::sys::{
    CUgraphNode, CUmem_range_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType,
    CUmemoryPool, CUpointer_attribute, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

fn stream() -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

/// `CUmemPoolProps`, whose type in the binding has no managed memory.
#[repr(C)]
struct Props {
    /// 1 for pinned memory, and 2 for managed memory.
    kind: i32,
    handle_types: i32,
    place: CUmemLocation,
    others: [usize; 9],
}

fn props(kind: i32, place: CUmemLocationType, id: i32) -> Props {
    Props {
        kind,
        handle_types: 0,
        place: CUmemLocation { type_: place, id },
        others: [0; 9],
    }
}

fn created(props: &Props) -> Result<CUmemoryPool, i32> {
    let create = function::<unsafe extern "C" fn(*mut CUmemoryPool, *const Props) -> i32>(b"cuMemPoolCreate");
    let mut pool = null_mut();
    // SAFETY: the structure is that of the function.
    match unsafe { create(&mut pool, props) } {
        0 => Ok(pool),
        code => Err(code),
    }
}

fn pool(props: &Props) -> CUmemoryPool {
    created(props).unwrap()
}

fn from(pool: CUmemoryPool, bytes: usize, stream: CUstream) -> u64 {
    let mut at = 0;
    ok!(cuMemAllocFromPoolAsync(&mut at, bytes, pool, stream));
    at
}

/// Returns a function of the library, which has this type.
fn function<T: Copy>(name: &[u8]) -> T {
    // SAFETY: the type is that of the function in the driver's documentation.
    *unsafe { common::load().get::<T>(name) }.unwrap()
}

fn attribute(at: u64, which: CUpointer_attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuPointerGetAttribute((&raw mut value).cast(), which, at));
    value
}

/// Returns the device to which a range was prefetched last, or -1 for the host.
fn last_prefetch(at: u64, bytes: usize) -> i32 {
    let mut place = 0i32;
    let which = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    ok!(cuMemRangeGetAttribute(
        (&raw mut place).cast(),
        4,
        which,
        at,
        bytes
    ));
    place
}

#[test]
fn an_empty_allocation_of_a_pool_succeeds() {
    common::load();
    let _context = CudaContext::new(0).unwrap();
    let mut at = 1;
    ok!(cuMemAllocAsync(&mut at, 0, stream()));
    assert_eq!(at, 0);
}

#[test]
fn a_pool_of_host_memory_is_read_by_the_host() {
    common::with_options(
        "a_pool_of_host_memory_is_read_by_the_host",
        "version:12090,strict:on",
        || {
            let _context = CudaContext::new(0).unwrap();
            let stream = stream();
            let host = pool(&props(1, CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0));
            let at = from(host, 64, stream);
            ok!(cuMemsetD8Async(at, 7, 64, stream));
            ok!(cuStreamSynchronize(stream));
            // SAFETY: the block has 64 bytes, and no work uses it.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 64) };
            assert!(bytes.iter().all(|byte| *byte == 7));
            assert_eq!(
                attribute(at, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
                1
            );
            assert_eq!(
                attribute(at, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
                host as u64
            );
            ok!(cuMemFreeAsync(at, stream));
            ok!(cuMemPoolDestroy(host));
            ok!(cuStreamSynchronize(stream));
        },
    );
}

#[test]
fn a_pool_of_managed_memory_moves_its_pages() {
    common::with_options(
        "a_pool_of_managed_memory_moves_its_pages",
        "version:13000",
        || {
            let _context = CudaContext::new(0).unwrap();
            let stream = stream();
            let pool = pool(&props(2, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0));
            let at = from(pool, MIB, stream);
            assert_eq!(
                attribute(at, CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED) as u32,
                1
            );
            ok!(cuMemPrefetchAsync(at, MIB, 0, stream));
            ok!(cuStreamSynchronize(stream));
            type Discard = unsafe extern "C" fn(*const u64, *const usize, usize, u64, CUstream) -> i32;
            let discard = function::<Discard>(b"cuMemDiscardBatchAsync");
            type Prefetch = unsafe extern "C" fn(
                *const u64,
                *const usize,
                usize,
                *const CUmemLocation,
                *const usize,
                usize,
                u64,
                CUstream,
            ) -> i32;
            let prefetch = function::<Prefetch>(b"cuMemPrefetchBatchAsync");
            let (ranges, sizes) = ([at, at + 512 * 1024], [512 * 1024, 512 * 1024]);
            let place = |type_| CUmemLocation { type_, id: 0 };
            let places = [
                place(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST),
                place(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE),
            ];
            let from = [0, 1];
            // SAFETY: the arrays are as long as the counts say.
            let moved = unsafe {
                prefetch(
                    ranges.as_ptr(),
                    sizes.as_ptr(),
                    2,
                    places.as_ptr(),
                    from.as_ptr(),
                    2,
                    0,
                    stream,
                )
            };
            assert_eq!(moved, 0);
            ok!(cuStreamSynchronize(stream));
            assert_eq!(ranges.map(|at| last_prefetch(at, 64 * 1024)), [-1, 0]);
            assert_eq!(
                // SAFETY: as above.
                unsafe { discard(ranges.as_ptr(), sizes.as_ptr(), 2, 0, stream) },
                0
            );
            assert_eq!(
                // SAFETY: as above. The second range is not managed.
                unsafe { discard([at, 64].as_ptr(), sizes.as_ptr(), 2, 0, stream) },
                1
            );
            ok!(cuMemFreeAsync(at, stream));
            ok!(cuMemPoolDestroy(pool));
        },
    );
}

/// The attribute is the requested location, even if the prefetch has not begun.
#[test]
fn the_last_prefetch_is_reported_before_it_has_begun() {
    static HELD: AtomicBool = AtomicBool::new(true);
    extern "C" fn hold(_: *mut c_void) {
        while HELD.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
    common::with_options(
        "the_last_prefetch_is_reported_before_it_has_begun",
        "streams:threads",
        || {
            let _context = CudaContext::new(0).unwrap();
            let (stream, mut at) = (stream(), 0);
            ok!(cuMemAllocManaged(&mut at, MIB, 1));
            let last = || last_prefetch(at, MIB);
            assert_eq!(last(), -2);
            ok!(cuLaunchHostFunc(stream, Some(hold), null_mut()));
            ok!(cuMemPrefetchAsync(at, MIB, 0, stream));
            assert_eq!(last(), 0);
            HELD.store(false, Ordering::Release);
            ok!(cuStreamSynchronize(stream));
            assert_eq!(last(), 0);
            ok!(cuMemFree_v2(at));
        },
    );
}

#[test]
fn older_drivers_have_no_pools_of_managed_memory() {
    if common::is_real() {
        println!("skipped: the machine's driver may be newer");
        return;
    }
    common::with_options(
        "older_drivers_have_no_pools_of_managed_memory",
        "version:12000",
        || {
            let _context = CudaContext::new(0).unwrap();
            let managed = props(2, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
            assert_eq!(created(&managed), Err(CUDA_ERROR_INVALID_VALUE as i32));
        },
    );
}

#[test]
fn a_copy_needs_access_to_the_pool_of_another_device() {
    common::with_options(
        "a_copy_needs_access_to_the_pool_of_another_device",
        "devices:2",
        || {
            let other = pool(&{
                let _context = CudaContext::new(0).unwrap();
                props(1, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 1)
            });
            let one = CudaContext::new(1).unwrap();
            let at = from(other, 64, stream());
            ok!(cuCtxSynchronize());
            let zero = CudaContext::new(0).unwrap();
            zero.bind_to_thread().unwrap();
            let mut own = 0;
            ok!(cuMemAlloc_v2(&mut own, 64));
            let stream = stream();
            let copy = || cu!(cuMemcpyAsync(own, at, 64, stream));
            assert_eq!(copy(), CUDA_ERROR_INVALID_VALUE);
            let access = CUmemAccessDesc {
                location: CUmemLocation {
                    type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    id: 0,
                },
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            ok!(cuMemPoolSetAccess(other, &access, 1));
            assert_eq!(copy(), CUDA_SUCCESS);
            ok!(cuStreamSynchronize(stream));
            drop(one);
        },
    );
}

#[test]
fn sync_memops_is_remembered() {
    common::load();
    let _context = CudaContext::new(0).unwrap();
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, 64));
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    for value in [1u32, 0] {
        ok!(cuPointerSetAttribute((&raw const value).cast(), which, at));
        assert_eq!(attribute(at, which) as u32, value);
    }
    ok!(cuMemFree_v2(at));
}

#[test]
fn registered_memory_is_unregistered_by_its_first_byte() {
    common::load();
    let _context = CudaContext::new(0).unwrap();
    let mut bytes = vec![0u8; 256];
    let at = |offset: usize| bytes[offset..].as_ptr().cast_mut().cast::<c_void>();
    ok!(cuMemHostRegister_v2(at(0), 160, 0));
    assert_eq!(
        cu!(cuMemHostRegister_v2(at(80), 160, 0)),
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    );
    assert_eq!(cu!(cuMemHostUnregister(at(80))), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemHostUnregister(at(0)));
    bytes.clear();
}

#[test]
fn pinned_memory_belongs_to_the_current_device() {
    common::with_options("pinned_memory_belongs_to_the_current_device", "devices:2", || {
        let _context = CudaContext::new(1).unwrap();
        let mut at = null_mut();
        ok!(cuMemHostAlloc(&mut at, 64, 0));
        let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        assert_eq!(attribute(at as u64, which) as u32, 1);
        ok!(cuMemFreeHost(at));
    });
}

unsafe extern "C" fn rest(_data: *mut c_void) {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_plain_fill_of_pinned_memory_waits() {
    common::with_options("a_plain_fill_of_pinned_memory_waits", "streams:threads", || {
        let _context = CudaContext::new(0).unwrap();
        let mut at = null_mut();
        ok!(cuMemHostAlloc(&mut at, 64, 0));
        ok!(cuLaunchHostFunc(null_mut(), Some(rest), null_mut()));
        ok!(cuMemsetD8_v2(at as u64, 9, 64));
        // SAFETY: the block has 64 bytes.
        assert_eq!(unsafe { at.cast::<u8>().read_volatile() }, 9);
        ok!(cuMemFreeHost(at));
    });
}

#[test]
fn the_graph_of_a_capture_has_its_handle_from_the_start() {
    common::load();
    let _context = CudaContext::new(0).unwrap();
    let stream = stream();
    ok!(cuStreamBeginCapture_v2(
        stream,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
    ));
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, 64, stream));
    let (mut status, mut growing, mut nodes, mut count) = (
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        null_mut(),
        null::<CUgraphNode>(),
        0,
    );
    ok!(cuStreamGetCaptureInfo_v2(
        stream,
        &mut status,
        null_mut(),
        &mut growing,
        &mut nodes,
        &mut count
    ));
    assert_eq!(count, 1);
    // SAFETY: the list has one node.
    let tail = unsafe { *nodes };
    let mut room = [null_mut(); 4];
    let mut found = room.len();
    ok!(cuGraphGetNodes(growing, room.as_mut_ptr(), &mut found));
    assert_eq!((found, room[0]), (1, tail));
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    assert_eq!(graph, growing);
    ok!(cuGraphDestroy(graph));
}

#[test]
fn memory_reserved_for_graphs_counts_as_used_until_it_is_trimmed() {
    common::with_options(
        "memory_reserved_for_graphs_counts_as_used_until_it_is_trimmed",
        "devices:1",
        || {
            let _context = CudaContext::new(0).unwrap();
            let stream = stream();
            ok!(cuStreamBeginCapture_v2(
                stream,
                CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
            ));
            let mut at = 0;
            ok!(cuMemAllocAsync(&mut at, 1, stream));
            let mut graph = null_mut();
            ok!(cuStreamEndCapture(stream, &mut graph));
            let values = || {
                use cudarc::driver::sys::CUgraphMem_attribute::{
                    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
                };
                let which = [
                    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
                    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                ];
                which.map(|which| {
                    let mut value = 0u64;
                    ok!(cuDeviceGetGraphMemAttribute(0, which, (&raw mut value).cast()));
                    value
                })
            };
            let [used, high, reserved] = values();
            assert!(used > 0 && used == high && used == reserved, "{:?}", values());
            ok!(cuGraphDestroy(graph));
            assert_eq!(values()[0], used);
            ok!(cuDeviceGraphMemTrim(0));
            assert_eq!(values(), [0, high, 0]);
        },
    );
}

#[test]
fn nodes_of_any_kind_are_added_and_destroyed() {
    common::load();
    let _context = CudaContext::new(0).unwrap();
    let (mut graph, mut at) = (null_mut(), 0);
    ok!(cuGraphCreate(&mut graph, 0));
    ok!(cuMemAlloc_v2(&mut at, 64));
    type Add = unsafe extern "C" fn(*mut CUgraphNode, usize, *const CUgraphNode, usize, *const u64) -> i32;
    let add = function::<Add>(b"cuGraphAddNode");
    let add = |kind: u64, own: &[u64], after: &[CUgraphNode]| {
        let mut params = [0u64; 32];
        params[0] = kind;
        params[2..2 + own.len()].copy_from_slice(own);
        let mut node = null_mut();
        // SAFETY: the structure has 256 bytes, and the list is as long as the count says.
        let code = unsafe {
            add(
                &mut node,
                graph as usize,
                after.as_ptr(),
                after.len(),
                params.as_ptr(),
            )
        };
        (code, node)
    };
    // A fill of 64 bytes with 5: address, pitch, value and size of an element, width, height.
    let (code, fill) = add(2, &[at, 0, 5 | 1 << 32, 64, 1], &[]);
    assert_eq!(code, 0);
    let (code, empty) = add(5, &[], &[fill]);
    assert_eq!(code, 0);
    let (code, _) = add(3, &[0, 0], &[empty]);
    assert_eq!(
        code, CUDA_ERROR_INVALID_VALUE as i32,
        "a host node needs a function"
    );
    assert_eq!(add(13, &[], &[]).0, CUDA_ERROR_NOT_SUPPORTED as i32);
    assert_eq!(add(99, &[], &[]).0, CUDA_ERROR_INVALID_VALUE as i32);
    let (code, last) = add(2, &[at, 0, 6 | 1 << 32, 64, 1], &[empty]);
    assert_eq!(code, 0);
    ok!(cuGraphDestroyNode(empty));
    let mut count = 0;
    ok!(cuGraphNodeGetDependencies(last, null_mut(), &mut count));
    assert_eq!(count, 0);
    ok!(cuGraphDestroyNode(last));
    assert_eq!(cu!(cuGraphDestroyNode(last)), CUDA_ERROR_INVALID_VALUE);
    let (mut executable, stream) = (null_mut(), stream());
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    ok!(cuGraphLaunch(executable, stream));
    ok!(cuStreamSynchronize(stream));
    let mut byte = 0u8;
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), at, 1));
    assert_eq!(byte, 5);
    ok!(cuGraphExecDestroy(executable));
    ok!(cuGraphDestroy(graph));
    ok!(cuMemFree_v2(at));
}

/// Initialises the driver with this list of visible devices. The driver is not initialised before.
fn initialise(list: &str) -> cudarc::driver::sys::CUresult {
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    // SAFETY: no other thread of the process uses the environment.
    unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", list) };
    cu!(cuInit(0))
}

#[test]
fn visible_devices_keep_the_order_of_the_list() {
    common::with_options("visible_devices_keep_the_order_of_the_list", "devices:3", || {
        assert_eq!(initialise("2,0"), CUDA_SUCCESS);
        let mut count = 0;
        ok!(cuDeviceGetCount(&mut count));
        assert_eq!(count, 2);
        let bus = |device| {
            let mut id = [0 as c_char; 16];
            ok!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 16, device));
            id.map(c_char::cast_unsigned)
        };
        assert!(bus(0).starts_with(b"0000:03:") && bus(1).starts_with(b"0000:01:"));
        let mut device = 0;
        assert_ne!(cu!(cuDeviceGet(&mut device, 2)), CUDA_SUCCESS);
        // NVIDIA's management library names them alike.
        let (mut count, mut handle, mut again, mut text) = (0u32, 0usize, 0usize, [0u8; 96]);
        let counted = function::<unsafe extern "C" fn(*mut u32) -> i32>(b"nvmlDeviceGetCount_v2");
        // SAFETY: the place is a number.
        assert_eq!(unsafe { counted(&mut count) }, 0);
        assert_eq!(count, 2);
        let by_index =
            function::<unsafe extern "C" fn(u32, *mut usize) -> i32>(b"nvmlDeviceGetHandleByIndex_v2");
        // SAFETY: the place is a handle.
        assert_ne!(unsafe { by_index(2, &mut again) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { by_index(1, &mut handle) }, 0);
        let uuid = function::<unsafe extern "C" fn(usize, *mut u8, u32) -> i32>(b"nvmlDeviceGetUUID");
        // SAFETY: the place has this length.
        assert_eq!(unsafe { uuid(handle, text.as_mut_ptr(), 96) }, 0);
        assert!(text.starts_with(b"GPU-"));
        let by_uuid =
            function::<unsafe extern "C" fn(*const u8, *mut usize) -> i32>(b"nvmlDeviceGetHandleByUUID");
        // SAFETY: the text ends with a zero, and the place is a handle.
        assert_eq!(unsafe { by_uuid(text.as_ptr(), &mut again) }, 0);
        assert_eq!(handle, again);
    });
}

#[test]
fn no_visible_device_is_an_error() {
    common::with_options("no_visible_device_is_an_error", "devices:2", || {
        assert_eq!(initialise(""), CUDA_ERROR_NO_DEVICE);
    });
}
