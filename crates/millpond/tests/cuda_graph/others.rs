//! Captures of other libraries, which pools do not know of. They are not invalidated, and only delay a pool.

use crate::emulator::in_children;
use crate::{LEN, alone, device, emulator, numbers, whole};
use millpond::AllocError;
use millpond::Unpooled;
use millpond::cuda::{
    Advice, CudaDevice, CudaError, CudaManaged, CudaMemory, CudaModule, CudaSource, CudaStream, CudaTimer,
    DevicePool, DriverPool, UnpooledDevice,
};
use millpond::engine::{Source, SourceError};
use std::time::{Duration, Instant};

/// Returns options for each kind of memory and each mode of a capture.
fn ways() -> impl Iterator<Item = String> {
    let ways = ["", ",without:vmm", ",without:vmm,without:pools"];
    let seeds = ways
        .into_iter()
        .flat_map(|way| (0..3).map(move |seed| (way, seed)));
    seeds.map(|(way, seed)| format!("strict:on,streams:seeded,seed:{seed}{way}"))
}

const MODES: [u32; 3] = [0, 1, 2];

fn no_findings() {
    assert_eq!(emulator::findings(), (0, String::new()));
}

fn is_held(error: &AllocError) -> bool {
    matches!(error, AllocError::Source(error) if matches!(**error, SourceError::Held { .. }))
}

/// Memory that the captured stream has used is kept. Other streams are served, from new memory if necessary.
#[test]
fn a_pool_keeps_what_the_captured_stream_used() {
    alone(
        "others::a_pool_keeps_what_the_captured_stream_used",
        ways(),
        || {
            let (device, stream, pool) = device();
            let other = CudaStream::new(&device).expect("a stream");
            for mode in MODES {
                drop(pool.alloc_from(&numbers(1), &stream).expect("memory"));
                let mut shared = pool.alloc_from(&numbers(2), &other).expect("memory");
                shared.record_use(&stream).expect("of the device");
                let reserved = pool.stats().reserved.current;
                emulator::begin_capture_in(mode, stream.as_raw());
                assert!(pool.capture(&stream).is_err(), "it is captured already");
                drop(shared);
                let begun = Instant::now();
                assert_eq!(pool.compact().returned(), 0);
                pool.trim();
                pool.collect_garbage();
                let stats = pool.stats();
                assert_eq!(stats.reserved.current, reserved);
                assert!(stats.waiting >= 4 * LEN as u64, "{} wait", stats.waiting);
                // This allocation gets neither waiting blocks nor free blocks of the captured stream.
                let next = pool.alloc_from(&numbers(3), &other).expect("other memory");
                assert_eq!(next.to_vec().expect("a copy"), numbers(3));
                let much = pool.alloc::<u8>(64 << 20, &other).expect("more than there was");
                drop((next, much));
                assert!(begun.elapsed() < Duration::from_secs(5), "nothing is waited for");
                assert_eq!(pool.lost(), None);
                assert!(
                    emulator::end_capture(stream.as_raw()),
                    "mode {mode}: it is spoilt"
                );
                pool.collect_garbage();
                // This call marks the block, and a later call finds the mark reached.
                stream.synchronize().expect("it ends");
                pool.collect_garbage();
                assert_eq!(pool.stats().waiting, 0);
                pool.compact();
                assert_eq!(pool.stats().reserved.current, 0);
                whole(&pool);
            }
            no_findings();
        },
    );
}

