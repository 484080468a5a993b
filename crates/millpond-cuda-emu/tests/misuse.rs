//! Faults on request, a lost device, drivers that lack something, and what strict mode finds.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUresult, CUstream};
use std::ffi::{CString, c_char};
use std::ptr::null_mut;

fn allocate() -> CUresult {
    let mut at = 0;
    cu!(cuMemAlloc_v2(&mut at, 512))
}

fn streams() -> [CUstream; 2] {
    [(); 2].map(|()| {
        let mut stream = null_mut();
        ok!(cuStreamCreate(&mut stream, 1));
        stream
    })
}

/// What strict mode has found so far.
fn findings() -> Vec<String> {
    type Report = unsafe extern "C" fn(*mut c_char, usize) -> u64;
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the function has this type.
    let report = unsafe { common::load().get::<Report>(b"millpond_emu_report") }.unwrap();
    // SAFETY: the room is as large as it says.
    let count = unsafe { report(text.as_mut_ptr().cast(), text.len()) };
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<String> = text.trim_end_matches('\0').lines().map(str::to_owned).collect();
    assert_eq!(lines.len() as u64, count);
    lines
}

#[test]
fn calls_fail_as_asked() {
    common::with_options(
        "calls_fail_as_asked",
        "fail:cuMemAlloc@2,fail:cuCtxGetLimit=700",
        || {
            let _context = CudaContext::new(0).unwrap();
            let answers = [(); 3].map(|()| allocate());
            use CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
            assert_eq!(answers, [CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS]);
            let mut value = 0;
            let limit = cudarc::driver::sys::CUlimit::CU_LIMIT_STACK_SIZE;
            assert_eq!(cu!(cuCtxGetLimit(&mut value, limit)), CUDA_ERROR_ILLEGAL_ADDRESS);
            // Asked for while the program runs, and taken back.
            type Fail = unsafe extern "C" fn(*const c_char) -> i32;
            // SAFETY: the function has this type.
            let fail = unsafe { common::load().get::<Fail>(b"millpond_emu_fail") }.unwrap();
            let ask = |what: &str| {
                let what = CString::new(what).unwrap();
                // SAFETY: a C string.
                unsafe { fail(what.as_ptr()) }
            };
            assert_eq!(ask("cuMemAlloc_v2@2=CUDA_ERROR_ILLEGAL_ADDRESS"), 0);
            let answers = [(); 3].map(|()| allocate());
            assert_eq!(answers, [CUDA_SUCCESS, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_SUCCESS]);
            assert_eq!(ask("cuMemAlloc"), 0);
            // SAFETY: null is allowed.
            unsafe { fail(null_mut()) };
            assert_eq!(allocate(), CUDA_SUCCESS);
            assert_ne!(ask("nonsense"), 0);
        },
    );
}

#[test]
fn a_lost_device_answers_nothing_any_more() {
    common::with_options("a_lost_device_answers_nothing_any_more", "lost:12", || {
        let Ok(context) = CudaContext::new(0) else {
            panic!("lost too early")
        };
        let answers: Vec<_> = (0..12).map(|_| allocate()).collect();
        let lost = answers
            .iter()
            .position(|answer| *answer != CUresult::CUDA_SUCCESS)
            .unwrap();
        assert!(
            lost > 0
                && answers[lost..]
                    .iter()
                    .all(|answer| *answer == CUresult::CUDA_ERROR_UNKNOWN)
        );
        assert!(context.synchronize().is_err());
        let mut version = 0;
        ok!(cuDriverGetVersion(&mut version));
        assert_eq!(version, 12080);
    });
}

