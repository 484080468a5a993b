//! Tests injected faults, a lost device, drivers without some features, and the findings of strict mode.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUresult, CUstream};
use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// Returns the findings of strict mode so far.
fn findings() -> Vec<String> {
    type Report = unsafe extern "C" fn(*mut c_char, usize) -> u64;
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the function has this type.
    let report = unsafe { common::load().get::<Report>(b"millpond_emu_report") }.unwrap();
    // SAFETY: the buffer has the given length.
    let count = unsafe { report(text.as_mut_ptr().cast(), text.len()) };
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<String> = text.trim_end_matches('\0').lines().map(str::to_owned).collect();
    assert_eq!(lines.len() as u64, count);
    lines
}

#[test]
fn calls_fail_as_requested() {
    common::with_options(
        "calls_fail_as_requested",
        "fail:cuMemAlloc@2,fail:cuCtxGetLimit=700",
        || {
            let _context = CudaContext::new(0).unwrap();
            let answers = [(); 3].map(|()| allocate());
            use CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
            assert_eq!(answers, [CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS]);
            let mut value = 0;
            let limit = cudarc::driver::sys::CUlimit::CU_LIMIT_STACK_SIZE;
            assert_eq!(cu!(cuCtxGetLimit(&mut value, limit)), CUDA_ERROR_ILLEGAL_ADDRESS);
            // A fault that is requested at run time and cancelled.
            type Fail = unsafe extern "C" fn(*const c_char) -> i32;
            // SAFETY: the function has this type.
            let fail = unsafe { common::load().get::<Fail>(b"millpond_emu_fail") }.unwrap();
            let ask = |what: &str| {
                let what = CString::new(what).unwrap();
                // SAFETY: the argument is a C string.
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
fn every_call_fails_after_the_device_is_lost() {
    use CUresult::{CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS};
    for options in ["lost:12", "lost:12=214"] {
        common::with_options("every_call_fails_after_the_device_is_lost", options, || {
            let Ok(context) = CudaContext::new(0) else {
                panic!("lost too early")
            };
            let code = match std::env::var("MILLPOND_CUDA_EMU").unwrap().as_str() {
                "lost:12" => CUDA_ERROR_ILLEGAL_ADDRESS,
                _ => CUDA_ERROR_ECC_UNCORRECTABLE,
            };
            let answers: Vec<_> = (0..12).map(|_| allocate()).collect();
            let lost = answers
                .iter()
                .position(|answer| *answer != CUresult::CUDA_SUCCESS)
                .unwrap();
            assert!(
                lost > 0 && answers[lost..].iter().all(|answer| *answer == code),
                "{answers:?}"
            );
            assert!(context.synchronize().is_err());
            let mut version = 0;
            ok!(cuDriverGetVersion(&mut version));
            assert_eq!(version, 12080);
        });
    }
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
            assert_eq!((found, function.is_null()), (CUresult::CUDA_SUCCESS, true));
            assert_eq!(
                cu!(cuMemAllocAsync(&mut at, 512, null_mut())),
                CUresult::CUDA_ERROR_NOT_SUPPORTED
            );
            assert!(CudaContext::new(3).is_err());
        },
    );
}

#[test]
fn invalid_options_are_reported() {
    let name = "invalid_options_are_reported";
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
fn use_after_free_is_reported_with_the_allocation_and_the_free() {
    let name = "use_after_free_is_reported_with_the_allocation_and_the_free";
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

/// Returns the findings after two streams use one block. `order` runs between them.
fn two_streams_at_a_block(order: impl FnOnce(CUstream, CUstream)) -> Vec<String> {
    let _context = CudaContext::new(0).unwrap();
    let [one, two] = streams();
    let (mut at, mut other) = (0, 0);
    ok!(cuMemAlloc_v2(&mut at, 4096));
    ok!(cuMemAlloc_v2(&mut other, 4096));
    ok!(cuMemsetD8Async(at, 1, 4096, one));
    order(one, two);
    ok!(cuMemcpyDtoDAsync_v2(other, at + 1024, 1024, two));
    // Concurrent reads of the same bytes, and writes to other bytes, are not reported.
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
fn use_ordered_by_an_event_or_the_host_is_not_reported() {
    let name = "use_ordered_by_an_event_or_the_host_is_not_reported";
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

unsafe extern "C" fn tell_host(told: *mut c_void) {
    // SAFETY: the test keeps the number until the stream is synchronised.
    unsafe { &*told.cast::<AtomicU32>() }.store(0, Ordering::SeqCst);
}

unsafe extern "C" fn tell_stream(_: CUstream, code: CUresult, told: *mut c_void) {
    // SAFETY: as above.
    unsafe { &*told.cast::<AtomicU32>() }.store(code as u32, Ordering::SeqCst);
}

#[test]
fn an_early_unmap_leaves_the_context_with_an_illegal_address_error() {
    let name = "an_early_unmap_leaves_the_context_with_an_illegal_address_error";
    common::with_options(name, "strict:on,streams:seeded", || {
        let _context = CudaContext::new(0).unwrap();
        let [one, two] = streams();
        let bytes = 2 << 20;
        // SAFETY: all zeros are a valid value of every field.
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
        let told = [const { AtomicU32::new(u32::MAX) }; 2];
        let [host, stream] = told
            .each_ref()
            .map(|told| std::ptr::from_ref(told).cast_mut().cast());
        ok!(cuLaunchHostFunc(one, Some(tell_host), host));
        ok!(cuStreamAddCallback(one, Some(tell_stream), stream, 0));
        ok!(cuMemUnmap(at, bytes));
        let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!(cu!(cuStreamSynchronize(one)), illegal);
        assert_eq!(
            told.map(AtomicU32::into_inner),
            [u32::MAX, illegal as u32],
            "as documented"
        );
        assert_eq!(
            cu!(cuStreamSynchronize(two)),
            illegal,
            "it is the whole context's"
        );
        assert_eq!(allocate(), illegal);
        let findings = findings();
        assert!(findings[0].contains("missing wait: cuMemUnmap"), "{findings:?}");
        assert!(
            findings[1].contains("illegal address: cuMemsetD8Async"),
            "{findings:?}"
        );
    });
}

/// The host faults when it accesses device memory.
#[test]
fn strict_memory_is_closed_to_the_host() {
    let name = "strict_memory_is_closed_to_the_host";
    let touch = || {
        let _context = CudaContext::new(0).unwrap();
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at, 4096));
        ok!(cuMemsetD8_v2(at, 6, 4096));
        // SAFETY: the test checks whether this access is allowed.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() };
        assert_eq!(byte, 6);
    };
    let (fine, text) = common::run(name, "", touch);
    assert!(fine, "open by default: {text}");
    let (fine, text) = common::run(name, "strict:on", touch);
    assert!(!fine && !text.contains("panicked"), "{text}");
}

#[test]
fn a_wait_for_the_context_covers_destroyed_streams() {
    let name = "a_wait_for_the_context_covers_destroyed_streams";
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

/// Creates physical memory of a device. Returns its handle, and a function that makes a mapping of it accessible to a device.
fn physical(device: i32, bytes: usize) -> (u64, impl Fn(u64, i32)) {
    // SAFETY: all zeros are a valid value of every field.
    let mut prop: cudarc::driver::sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = cudarc::driver::sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = cudarc::driver::sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, bytes, &prop, 0));
    let open = move |at, device| {
        let mut location = prop.location;
        location.id = device;
        let flags = cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = cudarc::driver::sys::CUmemAccessDesc { location, flags };
        ok!(cuMemSetAccess(at, bytes, &access, 1));
    };
    (handle, open)
}

/// Maps the memory of a handle at new addresses.
fn map(handle: u64, bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
    ok!(cuMemMap(at, bytes, 0, handle, 0));
    at
}

/// A free that waits can hide a missing wait of the host.
#[test]
fn a_free_that_hides_a_missing_wait_is_reported() {
    let name = "a_free_that_hides_a_missing_wait_is_reported";
    for streams in ["in-place", "seeded", "threads"] {
        common::with_options(name, &format!("strict:on,streams:{streams}"), || {
            let _context = CudaContext::new(0).unwrap();
            let [one, _] = streams_and_event().0;
            let event = streams_and_event().1;
            let bytes = 2usize << 20;
            // Device memory, pinned memory, registered memory and mapped memory.
            let device = || {
                let mut at = 0;
                ok!(cuMemAlloc_v2(&mut at, bytes));
                at
            };
            let pinned = || {
                let mut at = null_mut();
                ok!(cuMemHostAlloc(&mut at, bytes, 0));
                at as u64
            };
            let mut host = vec![0u8; bytes];
            let registered = || {
                let at: *mut std::ffi::c_void = host.as_mut_ptr().cast();
                ok!(cuMemHostRegister_v2(at, bytes, 0));
                at as u64
            };
            let mapped = || {
                let (handle, open) = physical(0, bytes);
                let at = map(handle, bytes);
                open(at, 0);
                at
            };
            type Take<'a> = Box<dyn FnMut() -> u64 + 'a>;
            type Give = fn(u64, usize);
            let mut kinds: [(&str, Take<'_>, Give); 4] = [
                ("cuMemFree_v2", Box::new(device), |at, _| ok!(cuMemFree_v2(at))),
                ("cuMemFreeHost", Box::new(pinned), |at, _| {
                    ok!(cuMemFreeHost(at as *mut _));
                }),
                ("cuMemHostUnregister", Box::new(registered), |at, _| {
                    ok!(cuMemHostUnregister(at as *mut _));
                }),
                ("cuMemUnmap", Box::new(mapped), |at, bytes| {
                    ok!(cuMemUnmap(at, bytes));
                }),
            ];
            let target = device();
            for (call, take, give) in &mut kinds {
                // The host waits for the stream, waits for an event, or queries the stream until it is done.
                let waits: [&dyn Fn(); 3] = [
                    &|| ok!(cuStreamSynchronize(one)),
                    &|| {
                        ok!(cuEventRecord(event, one));
                        ok!(cuEventSynchronize(event));
                    },
                    &|| while cu!(cuStreamQuery(one)) != CUresult::CUDA_SUCCESS {},
                ];
                for wait in waits {
                    let at = take();
                    ok!(cuMemcpyDtoDAsync_v2(target, at, bytes, one));
                    wait();
                    give(at, bytes);
                    assert_eq!(findings(), [""; 0], "{call}");
                }
            }
            let mut told = 0;
            for (call, take, give) in kinds.iter_mut().take(3) {
                let at = take();
                ok!(cuMemcpyDtoDAsync_v2(target, at, bytes, one));
                give(at, bytes);
                told += 1;
                let found = findings();
                assert_eq!(found.len(), told, "{found:?}");
                let last = &found[told - 1];
                assert!(
                    last.contains("missing wait")
                        && last.contains(*call)
                        && last.contains("cuMemcpyDtoDAsync_v2"),
                    "{last}"
                );
                // The call waited anyway, so the work of the stream is complete.
                ok!(cuStreamSynchronize(one));
            }
        });
    }
}

fn streams_and_event() -> ([CUstream; 2], cudarc::driver::sys::CUevent) {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, 2));
    (streams(), event)
}

/// A real driver crashes if a call passes a handle that has ended.
#[test]
fn stale_handles_are_reported() {
    let name = "stale_handles_are_reported";
    common::with_options(name, "strict:on", || {
        let _context = CudaContext::new(0).unwrap();
        let ([one, two], event) = streams_and_event();
        let mut own = null_mut();
        ok!(cuCtxCreate_v2(&mut own, 0, 0));
        ok!(cuCtxPopCurrent_v2(&mut own));
        ok!(cuCtxDestroy_v2(own));
        ok!(cuStreamDestroy_v2(one));
        ok!(cuEventDestroy_v2(event));
        assert_eq!(findings(), [""; 0]);
        let stale: [(&str, &dyn Fn() -> CUresult); 7] = [
            ("stream", &|| cu!(cuStreamSynchronize(one))),
            ("stream", &|| cu!(cuMemsetD8Async(4096, 0, 1, one))),
            ("stream", &|| cu!(cuStreamDestroy_v2(one))),
            ("event", &|| cu!(cuEventQuery(event))),
            ("event", &|| cu!(cuStreamWaitEvent(two, event, 0))),
            ("event", &|| cu!(cuEventDestroy_v2(event))),
            ("context", &|| cu!(cuCtxPushCurrent_v2(own))),
        ];
        for (index, (what, call)) in stale.into_iter().enumerate() {
            assert_ne!(call(), CUresult::CUDA_SUCCESS);
            let found = findings();
            assert_eq!(found.len(), index + 1, "{found:?}");
            let last = &found[index];
            assert!(last.starts_with("stale handle") && last.contains(what), "{last}");
        }
        // A number that was never a handle is not reported.
        assert_ne!(cu!(cuStreamSynchronize(0x77 as CUstream)), CUresult::CUDA_SUCCESS);
        assert_eq!(findings().len(), 7);
    });
}

/// The uses of one page at two addresses are compared with each other.
#[test]
fn unordered_use_by_two_addresses_of_a_page_is_reported() {
    let name = "unordered_use_by_two_addresses_of_a_page_is_reported";
    common::with_options(name, "strict:on", || {
        let _context = CudaContext::new(0).unwrap();
        let [one, two] = streams();
        let bytes = 4usize << 20;
        let (handle, open) = physical(0, bytes);
        let (first, second) = (map(handle, bytes), map(handle, bytes));
        open(first, 0);
        open(second, 0);
        // Uses of different bytes of the page, and ordered uses of the same bytes, are not reported.
        ok!(cuMemsetD8Async(first, 1, bytes / 2, one));
        ok!(cuMemsetD8Async(second + bytes as u64 / 2, 2, bytes / 2, two));
        ok!(cuStreamSynchronize(one));
        ok!(cuMemsetD8Async(second, 3, 512, two));
        assert_eq!(findings(), [""; 0]);
        ok!(cuMemsetD8Async(first + 256, 4, 512, one));
        let found = findings();
        assert_eq!(found.len(), 1, "{found:?}");
        let (here, there) = (format!("{:#x}", first + 256), format!("{:#x}", second + 256));
        assert!(
            found[0].contains("unordered") && found[0].contains(&here) && found[0].contains(&there),
            "{found:?}"
        );
    });
}

/// A kernel can access the memory of another device only if that memory was made accessible to the kernel's device.
#[test]
fn kernels_access_other_devices_only_after_access_was_granted() {
    let name = "kernels_access_other_devices_only_after_access_was_granted";
    // The number selects the kind of memory. Each case runs in its own process, because a refusal ends a context. Each kind is tested
    // without access first, and then with access.
    for (kind, open) in [
        (0, false),
        (0, true),
        (1, false),
        (1, true),
        (2, false),
        (2, true),
    ] {
        let options = format!("devices:2,seed:{kind}{}", if open { ",link:1" } else { "" });
        common::with_options(name, &options, || {
            let options = std::env::var("MILLPOND_CUDA_EMU").unwrap();
            let open = options.contains("link");
            let (here, there) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
            let bytes = 2usize << 20;
            there.bind_to_thread().unwrap();
            let mut at = 0;
            match options.as_bytes()["devices:2,seed:".len()] {
                b'0' => {
                    ok!(cuMemAlloc_v2(&mut at, bytes));
                    here.bind_to_thread().unwrap();
                    if open {
                        ok!(cuCtxEnablePeerAccess(there.cu_ctx(), 0));
                    }
                }
                b'1' => {
                    let (handle, give) = physical(1, bytes);
                    at = map(handle, bytes);
                    give(at, 1);
                    if open {
                        give(at, 0);
                    }
                }
                _ => {
                    let mut pool = null_mut();
                    ok!(cuDeviceGetDefaultMemPool(&mut pool, 1));
                    ok!(cuMemAllocAsync(&mut at, bytes, null_mut()));
                    ok!(cuStreamSynchronize(null_mut()));
                    if open {
                        // SAFETY: all zeros are a valid value of every field.
                        let mut access: cudarc::driver::sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
                        access.location.type_ =
                            cudarc::driver::sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
                        access.flags =
                            cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                        ok!(cuMemPoolSetAccess(pool, &access, 1));
                    }
                }
            }
            here.bind_to_thread().unwrap();
            let (mut module, mut function) = (null_mut(), null_mut());
            let text = c".version 8.0\n.target sm_80\n.visible .entry fill() { ret; }\n";
            ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
            ok!(cuModuleGetFunction(&mut function, module, c"fill".as_ptr()));
            let (mut value, mut count) = (2.5f32, 64u64);
            let mut params: [*mut std::ffi::c_void; 3] = [
                (&raw mut at).cast(),
                (&raw mut value).cast(),
                (&raw mut count).cast(),
            ];
            ok!(cuLaunchKernel(
                function,
                1,
                1,
                1,
                64,
                1,
                1,
                0,
                null_mut(),
                params.as_mut_ptr(),
                null_mut()
            ));
            let expected = match open {
                true => CUresult::CUDA_SUCCESS,
                false => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            };
            assert_eq!(cu!(cuStreamSynchronize(null_mut())), expected, "{options}");
        });
    }
}

/// The requirements on sizes match the documentation.
#[test]
fn requirements_on_sizes_match_the_documentation() {
    common::load();
    let _context = CudaContext::new(0).unwrap();
    let mut pinned = std::ptr::dangling_mut::<std::ffi::c_void>();
    ok!(cuMemHostAlloc(&mut pinned, 0, 0));
    assert!(pinned.is_null());
    ok!(cuMemFreeHost(pinned));
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, 3 * 4096, 0, 0, 0));
    assert_eq!(
        cu!(cuMemAddressFree(at, 2 << 20)),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "the size must be the one that was reserved"
    );
    ok!(cuMemAddressFree(at, 3 * 4096));
    assert_eq!(
        cu!(cuMemAddressReserve(&mut at, 1000, 0, 0, 0)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(cu!(cuMemAlloc_v2(&mut at, 0)), CUresult::CUDA_ERROR_INVALID_VALUE);
}
