//! Tests when work runs: in order where CUDA orders it, and as late and as interleaved as CUDA allows otherwise.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::sys::{CUevent, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaStream};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

const BYTES: usize = 64 << 10;

fn setup() -> (Arc<CudaContext>, Arc<CudaStream>, Arc<CudaStream>) {
    let context = CudaContext::new(0).unwrap();
    let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    (context, one, two)
}

fn event() -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, 0));
    event
}

fn block() -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, BYTES));
    ok!(cuMemsetD8_v2(at, 0, BYTES));
    ok!(cuCtxSynchronize());
    at
}

fn byte(at: u64, stream: CUstream) -> u8 {
    let mut byte = 0u8;
    ok!(cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), at, 1, stream));
    byte
}

/// One stream writes and another one reads. Returns whether the reader sees the written data.
fn handed_over(wait: bool) -> bool {
    let (_context, one, two) = setup();
    let (at, copy, event) = (block(), block(), event());
    for value in 1..=7 {
        ok!(cuMemsetD8Async(at, value, BYTES, one.cu_stream()));
    }
    ok!(cuEventRecord(event, one.cu_stream()));
    if wait {
        ok!(cuStreamWaitEvent(two.cu_stream(), event, 0));
    }
    ok!(cuMemcpyDtoDAsync_v2(copy, at, BYTES, two.cu_stream()));
    byte(copy, two.cu_stream()) == 7
}

#[test]
fn a_wait_for_an_event_holds_with_every_seed() {
    for seed in 0..25 {
        let options = format!("streams:seeded,seed:{seed}");
        common::with_options("a_wait_for_an_event_holds_with_every_seed", &options, || {
            assert!(handed_over(true));
        });
    }
}

/// Work may still be queued if no call has waited for it, so some seed reveals a missing wait.
#[test]
fn some_seed_reveals_a_missing_wait() {
    let name = "some_seed_reveals_a_missing_wait";
    let seeds = (0..25).map(|seed| {
        let options = format!("streams:seeded,seed:{seed}");
        common::run(name, &options, || assert!(handed_over(false), "not handed over"))
    });
    let found: Vec<bool> = seeds
        .map(|(fine, text)| !fine && text.contains("not handed over"))
        .collect();
    let caught = found.iter().filter(|found| **found).count();
    assert!(caught >= 10, "{caught} of {}", found.len());
}