/// Memory that waits for a capture cannot be freed for a request. The request is refused, or waits if it has a timeout.
#[test]
fn requests_for_captured_memory_are_refused() {
    alone("others::requests_for_captured_memory_are_refused", ways(), || {
        let (device, stream, _) = device();
        let other = CudaStream::new(&device).expect("a stream");
        let pool = DevicePool::builder().settings("limit:32MiB").build(&device);
        let pool = pool.expect("a pool");
        for mode in MODES {
            let free = pool.alloc::<u8>(20 << 20, &stream).expect("fits");
            emulator::set_bytes(free.address(), 1, 20 << 20, stream.as_raw());
            drop(free);
            emulator::begin_capture_in(mode, stream.as_raw());
            let begun = Instant::now();
            let error = pool.alloc::<u8>(20 << 20, &other).expect_err("there is no room");
            assert!(is_held(&error) && error.is_out_of_memory(), "{error}");
            assert!(error.to_string().contains("captured"), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(5));
            let small = pool.alloc::<u8>(4 << 20, &other).expect("what there is serves");
            drop(small);
            let patient = pool.waiting(Duration::from_secs(60));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| patient.alloc::<u8>(20 << 20, &other).map(drop));
                std::thread::sleep(Duration::from_millis(20));
                assert!(
                    emulator::end_capture(stream.as_raw()),
                    "mode {mode}: it is spoilt"
                );
                waiting.join().expect("it ends").expect("the capture has ended");
            });
            assert_eq!(pool.lost(), None);
            // Otherwise the stream may be the last user of all 32 MiB, and then its next capture holds all of them.
            pool.collect_garbage();
            for stream in [&stream, &other] {
                stream.synchronize().expect("it ends");
            }
            pool.collect_garbage();
            pool.compact();
            assert_eq!(pool.stats().reserved.current, 0);
        }
        drop(pool);
        no_findings();
    });
}

/// A policy that requires one stream to wait for another allocates nothing until that is possible.
#[test]
fn a_block_is_refused_if_its_stream_cannot_wait() {
    alone(
        "others::a_block_is_refused_if_its_stream_cannot_wait",
        ways(),
        || {
            let (device, stream, _) = device();
            let other = CudaStream::new(&device).expect("a stream");
            for policy in ["cuda-async", "rmm-pool"] {
                let builder = DevicePool::builder().settings("").policy(policy);
                let pool = builder.build(&device).expect("a pool");
                if policy == "cuda-async" && pool.memory() != CudaMemory::Virtual {
                    continue;
                }
                let free = pool.alloc::<u8>(20 << 20, &stream).expect("memory");
                emulator::set_bytes(free.address(), 1, 20 << 20, stream.as_raw());
                emulator::begin_capture_in(0, stream.as_raw());
                drop(free);
                for _ in 0..2 {
                    let error = pool.alloc::<u8>(20 << 20, &other);
                    let error = error.expect_err("nobody has waited");
                    assert!(is_held(&error) && error.is_out_of_memory(), "{error}");
                    assert!(error.to_string().contains("captured"), "{error}");
                }
                assert_eq!(pool.lost(), None);
                assert!(emulator::end_capture(stream.as_raw()), "it is spoilt");
                let next = pool.alloc::<u8>(20 << 20, &other).expect("the capture has ended");
                emulator::set_bytes(next.address(), 2, 20 << 20, other.as_raw());
            }
            no_findings();
        },
    );
}

/// A pool, and a device without a pool, that end during a capture free their memory afterwards.
#[test]
fn a_pool_that_ends_during_a_capture_frees_its_memory_afterwards() {
    alone(
        "others::a_pool_that_ends_during_a_capture_frees_its_memory_afterwards",
        ways(),
        || {
            let (device, stream, pool) = device();
            let free = || device.memory().expect("it says so").free;
            let direct = UnpooledDevice::new(&device).expect("a device");
            let before = free();
            for mode in MODES {
                let buffer = pool.alloc_from(&numbers(1), &stream).expect("memory");
                let unpooled = direct.alloc::<u32>(LEN, &stream);
                let held = free();
                emulator::begin_capture_in(mode, stream.as_raw());
                let made = DevicePool::new(&device).expect("a pool");
                let ending = made.alloc::<u8>(4 << 20, &stream).expect("memory");
                let elsewhere = pool.used_elsewhere();
                drop((buffer, unpooled, ending, made));
                assert!(free() < held && before > held, "it is still there");
                assert_eq!(pool.used_elsewhere(), elsewhere, "and ours");
                assert!(
                    emulator::end_capture(stream.as_raw()),
                    "mode {mode}: it is spoilt"
                );
                pool.compact();
                drop(direct.alloc::<u32>(LEN, &stream));
                assert_eq!(free(), before);
            }
            no_findings();
        },
    );
}

const NOTHING: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

fn launch(device: &CudaDevice, stream: &CudaStream) {
    let kernel = CudaModule::load(device, NOTHING).and_then(|module| module.kernel("nothing"));
    let kernel = kernel.expect("it loads");
    // SAFETY: the kernel takes no parameters and does nothing.
    unsafe { kernel.launch(stream).launch() }.expect("it goes");
}