#[test]
fn a_driver_can_lack_pools_and_virtual_memory() {
    let name = "a_driver_can_lack_pools_and_virtual_memory";
    common::with_options(
        name,
        "without:vmm,without:pools,version:12000,devices:3,memory:64M",
        || {
            let context = CudaContext::new(2).unwrap();
            assert!(!context.has_async_alloc());
            assert_eq!(context.total_mem().unwrap(), 64 << 20);
            let slice = context.default_stream().clone_htod(&[1u8, 2, 3]).unwrap();
            assert_eq!(context.default_stream().clone_dtoh(&slice).unwrap(), [1, 2, 3]);
            let mut at = 0;
            assert_eq!(
                cu!(cuMemAddressReserve(&mut at, 2 << 20, 0, 0, 0)),
                CUresult::CUDA_ERROR_NOT_SUPPORTED
            );
            let mut function = null_mut();
            let found = cu!(cuGetProcAddress_v2(
                c"cuMemCreate".as_ptr(),
                &mut function,
                12000,
                0,
                null_mut()
            ));
            assert_eq!(
                (found, function.is_null()),
                (CUresult::CUDA_ERROR_NOT_FOUND, true)
            );
            assert_eq!(
                cu!(cuMemAllocAsync(&mut at, 512, null_mut())),
                CUresult::CUDA_ERROR_NOT_SUPPORTED
            );
            assert!(CudaContext::new(3).is_err());
        },
    );
}

