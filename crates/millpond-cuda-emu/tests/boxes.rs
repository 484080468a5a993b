//! Tests copies of planes and of several ranges, libraries of kernels, and primary contexts, as a client of the driver uses them.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};
use std::ptr::null_mut;

/// The size of the box that is copied from, in bytes, rows and planes.
const BOX: [usize; 3] = [10, 8, 6];

#[test]
fn planes_are_copied_with_offsets() {
    common::load();
    let context = CudaContext::new(0).unwrap();
    let [width, height, depth] = BOX;
    let source: Vec<u8> = (0..width * height * depth).map(|n| n as u8).collect();
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, 4096));
    ok!(cuMemsetD8_v2(at, 7, 4096));
    let mut copy = sys::CUDA_MEMCPY3D {
        srcXInBytes: 1,
        srcY: 2,
        srcZ: 3,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source.as_ptr().cast(),
        srcDevice: 0,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: width,
        srcHeight: height,
        dstXInBytes: 4,
        dstY: 1,
        dstZ: 1,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: at,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: 32,
        dstHeight: 5,
        WidthInBytes: 9,
        Height: 3,
        Depth: 2,
    };
    ok!(cuMemcpy3D_v2(&copy));
    let mut found = vec![0_u8; 4096];
    ok!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), at, found.len()));
    let mut expected = vec![7_u8; 4096];
    for plane in 0..2 {
        for row in 0..3 {
            let to = (plane + 1) * 32 * 5 + (row + 1) * 32 + 4;
            let from = (plane + 3) * width * height + (row + 2) * width + 1;
            expected[to..to + 9].copy_from_slice(&source[from..from + 9]);
        }
    }
    assert_eq!(found, expected);
    // Planes that are too small, and memory that ends before the last row.
    copy.dstHeight = 3;
    assert_eq!(cu!(cuMemcpy3D_v2(&copy)), CUresult::CUDA_ERROR_INVALID_VALUE);
    copy.dstHeight = 100;
    assert_eq!(cu!(cuMemcpy3D_v2(&copy)), CUresult::CUDA_ERROR_INVALID_VALUE);
    copy.Depth = 0;
    ok!(cuMemcpy3D_v2(&copy));
    ok!(cuMemFree_v2(at));
    drop(context);
}

#[test]
fn libraries_need_no_context() {
    common::load();
    ok!(cuInit(0));
    const PTX: &std::ffi::CStr =
        c".version 8.0\n.target sm_80\n.visible .entry fill() { ret; }\n.visible .entry unknown() { ret; }";
    let load = |image: *const std::ffi::c_void| {
        let mut library = null_mut();
        let code = cu!(cuLibraryLoadData(
            &mut library,
            image,
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        (code, library)
    };
    let (code, library) = load(PTX.as_ptr().cast());
    code.result().unwrap();
    let (mut kernel, mut function) = (null_mut(), null_mut());
    ok!(cuLibraryGetKernel(&mut kernel, library, c"fill".as_ptr()));
    ok!(cuKernelGetFunction(&mut function, kernel));
    let mut unknown = null_mut();
    let refused = cu!(cuLibraryGetKernel(&mut unknown, library, c"unknown".as_ptr()));
    assert_eq!(refused, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    ok!(cuLibraryUnload(library));
    let gone = cu!(cuKernelGetFunction(&mut function, kernel));
    assert_eq!(gone, CUresult::CUDA_ERROR_INVALID_HANDLE);
    // The structure with which a program of the runtime points to its code.
    let program = [0x4662_43b1_u32, 1, 0, 0, 0, 0];
    assert_eq!(
        load(program.as_ptr().cast()).0,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
    );
}

#[test]
fn a_primary_context_keeps_its_handle() {
    common::with_options("a_primary_context_keeps_its_handle", "strict:on", || {
        let (mut first, mut again, mut current, mut at) = (null_mut(), null_mut(), null_mut(), 0);
        ok!(cuInit(0));
        ok!(cuDevicePrimaryCtxRetain(&mut first, 0));
        ok!(cuCtxSetCurrent(first));
        ok!(cuMemAlloc_v2(&mut at, 100));
        ok!(cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(
            cu!(cuMemAlloc_v2(&mut at, 100)),
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
        );
        ok!(cuCtxGetCurrent(&mut current));
        assert_eq!(current, first);
        // It may be made current before it is retained.
        ok!(cuCtxSetCurrent(first));
        ok!(cuDevicePrimaryCtxRetain(&mut again, 0));
        assert_eq!(again, first);
        ok!(cuMemAlloc_v2(&mut at, 100));
        ok!(cuMemFree_v2(at));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
    });
}

#[test]
fn several_ranges_are_copied_in_one_call() {
    common::load();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let source: Vec<u8> = (0..100).collect();
    let (mut at, mut found) = (0, vec![0_u8; 100]);
    ok!(cuMemAlloc_v2(&mut at, 100));
    let mut to = [at + 50, at];
    let from = source.as_ptr().expose_provenance() as u64;
    let mut from = [from, from + 50];
    let mut sizes = [50, 50];
    let mut first = 0;
    let mut failed = 0;
    // SAFETY: zeros are valid attributes.
    let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    let mut copy = |to: &mut [u64; 2], stream| {
        let code = cu!(cuMemcpyBatchAsync(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            sizes.as_mut_ptr(),
            2,
            &mut attributes,
            &mut first,
            1,
            &mut failed,
            stream
        ));
        (code, failed)
    };
    assert_eq!(copy(&mut to, stream.cu_stream()).0, CUresult::CUDA_SUCCESS);
    ok!(cuStreamSynchronize(stream.cu_stream()));
    ok!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), at, 100));
    assert_eq!(found, [&source[50..], &source[..50]].concat());
    to[1] = at + 60;
    assert_eq!(
        copy(&mut to, stream.cu_stream()),
        (CUresult::CUDA_ERROR_INVALID_VALUE, 1)
    );
    assert_eq!(
        copy(&mut to, null_mut()),
        (CUresult::CUDA_ERROR_INVALID_VALUE, usize::MAX)
    );
    ok!(cuMemFree_v2(at));
}