/// Mappings that were freed during the capture are removed before other pages move to their addresses.
#[test]
fn pages_move_to_addresses_whose_unmapping_was_delayed() {
    in_children(
        "others::pages_move_to_addresses_whose_unmapping_was_delayed",
        std::iter::once("strict:on".to_owned()),
        || {
            let (device, stream, _) = device();
            let mut source = CudaSource::new(&device, CudaMemory::Virtual).expect("a source");
            source.stream_number(&stream).expect("of the device");
            let page = source.page_bytes();
            let range = source.reserve(2 * page).expect("addresses");
            source.commit(&range, 0, 2 * page, page).expect("memory");
            emulator::begin_capture(stream.as_raw());
            assert_eq!(source.decommit(&range, 0, page), 1);
            assert_eq!(source.used_bytes(), 2 * page, "nobody can wait");
            assert!(emulator::end_capture(stream.as_raw()), "it is spoilt");
            let moved = source.move_pages((&range, page), (&range, 0), page);
            assert_eq!((moved.expect("there is room"), source.used_bytes()), (1, page));
            source.decommit(&range, 0, page);
            source.release(range);
            assert_eq!(source.used_bytes(), 0);
            no_findings();
        },
    );
}

/// Unused code is unloaded when the captures have ended, those of this library and others.
#[test]
fn a_module_is_unloaded_after_the_capture() {
    alone("others::a_module_is_unloaded_after_the_capture", ways(), || {
        let (device, stream, pool) = device();
        emulator::register(c"nothing", 1000);
        let other = CudaStream::new(&device).expect("a stream");
        let unloaded = || emulator::calls(Some(c"cuModuleUnload"));
        for mode in MODES {
            let before = unloaded();
            let kernel = CudaModule::load(&device, NOTHING).and_then(|module| module.kernel("nothing"));
            let kernel = kernel.expect("it loads");
            // SAFETY: the kernel takes no parameters and does nothing.
            unsafe { kernel.launch(&stream).launch() }.expect("it goes");
            emulator::begin_capture_in(mode, stream.as_raw());
            drop(kernel);
            assert_eq!(unloaded(), before, "nobody can wait for it");
            // Launches on other streams are not part of the capture.
            launch(&device, &other);
            assert_eq!(unloaded(), before + 1);
            assert!(
                emulator::end_capture(stream.as_raw()),
                "mode {mode}: it is spoilt"
            );
            launch(&device, &other);
            assert_eq!(unloaded(), before + 3);
        }
        let before = unloaded();
        let capture = pool.capture(&stream).expect("it begins");
        launch(&device, &other);
        assert_eq!(unloaded(), before, "the graph may have it");
        drop(capture);
        assert_eq!(unloaded(), before + 1);
        no_findings();
    });
}

/// A mark that a capture would record but never reach is refused, and invalidates nothing.
#[test]
fn marks_are_not_recorded_in_captures() {
    alone("others::marks_are_not_recorded_in_captures", ways(), || {
        let (device, stream, pool) = device();
        let other = CudaStream::new(&device).expect("a stream");
        let fill = || {
            let from = pool.alloc_from(&numbers(1), &other).expect("memory");
            (from, pool.alloc::<u32>(LEN, &other).expect("memory"))
        };
        for mode in MODES {
            let (from, to) = fill();
            emulator::begin_capture_in(mode, stream.as_raw());
            let error = stream.copy(from, to).expect_err("it is captured");
            assert_eq!(error.error(), CudaError::Captured);
            let (from, to) = error.into_ends().expect("nothing has begun");
            assert!(matches!(CudaTimer::start(&stream), Err(CudaError::Captured)));
            // Work outside the capture continues, and its events can be queried.
            let copying = other.copy(from, to).expect("it goes");
            while !copying.is_complete() {
                std::thread::yield_now();
            }
            let (_, to) = copying.wait().expect("it ends");
            assert_eq!(to.to_vec().expect("a copy"), numbers(1));
            assert!(
                emulator::end_capture(stream.as_raw()),
                "mode {mode}: it is spoilt"
            );
        }
        no_findings();
    });
}

/// Returns the number of waits for the whole context. Such a wait breaks all captures.
fn context_waits() -> u64 {
    emulator::calls(Some(c"cuCtxSynchronize"))
}

