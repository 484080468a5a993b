//! Tests kernels, graphs, managed memory and two-dimensional copies as a client uses them.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::sys::{self, CUfunction, CUgraph, CUgraphExec, CUmodule, CUresult, CUstream};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

const PTX: &CStr =
    c".version 8.0\n.target sm_80\n.visible .entry axpy(.param .u64 y) { ret; }\n.visible .entry fill() { ret; }\n\
    .visible .entry twice() { ret; }\n.visible .entry unknown() { ret; }";

fn context() -> Arc<CudaContext> {
    common::load();
    CudaContext::new(0).unwrap()
}

fn module() -> CUmodule {
    let mut module = null_mut();
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    module
}

fn stream() -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

fn word(at: u64) -> u32 {
    let mut word = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), at, 4));
    word
}

fn one(module: CUmodule, name: &CStr) -> Result<CUfunction, CUresult> {
    let mut function = null_mut();
    match cu!(cuModuleGetFunction(&mut function, module, name.as_ptr())) {
        CUresult::CUDA_SUCCESS => Ok(function),
        code => Err(code),
    }
}

#[test]
fn built_in_kernels_run_and_unknown_ones_are_refused() {
    let context = context();
    let stream = context.new_stream().unwrap();
    let ptx = cudarc::nvrtc::Ptx::from_src(PTX.to_str().unwrap());
    let module = context.load_module(ptx).unwrap();
    let axpy = module.load_function("axpy").unwrap();
    let x: Vec<f32> = (0..40_000).map(|n| n as f32).collect();
    let x = stream.clone_htod(&x).unwrap();
    let mut y = stream.clone_htod(&vec![1f32; 40_000]).unwrap();
    let (a, n) = (0.5f32, 40_000u64);
    let mut launch = stream.launch_builder(&axpy);
    launch.arg(&mut y).arg(&x).arg(&a).arg(&n);
    // SAFETY: the parameters are those of the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(40_000)) }.unwrap();
    let y = stream.clone_dtoh(&y).unwrap();
    assert!(y.iter().enumerate().all(|(n, y)| *y == 1.0 + n as f32 / 2.0));
    let refused = module.load_function("unknown").unwrap_err();
    assert_eq!(refused.0, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(
        module.load_function("absent").unwrap_err().0,
        CUresult::CUDA_ERROR_NOT_FOUND
    );
    let mut loaded = null_mut();
    let binary = c"\x7fELF\x02\x01\x01".as_ptr().cast();
    assert_eq!(
        cu!(cuModuleLoadData(&mut loaded, binary)),
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
    );
}

/// The kernel `twice(at: pointer, count: u32)`, through the C interface.
unsafe extern "C" fn twice(_data: usize, params: *const *const u8, shape: *const u32) -> i32 {
    // SAFETY: the kernel was registered with two parameters.
    let [at, count] = unsafe { params.cast::<[*const u8; 2]>().read() };
    // SAFETY: the first parameter has 8 bytes.
    let at = unsafe { at.cast::<u64>().read_unaligned() };
    // SAFETY: the second parameter has 4 bytes.
    let count = unsafe { count.cast::<u32>().read_unaligned() };
    // SAFETY: grid and block are six numbers.
    let blocks = unsafe { *shape };
    assert_eq!(blocks, 3);
    type Read = unsafe extern "C" fn(*mut u8, u64, usize) -> i32;
    type Write = unsafe extern "C" fn(u64, *const u8, usize) -> i32;
    // SAFETY: the function has this type.
    let read = unsafe { common::load().get::<Read>(b"millpond_emu_read") }.unwrap();
    // SAFETY: the function has this type.
    let write = unsafe { common::load().get::<Write>(b"millpond_emu_write") }.unwrap();
    let mut bytes = vec![0u8; count as usize];
    // SAFETY: the vector has this length.
    let failed = unsafe { read(bytes.as_mut_ptr(), at, bytes.len()) };
    if failed != 0 {
        return failed;
    }
    bytes.iter_mut().for_each(|byte| *byte *= 2);
    // SAFETY: as above.
    unsafe { write(at, bytes.as_ptr(), bytes.len()) }
}

#[test]
fn a_registered_function_runs_as_a_kernel() {
    common::with_options(
        "a_registered_function_runs_as_a_kernel",
        "strict:on,streams:threads",
        || {
            let _context = CudaContext::new(0).unwrap();
            type Kernel = unsafe extern "C" fn(usize, *const *const u8, *const u32) -> i32;
            type Register =
                unsafe extern "C" fn(*const c_char, *const usize, usize, u64, Option<Kernel>, usize) -> i32;
            // SAFETY: the function has this type.
            let register = unsafe { common::load().get::<Register>(b"millpond_emu_register") }.unwrap();
            let sizes = [8, 4];
            // SAFETY: the name is a C string, and there are as many sizes as the count says.
            let failed = unsafe { register(c"twice".as_ptr(), sizes.as_ptr(), 2, 1000, Some(twice), 0) };
            assert_eq!(failed, 0);
            let function = one(module(), c"twice").unwrap();
            let stream = stream();
            let mut at = 0u64;
            ok!(cuMemAlloc_v2(&mut at, 4096));
            let launch = |mut at: u64, mut count: u32| {
                let mut params: [*mut c_void; 2] = [(&raw mut at).cast(), (&raw mut count).cast()];
                ok!(cuLaunchKernel(
                    function,
                    3,
                    1,
                    1,
                    32,
                    1,
                    1,
                    0,
                    stream,
                    params.as_mut_ptr(),
                    null_mut()
                ));
            };
            ok!(cuMemsetD8Async(at, 21, 4096, stream));
            launch(at, 4096);
            ok!(cuStreamSynchronize(stream));
            assert_eq!(word(at + 4092), 0x2a2a_2a2a);
            launch(0xdead_0000, 4);
            assert_eq!(
                cu!(cuStreamSynchronize(stream)),
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            );
        },
    );
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut executable = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    executable
}

fn captured(body: impl FnOnce(CUstream)) -> CUgraph {
    let stream = stream();
    ok!(cuStreamBeginCapture_v2(
        stream,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    ));
    body(stream);
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    graph
}

#[test]
fn a_capture_runs_nothing_and_its_graph_runs_all_of_it() {
    for streams in ["in-place", "threads", "seeded"] {
        let name = "a_capture_runs_nothing_and_its_graph_runs_all_of_it";
        common::with_options(name, &format!("streams:{streams}"), || {
            let _context = CudaContext::new(0).unwrap();
            let (mut at, mut event, mut back) = (0, null_mut(), null_mut());
            ok!(cuMemAlloc_v2(&mut at, 64));
            ok!(cuMemsetD32_v2(at, 0, 16));
            ok!(cuEventCreate(&mut event, 0));
            ok!(cuEventCreate(&mut back, 0));
            let side = stream();
            let mut inner = 0;
            let graph = captured(|stream| {
                ok!(cuMemsetD32Async(at, 5, 1, stream));
                // Another stream joins the capture and is joined back.
                ok!(cuEventRecord(event, stream));
                ok!(cuStreamWaitEvent(side, event, 0));
                ok!(cuMemcpyDtoDAsync_v2(at + 4, at, 4, side));
                ok!(cuEventRecord(back, side));
                ok!(cuStreamWaitEvent(stream, back, 0));
                // The graph allocates its own memory.
                ok!(cuMemAllocAsync(&mut inner, 4, stream));
                ok!(cuMemcpyDtoDAsync_v2(inner, at + 4, 4, stream));
                ok!(cuMemcpyDtoDAsync_v2(at + 8, inner, 4, stream));
                ok!(cuMemFreeAsync(inner, stream));
            });
            assert_eq!(word(at), 0, "nothing has run");
            let mut count = 0;
            ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
            assert_eq!(count, 6);
            let executable = instantiate(graph);
            ok!(cuGraphDestroy(graph));
            for value in [1, 2] {
                ok!(cuMemsetD32_v2(at + 8, value, 1));
                ok!(cuCtxSynchronize());
                let stream = stream();
                ok!(cuGraphLaunch(executable, stream));
                ok!(cuStreamSynchronize(stream));
                assert_eq!([word(at), word(at + 4), word(at + 8)], [5; 3]);
            }
            ok!(cuGraphExecDestroy(executable));
            assert_eq!(
                cu!(cuMemcpyDtoD_v2(at, inner, 4)),
                CUresult::CUDA_ERROR_INVALID_VALUE
            );
        });
    }
}

#[test]
fn calls_that_a_capture_cannot_contain_are_refused() {
    let _context = context();
    let (mut event, mut at) = (null_mut(), 0);
    ok!(cuEventCreate(&mut event, 0));
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let (stream, side) = (stream(), stream());
    let end = || {
        let mut graph = null_mut();
        cu!(cuStreamEndCapture(stream, &mut graph))
    };
    let begin = || ok!(cuStreamBeginCapture_v2(stream, mode));
    use CUresult::*;
    assert_eq!(end(), CUDA_ERROR_ILLEGAL_STATE);
    for spoil in [0, 1, 2] {
        begin();
        let code = match spoil {
            0 => cu!(cuStreamSynchronize(stream)),
            1 => cu!(cuStreamQuery(stream)),
            _ => cu!(cuMemAlloc_v2(&mut at, 64)),
        };
        assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{spoil}");
        assert_eq!(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    // A stream joins the capture and is not joined back.
    begin();
    ok!(cuEventRecord(event, stream));
    ok!(cuStreamWaitEvent(side, event, 0));
    extern "C" fn nothing(_: *mut c_void) {}
    ok!(cuLaunchHostFunc(side, Some(nothing), null_mut()));
    assert_eq!(end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // Work from before the capture.
    ok!(cuEventRecord(event, side));
    begin();
    assert_eq!(
        cu!(cuStreamWaitEvent(stream, event, 0)),
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    );
    assert_eq!(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(
        cu!(cuStreamBeginCapture_v2(null_mut(), mode)),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
}

/// Tests `cuThreadExchangeStreamCaptureMode`: the mode of a thread decides which captures restrict it.
#[test]
fn the_mode_of_a_thread_decides_which_captures_restrict_it() {
    let name = "the_mode_of_a_thread_decides_which_captures_restrict_it";
    common::with_options(name, "", || {
        use sys::CUstreamCaptureMode::{
            CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as LOCAL,
        };
        let context = CudaContext::new(0).unwrap();
        let exchange = |mode| {
            let mut mode = mode;
            ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
            mode
        };
        let stream = stream();
        let mut event = null_mut();
        ok!(cuEventCreate(&mut event, 0));
        let event = event as usize;
        // Returns whether a plain allocation and a query of an event outside of captures are allowed.
        let allowed = |mode| {
            let before = exchange(mode);
            let (mut at, event) = (0, std::ptr::with_exposed_provenance_mut(event));
            let codes = [cu!(cuMemAlloc_v2(&mut at, 64)), cu!(cuEventQuery(event))];
            assert_eq!(exchange(before), mode);
            assert_eq!(codes[0], codes[1]);
            codes[0] == CUresult::CUDA_SUCCESS
        };
        for (capture, thread, here, elsewhere) in [
            (GLOBAL, GLOBAL, false, false),
            (GLOBAL, LOCAL, false, true),
            (GLOBAL, RELAXED, true, true),
            (LOCAL, GLOBAL, false, true),
            (LOCAL, LOCAL, false, true),
            (LOCAL, RELAXED, true, true),
            (RELAXED, GLOBAL, true, true),
        ] {
            for (same, expected) in [(true, here), (false, elsewhere)] {
                ok!(cuStreamBeginCapture_v2(stream, capture));
                let found = match same {
                    true => allowed(thread),
                    false => std::thread::scope(|scope| {
                        let other = scope.spawn(|| {
                            context.bind_to_thread().unwrap();
                            allowed(thread)
                        });
                        other.join().unwrap()
                    }),
                };
                assert_eq!(found, expected, "{capture:?}, {thread:?}, {same}");
                let mut graph = null_mut();
                let ended = cu!(cuStreamEndCapture(stream, &mut graph));
                assert_eq!(
                    ended == CUresult::CUDA_SUCCESS,
                    expected,
                    "what is refused spoils it"
                );
            }
        }
        assert_eq!(exchange(GLOBAL), GLOBAL, "the mode that a thread begins with");
        // The legacy stream is ordered with the blocking stream. Its status is undefined, and the query does not harm the
        // capture.
        let (mut blocking, mut graph) = (null_mut(), null_mut());
        ok!(cuStreamCreate(&mut blocking, 0));
        ok!(cuStreamBeginCapture_v2(blocking, GLOBAL));
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        assert_eq!(
            cu!(cuStreamIsCapturing(null_mut(), &mut status)),
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        );
        ok!(cuStreamEndCapture(blocking, &mut graph));
    });
}

#[test]
fn graphs_can_be_assembled_by_hand() {
    let _context = context();
    let (mut graph, mut fill, mut take, mut again) = (null_mut(), null_mut(), null_mut(), null_mut());
    ok!(cuGraphCreate(&mut graph, 0));
    // SAFETY: all zeros are a valid value of every field.
    let mut params: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = 4096;
    ok!(cuGraphAddMemAllocNode(
        &mut take,
        graph,
        null_mut(),
        0,
        &mut params
    ));
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(&mut context));
    let set = sys::CUDA_MEMSET_NODE_PARAMS {
        dst: params.dptr,
        pitch: 0,
        value: 0x0102_0304,
        elementSize: 4,
        width: 1024,
        height: 1,
    };
    ok!(cuGraphAddMemsetNode(&mut fill, graph, &take, 1, &set, context));
    ok!(cuGraphAddEmptyNode(&mut again, graph, &fill, 1));
    let stranger = std::ptr::without_provenance_mut(77);
    assert_eq!(
        cu!(cuGraphAddEmptyNode(&mut again, graph, &stranger, 1)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
    ok!(cuGraphNodeGetType(take, &mut kind));
    assert_eq!(kind, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    let executable = instantiate(graph);
    ok!(cuGraphLaunch(executable, null_mut()));
    assert_eq!(word(params.dptr + 4092), 0x0102_0304);
    ok!(cuGraphExecDestroy(executable));
    assert_eq!(word(params.dptr), 0x0102_0304, "the graph still has its memory");
    ok!(cuGraphDestroy(graph));
    let mut word = 0u32;
    let gone = cu!(cuMemcpyDtoH_v2((&raw mut word).cast(), params.dptr, 4));
    assert_eq!(gone, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn managed_pages_move_as_prefetched_and_advised() {
    let _context = context();
    const BYTES: usize = 1 << 20;
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, BYTES, 1));
    // SAFETY: the memory was just allocated and is accessible to the host.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at as usize).write_bytes(8, BYTES) };
    assert_eq!(word(at), 0x0808_0808);
    type Resident = unsafe extern "C" fn(u64, usize, i32) -> u64;
    // SAFETY: the function has this type.
    let resident = unsafe { common::load().get::<Resident>(b"millpond_emu_resident") }.unwrap();
    // SAFETY: the function accepts any arguments.
    let at_place = |place| unsafe { resident(at, BYTES, place) } as usize;
    let device = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    };
    let host = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST,
        id: 0,
    };
    let get = |attribute, from: u64, bytes| {
        let mut value = 0i32;
        ok!(cuMemRangeGetAttribute(
            (&raw mut value).cast(),
            4,
            attribute,
            from,
            bytes
        ));
        value
    };
    use sys::CUmem_range_attribute as A;
    let prefetched = |from, bytes| get(A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, from, bytes);
    assert_eq!((at_place(-1), prefetched(at, BYTES)), (BYTES, -2));
    let half = BYTES / 2;
    ok!(cuMemPrefetchAsync_v2(at, half, device, 0, null_mut()));
    ok!(cuCtxSynchronize());
    assert_eq!((at_place(0), at_place(-1)), (half, half));
    assert_eq!(
        (prefetched(at, half), prefetched(at, BYTES)),
        (0, -2),
        "they do not agree"
    );
    ok!(cuMemPrefetchAsync_v2(at, half, host, 0, null_mut()));
    ok!(cuCtxSynchronize());
    assert_eq!((at_place(-1), prefetched(at, half)), (BYTES, -1));
    // A page moves to the device that writes it, unless it is at its preferred location.
    use sys::CUmem_advise as Advice;
    ok!(cuMemAdvise_v2(
        at,
        half,
        Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        host
    ));
    ok!(cuMemsetD8_v2(at, 1, BYTES));
    ok!(cuCtxSynchronize());
    assert_eq!((at_place(-1), at_place(0)), (half, half));
    assert_eq!(get(A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, half), -1);
    ok!(cuMemAdvise_v2(
        at,
        BYTES,
        Advice::CU_MEM_ADVISE_SET_READ_MOSTLY,
        host
    ));
    assert_eq!(get(A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, BYTES), 1);
    ok!(cuMemAdvise_v2(
        at,
        BYTES,
        Advice::CU_MEM_ADVISE_SET_ACCESSED_BY,
        device
    ));
    let mut places = [9i32; 3];
    let accessed = A::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    ok!(cuMemRangeGetAttribute(
        places.as_mut_ptr().cast(),
        12,
        accessed,
        at,
        BYTES
    ));
    assert_eq!(places, [0, -2, -2]);
    ok!(cuMemFree_v2(at));
}

#[test]
fn planes_are_copied_row_by_row() {
    let _context = context();
    let (mut at, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 30, 4, 4));
    assert_eq!(pitch, 512);
    ok!(cuMemsetD2D8_v2(at, pitch, 7, 30, 4));
    let source: Vec<u8> = (0..100).collect();
    let mut copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 2,
        srcY: 1,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source.as_ptr().cast(),
        srcDevice: 0,
        srcArray: null_mut(),
        srcPitch: 10,
        dstXInBytes: 5,
        dstY: 1,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: at,
        dstArray: null_mut(),
        dstPitch: pitch,
        WidthInBytes: 3,
        Height: 2,
    };
    ok!(cuMemcpy2D_v2(&copy));
    let mut rows = vec![0u8; 3 * pitch + 30];
    ok!(cuMemcpyDtoH_v2(rows.as_mut_ptr().cast(), at, rows.len()));
    let row = |row: usize| &rows[row * pitch + 4..row * pitch + 9];
    assert_eq!(
        [row(0), row(1), row(2), row(3)],
        [[7; 5], [7, 12, 13, 14, 7], [7, 22, 23, 24, 7], [7; 5]]
    );
    copy.srcPitch = 4;
    assert_eq!(cu!(cuMemcpy2D_v2(&copy)), CUresult::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(at));
}