#[test]
fn a_seed_gives_one_order() {
    let name = "a_seed_gives_one_order";
    let order = |seed| {
        let (_, text) = common::run(name, &format!("streams:seeded,seed:{seed}"), || {
            let context = CudaContext::new(0).unwrap();
            let streams: Vec<_> = (0..4).map(|_| context.new_stream().unwrap()).collect();
            extern "C" fn say(number: *mut c_void) {
                println!("\nran {}", number.addr());
            }
            for number in 0..24 {
                let stream = streams[number % 4].cu_stream();
                ok!(cuLaunchHostFunc(
                    stream,
                    Some(say),
                    std::ptr::without_provenance_mut(number)
                ));
            }
            ok!(cuCtxSynchronize());
        });
        text.lines()
            .filter(|line| line.starts_with("ran "))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (first, again, other) = (order(3), order(3), order(4));
    assert_eq!(first.len(), 24);
    assert_eq!(first, again);
    assert_ne!(first, other);
}

/// A function of the client that waits for the test, so that later work of the stream cannot have run.
extern "C" fn hold(gate: *mut c_void) {
    // SAFETY: the test keeps the barrier until the stream is synchronised.
    let gate = unsafe { &*gate.cast::<std::sync::Barrier>() };
    gate.wait();
}

#[test]
fn threads_run_later_and_blocking_streams_follow_the_legacy_stream() {
    let name = "threads_run_later_and_blocking_streams_follow_the_legacy_stream";
    common::with_options(name, "streams:threads", || {
        let _context = CudaContext::new(0).unwrap();
        let mut streams = [null_mut(); 2];
        ok!(cuStreamCreate(&mut streams[0], 0));
        ok!(cuStreamCreate(&mut streams[1], 1));
        let [blocking, free] = streams;
        let (at, gate, event) = (block(), std::sync::Barrier::new(2), event());
        ok!(cuLaunchHostFunc(
            null_mut(),
            Some(hold),
            (&raw const gate).cast_mut().cast()
        ));
        ok!(cuMemsetD8Async(at, 9, BYTES, blocking));
        ok!(cuEventRecord(event, blocking));
        assert_eq!(cu!(cuEventQuery(event)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(
            byte(at, free),
            0,
            "a stream that does not block passes the legacy one"
        );
        assert_eq!(cu!(cuStreamQuery(free)), CUresult::CUDA_SUCCESS);
        gate.wait();
        ok!(cuEventSynchronize(event));
        assert_eq!(byte(at, free), 9);
        assert_eq!(cu!(cuStreamQuery(null_mut())), CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn a_per_thread_default_stream_does_not_wait_for_those_of_other_threads() {
    let name = "a_per_thread_default_stream_does_not_wait_for_those_of_other_threads";
    common::with_options(name, "streams:threads", || {
        let context = CudaContext::new(0).unwrap();
        let (at, gate) = (block(), std::sync::Barrier::new(2));
        // CU_STREAM_PER_THREAD.
        let own: CUstream = std::ptr::without_provenance_mut(2);
        ok!(cuLaunchHostFunc(
            own,
            Some(hold),
            (&raw const gate).cast_mut().cast()
        ));
        ok!(cuMemsetD8Async(at, 5, BYTES, own));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                context.bind_to_thread().unwrap();
                let other: CUstream = std::ptr::without_provenance_mut(2);
                assert_eq!(byte(at, other), 0);
                gate.wait();
            });
        });
        ok!(cuStreamSynchronize(own));
        assert_eq!(byte(at, own), 5);
    });
}

#[test]
fn pageable_memory_is_read_at_the_call_and_pinned_memory_later() {
    let name = "pageable_memory_is_read_at_the_call_and_pinned_memory_later";
    common::with_options(name, "streams:seeded", || {
        let (_context, one, _) = setup();
        let (at, mut pageable) = (block(), vec![1u8; BYTES]);
        ok!(cuMemcpyHtoDAsync_v2(
            at,
            pageable.as_ptr().cast(),
            BYTES,
            one.cu_stream()
        ));
        pageable.fill(2);
        assert_eq!(byte(at, one.cu_stream()), 1);
        let mut pinned = null_mut();
        ok!(cuMemHostAlloc(&mut pinned, BYTES, 0));
        // SAFETY: the memory was just allocated with this length.
        unsafe { pinned.cast::<u8>().write_bytes(3, BYTES) };
        ok!(cuMemcpyHtoDAsync_v2(at, pinned, BYTES, one.cu_stream()));
        // SAFETY: as above. The test checks that the copy has not run yet.
        unsafe { pinned.cast::<u8>().write_bytes(4, BYTES) };
        assert_eq!(byte(at, one.cu_stream()), 4);
    });
}

#[test]
fn the_modelled_time_accounts_for_engines_and_overlap() {
    let name = "the_modelled_time_accounts_for_engines_and_overlap";
    common::with_options(name, "link:1,latency:0,call-cost:0", || {
        let (_context, one, two) = setup();
        let (a, b) = (block(), block());
        let mut pinned = null_mut();
        ok!(cuMemHostAlloc(&mut pinned, BYTES, 0));
        // Both directions run at once.
        let [start, up, down, last] = [(); 4].map(|()| event());
        ok!(cuEventRecord(start, one.cu_stream()));
        ok!(cuMemcpyHtoDAsync_v2(a, pinned, BYTES, one.cu_stream()));
        ok!(cuMemcpyDtoHAsync_v2(pinned, b, BYTES, two.cu_stream()));
        ok!(cuEventRecord(up, one.cu_stream()));
        ok!(cuEventRecord(down, two.cu_stream()));
        // Two copies in the same direction run one after the other.
        ok!(cuMemcpyHtoDAsync_v2(b, pinned, BYTES, two.cu_stream()));
        ok!(cuMemcpyHtoDAsync_v2(a, pinned, BYTES, one.cu_stream()));
        ok!(cuEventRecord(last, one.cu_stream()));
        ok!(cuCtxSynchronize());
        let elapsed = |end| {
            let mut time = 0.0;
            ok!(cuEventElapsedTime(&mut time, start, end));
            time
        };
        // 65,536 bytes at 1 GB/s.
        let once = 0.065_536;
        for (end, times) in [(up, 1.0), (down, 1.0), (last, 3.0)] {
            assert!(
                (elapsed(end) - once * times).abs() < 1e-6,
                "{} for {times}",
                elapsed(end)
            );
        }
    });
}

#[test]
fn pageable_copies_take_longer_and_work_can_take_real_time() {
    let name = "pageable_copies_take_longer_and_work_can_take_real_time";
    // 64 KiB at 0.01 GB/s take 6.5 ms, and twice as long if the memory is not pinned.
    common::with_options(name, "link:0.01,latency:0,pace:on", || {
        let (_context, one, _) = setup();
        let (at, pageable, mut pinned) = (block(), vec![0u8; BYTES], null_mut());
        ok!(cuMemHostAlloc(&mut pinned, BYTES, 0));
        for (from, times) in [(pinned.cast_const(), 1.0), (pageable.as_ptr().cast(), 2.0)] {
            let (start, end) = (event(), event());
            let began = std::time::Instant::now();
            ok!(cuEventRecord(start, one.cu_stream()));
            ok!(cuMemcpyHtoDAsync_v2(at, from, BYTES, one.cu_stream()));
            ok!(cuEventRecord(end, one.cu_stream()));
            ok!(cuStreamSynchronize(one.cu_stream()));
            let real = began.elapsed().as_secs_f32() * 1e3;
            let mut modelled = 0.0;
            ok!(cuEventElapsedTime(&mut modelled, start, end));
            assert!((modelled - 6.5536 * times).abs() < 0.01, "{modelled}");
            assert!(real >= 6.5 * times, "{real}");
        }
    });
}

#[test]
fn callbacks_may_not_call_cuda() {
    extern "C" fn ask(answer: *mut c_void) {
        let code = cu!(cuCtxSynchronize());
        // SAFETY: the variable belongs to the test and outlives the wait.
        unsafe { answer.cast::<u32>().write(code as u32) };
    }
    common::load();
    let (_context, one, _) = setup();
    let mut answer = 0u32;
    ok!(cuLaunchHostFunc(
        one.cu_stream(),
        Some(ask),
        (&raw mut answer).cast()
    ));
    ok!(cuStreamSynchronize(one.cu_stream()));
    assert_eq!(answer, CUresult::CUDA_ERROR_NOT_PERMITTED as u32);
}

/// The client may sleep until the function is called.
#[test]
fn seeded_functions_of_the_client_run_without_another_call() {
    let name = "seeded_functions_of_the_client_run_without_another_call";
    for seed in 0..5 {
        common::with_options(name, &format!("streams:seeded,strict:on,seed:{seed}"), || {
            let (_context, one, two) = setup();
            let (at, event, gate) = (block(), event(), std::sync::Barrier::new(2));
            ok!(cuMemsetD8Async(at, 3, BYTES, one.cu_stream()));
            ok!(cuEventRecord(event, one.cu_stream()));
            ok!(cuStreamWaitEvent(two.cu_stream(), event, 0));
            ok!(cuLaunchHostFunc(
                two.cu_stream(),
                Some(hold),
                (&raw const gate).cast_mut().cast()
            ));
            gate.wait();
            assert_eq!(cu!(cuEventQuery(event)), CUresult::CUDA_SUCCESS);
            assert_eq!(byte(at, one.cu_stream()), 3);
        });
    }
}