#[test]
fn options_that_are_none_are_told() {
    let name = "options_that_are_none_are_told";
    let output = common::run(name, "streams:later", || {
        assert_eq!(cu!(cuInit(0)), CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut count = 0;
        assert_eq!(
            cu!(cuDeviceGetCount(&mut count)),
            CUresult::CUDA_ERROR_NOT_INITIALIZED
        );
    });
    let (fine, text) = output;
    assert!(
        fine && text.contains("'streams:later'") && text.contains("in-place, threads or seeded"),
        "{text}"
    );
}

#[test]
fn use_after_free_is_reported_with_both_places() {
    let name = "use_after_free_is_reported_with_both_places";
    common::with_options(name, "strict:on", || {
        let _context = CudaContext::new(0).unwrap();
        let [one, _] = streams();
        let mut at = 0;
        ok!(cuMemAllocAsync(&mut at, 4096, one));
        ok!(cuMemsetD8Async(at, 1, 4096, one));
        ok!(cuMemFreeAsync(at, one));
        assert_eq!(findings(), [""; 0]);
        assert_eq!(
            cu!(cuMemsetD8Async(at + 100, 1, 8, one)),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        let found = findings();
        assert_eq!(found.len(), 1);
        for part in [
            "use after free",
            "cuMemsetD8Async",
            "cuMemAllocAsync",
            "cuMemFreeAsync",
        ] {
            assert!(found[0].contains(part), "{found:?}");
        }
    });
}

/// Two streams, one block; `order` says what is put between them.
fn two_streams_at_a_block(order: impl FnOnce(CUstream, CUstream)) -> Vec<String> {
    let _context = CudaContext::new(0).unwrap();
    let [one, two] = streams();
    let (mut at, mut other) = (0, 0);
    ok!(cuMemAlloc_v2(&mut at, 4096));
    ok!(cuMemAlloc_v2(&mut other, 4096));
    ok!(cuMemsetD8Async(at, 1, 4096, one));
    order(one, two);
    ok!(cuMemcpyDtoDAsync_v2(other, at + 1024, 1024, two));
    // Reading the same bytes, and writing others, is nobody's business.
    ok!(cuMemsetD8Async(at, 2, 1024, one));
    ok!(cuMemcpyDtoDAsync_v2(other + 2048, at + 1024, 1024, one));
    findings()
}

#[test]
fn unordered_use_is_reported() {
    common::with_options("unordered_use_is_reported", "strict:on", || {
        let found = two_streams_at_a_block(|_, _| {});
        assert_eq!(found.len(), 1, "{found:?}");
        for part in [
            "unordered",
            "cuMemcpyDtoDAsync_v2",
            "reads",
            "cuMemsetD8Async",
            "writes",
        ] {
            assert!(found[0].contains(part), "{found:?}");
        }
    });
}

#[test]
fn use_ordered_by_an_event_or_the_host_is_not() {
    let name = "use_ordered_by_an_event_or_the_host_is_not";
    for streams in ["in-place", "seeded", "threads"] {
        common::with_options(name, &format!("strict:on,streams:{streams}"), || {
            let by_event = |one, two| {
                let mut event = null_mut();
                ok!(cuEventCreate(&mut event, 2));
                ok!(cuEventRecord(event, one));
                ok!(cuStreamWaitEvent(two, event, 0));
            };
            assert_eq!(two_streams_at_a_block(by_event), [""; 0]);
            assert_eq!(
                two_streams_at_a_block(|one, _| ok!(cuStreamSynchronize(one))),
                [""; 0]
            );
        });
    }
}

#[test]
fn a_block_freed_while_another_stream_uses_it_is_reported() {
    let name = "a_block_freed_while_another_stream_uses_it_is_reported";
    common::with_options(name, "strict:on", || {
        let _context = CudaContext::new(0).unwrap();
        let [one, two] = streams();
        let mut at = 0;
        ok!(cuMemAllocAsync(&mut at, 4096, one));
        ok!(cuStreamSynchronize(one));
        ok!(cuMemsetD8Async(at, 1, 4096, two));
        ok!(cuMemFreeAsync(at, one));
        let found = findings();
        assert!(
            found.len() == 1 && found[0].contains("cuMemFreeAsync"),
            "{found:?}"
        );
    });
}

#[test]
fn an_early_unmap_is_an_illegal_address_for_good() {
    let name = "an_early_unmap_is_an_illegal_address_for_good";
    common::with_options(name, "strict:on,streams:seeded", || {
        let _context = CudaContext::new(0).unwrap();
        let [one, two] = streams();
        let bytes = 2 << 20;
        // SAFETY: all zeros are a value of every field.
        let mut prop: cudarc::driver::sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        prop.type_ = cudarc::driver::sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type_ = cudarc::driver::sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let (mut at, mut handle) = (0, 0);
        ok!(cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
        ok!(cuMemCreate(&mut handle, bytes, &prop, 0));
        ok!(cuMemMap(at, bytes, 0, handle, 0));
        let access = cudarc::driver::sys::CUmemAccessDesc {
            location: prop.location,
            flags: cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        ok!(cuMemSetAccess(at, bytes, &access, 1));
        ok!(cuMemsetD8Async(at, 1, bytes, one));
        ok!(cuMemUnmap(at, bytes));
        let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!(cu!(cuStreamSynchronize(one)), illegal);
        assert_eq!(
            cu!(cuStreamSynchronize(two)),
            illegal,
            "it is the whole context's"
        );
        assert_eq!(allocate(), illegal);
        assert!(findings()[0].contains("illegal address: cuMemsetD8Async"));
    });
}

/// The host faults where it touches device memory.
#[test]
fn strict_memory_is_closed_to_the_host() {
    let name = "strict_memory_is_closed_to_the_host";
    let touch = || {
        let _context = CudaContext::new(0).unwrap();
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at, 4096));
        ok!(cuMemsetD8_v2(at, 6, 4096));
        // SAFETY: whether this is allowed is what is tested.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() };
        assert_eq!(byte, 6);
    };
    let (fine, text) = common::run(name, "", touch);
    assert!(fine, "open by default: {text}");
    let (fine, text) = common::run(name, "strict:on", touch);
    assert!(!fine && !text.contains("panicked"), "{text}");
}

#[test]
fn what_a_destroyed_stream_did_is_over_when_the_context_is() {
    let name = "what_a_destroyed_stream_did_is_over_when_the_context_is";
    common::with_options(name, "strict:on", || {
        let _context = CudaContext::new(0).unwrap();
        let [one, two] = streams();
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at, 4096));
        ok!(cuMemsetD8Async(at, 1, 4096, one));
        ok!(cuStreamDestroy_v2(one));
        ok!(cuCtxSynchronize());
        ok!(cuMemsetD8Async(at, 2, 4096, two));
        assert_eq!(findings(), [""; 0]);
    });
}