/// A call outside a capture does not break captures, whichever thread makes the call.
#[test]
fn calls_outside_a_capture_do_not_break_it() {
    let options = ["strict:on".to_owned()];
    alone("others::calls_outside_a_capture_do_not_break_it", options, || {
        let (device, stream, pool) = device();
        let other = CudaStream::new(&device).expect("a stream");
        if !device.has_pools() {
            eprintln!("skipped: this driver has no pools");
            return;
        }
        let driver_pool = DriverPool::builder()
            .keep(1 << 20)
            .build(&device)
            .expect("a pool");
        let managed = Unpooled::over(Box::new(CudaManaged::new(&device).expect("managed memory")));
        let table = managed.alloc_zeroed::<u8>(1 << 20).expect("memory");
        type Call<'a> = (
            &'static str,
            Box<dyn Fn() -> Result<(), CudaError> + Send + Sync + 'a>,
        );
        let calls: [Call<'_>; 11] = [
            ("stats", Box::new(|| driver_pool.stats().map(drop))),
            ("reset_peak", Box::new(|| driver_pool.reset_peak())),
            ("trim", Box::new(|| driver_pool.trim(0))),
            ("install", Box::new(|| driver_pool.install().map(drop))),
            (
                "a pool of the driver's",
                Box::new(|| DriverPool::builder().keep(1 << 20).build(&device).map(drop)),
            ),
            ("memory", Box::new(|| device.memory().map(drop))),
            ("a stream", Box::new(|| CudaStream::new(&device).map(drop))),
            ("synchronize", Box::new(|| other.synchronize())),
            (
                "wait_for",
                Box::new(|| CudaStream::new(&device).and_then(|third| third.wait_for(&other))),
            ),
            ("advise", Box::new(|| device.advise(&table, Advice::ReadMostly))),
            (
                "a pool",
                Box::new(|| {
                    let pool = DevicePool::new(&device).expect("a pool");
                    drop(pool.alloc::<u32>(LEN, &other));
                    pool.compact();
                    Ok(())
                }),
            ),
        ];
        for mode in MODES {
            for (name, call) in &calls {
                for elsewhere in [false, true] {
                    emulator::begin_capture_in(mode, stream.as_raw());
                    let outcome = match elsewhere {
                        true => std::thread::scope(|scope| scope.spawn(call).join().expect("it ends")),
                        false => call(),
                    };
                    let lives = emulator::end_capture(stream.as_raw());
                    assert_eq!(outcome, Ok(()), "{name}, mode {mode}, elsewhere: {elsewhere}");
                    assert!(
                        lives,
                        "{name}, mode {mode}, elsewhere: {elsewhere}: the capture is broken"
                    );
                }
            }
        }
        drop(pool);
        assert_eq!(context_waits(), 0);
        no_findings();
    });
}

/// The first call ends a capture, even if it returns an error. A second call could end the next capture.
#[test]
fn a_capture_is_ended_once() {
    let options = ["strict:on,fail:cuStreamEndCapture@1=999".to_owned()];
    in_children("others::a_capture_is_ended_once", options.into_iter(), || {
        let (_, stream, pool) = device();
        let ended = || emulator::calls(Some(c"cuStreamEndCapture"));
        let capture = pool.capture(&stream).expect("it begins");
        assert!(capture.end().is_err(), "the driver was told to fail");
        assert_eq!(ended(), 1);
        assert!(!stream.is_capturing().expect("it says so"));
        let held = pool.alloc_from(&numbers(1), &stream).expect("it still serves");
        assert_eq!(held.to_vec().expect("a copy"), numbers(1));
        let capture = pool.capture(&stream).expect("it begins");
        capture.end().expect("nothing fails");
        assert_eq!(ended(), 2);
        no_findings();
    });
}

/// A wait for the whole device would break the library's own capture. It is refused, and the capture continues.
#[test]
fn a_wait_for_the_device_is_refused_during_the_librarys_own_capture() {
    let options = ["strict:on".to_owned()];
    alone(
        "others::a_wait_for_the_device_is_refused_during_the_librarys_own_capture",
        options,
        || {
            let (device, stream, pool) = device();
            let capture = pool.capture(&stream).expect("it begins");
            assert_eq!(device.synchronize(), Err(CudaError::Captured));
            capture.end().expect("the capture is intact");
            assert_eq!(device.synchronize(), Ok(()));
            no_findings();
        },
    );
}
