//! Events between processes: order, records by either process, and waits whose process dies.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;
#[path = "common/ipc.rs"]
mod ipc;
#[path = "common/peer.rs"]
mod peer;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_EXTERNAL_DEVICE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED, CUDA_ERROR_NOT_READY, CUDA_SUCCESS,
};
use cudarc::driver::sys::{CUevent, CUipcEventHandle};
use ipc::{
    BETWEEN_PROCESSES, allocate, event, export, export_event, findings, open, open_event, pattern, read,
    stream, write,
};
use peer::{Wire, two};
use std::ffi::c_void;
use std::ptr::null_mut;

/// An event accepts more records than it has slots, even if no process waits for them.
#[test]
fn an_event_is_recorded_any_number_of_times() {
    let name = "an_event_is_recorded_any_number_of_times";
    for streams in ["in-place", "threads", "seeded"] {
        common::with_options(name, &format!("streams:{streams}"), || {
            peer::watch();
            let _context = CudaContext::new(0).unwrap();
            let (event, stream) = (event(BETWEEN_PROCESSES), stream());
            for _ in 0..2000 {
                ok!(cuEventRecord(event, stream));
            }
            ok!(cuEventSynchronize(event));
            ok!(cuStreamQuery(stream));
        });
    }
}

#[test]
fn only_events_created_for_other_processes_can_be_exported() {
    let name = "only_events_created_for_other_processes_can_be_exported";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let mut none = null_mut();
        assert_eq!(cu!(cuEventCreate(&mut none, 4)), CUDA_ERROR_INVALID_VALUE);
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        assert_eq!(
            cu!(cuIpcGetEventHandle(&mut handle, event(2))),
            CUDA_ERROR_INVALID_HANDLE
        );
        let (kept, gone) = (event(BETWEEN_PROCESSES), event(BETWEEN_PROCESSES));
        assert_eq!(open_event(export_event(kept)), Err(CUDA_ERROR_INVALID_CONTEXT));
        peer.wire.send(&export_event(gone));
        ok!(cuEventDestroy_v2(gone));
        peer.wire.send(&export_event(kept));
        peer.wire.meet();
        ok!(cuEventRecord(kept, null_mut()));
        peer.wire.meet();
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        assert_eq!(open_event([0; 64]), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(open_event(wire.receive()), Err(CUDA_ERROR_INVALID_HANDLE));
        let handle = wire.receive();
        let mut wrong: [u8; 64] = handle;
        wrong[20] ^= 1;
        assert_eq!(open_event(wrong), Err(CUDA_ERROR_INVALID_HANDLE));
        let opened = open_event(handle).unwrap();
        let mut again = CUipcEventHandle { reserved: [0; 64] };
        assert_eq!(
            cu!(cuIpcGetEventHandle(&mut again, opened)),
            CUDA_ERROR_INVALID_HANDLE
        );
        ok!(cuEventQuery(opened));
        wire.meet();
        ok!(cuEventSynchronize(opened));
        let mut time = 0.0;
        assert_eq!(
            cu!(cuEventElapsedTime(&mut time, opened, opened)),
            CUDA_ERROR_INVALID_HANDLE
        );
        ok!(cuEventDestroy_v2(opened));
        wire.meet();
    };
    two(name, "", one, other);
}

const ROUNDS: u8 = 6;
const LEN: usize = 64 << 10;

/// Both processes write one block in turn, in work that is queued before the other's work has run. Each checks the data it
/// finds. Messages only say that work is queued, so events provide all order. Returns whether this process found the data of
/// the other.
fn in_turn(wire: &mut Wire, first: bool, at: u64, mine: CUevent, theirs: CUevent, wait: bool) -> bool {
    let (work, look) = (stream(), stream());
    let copy = allocate(LEN);
    let mut right = true;
    for round in 0..ROUNDS {
        if (round % 2 == 0) == first {
            if round > 0 {
                let _: [u8; 1] = wire.receive();
                if wait {
                    ok!(cuStreamWaitEvent(work, theirs, 0));
                }
                ok!(cuMemcpyDtoDAsync_v2(copy, at, LEN, work));
                let between = event(2);
                ok!(cuEventRecord(between, work));
                ok!(cuStreamWaitEvent(look, between, 0));
            }
            for value in [99, round] {
                ok!(cuMemsetD8Async(at, value, LEN, work));
            }
            ok!(cuEventRecord(mine, work));
            wire.send(b"q");
            if round > 0 {
                let mut byte = 0u8;
                ok!(cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), copy + 77, 1, look));
                ok!(cuStreamSynchronize(look));
                right &= byte == round - 1;
            }
        }
    }
    // The second process finishes last. This requires that the first one's own work completes without a wait.
    if first {
        let _: [u8; 1] = wire.receive();
        if wait {
            ok!(cuEventSynchronize(theirs));
        }
        right &= read(at, LEN) == [ROUNDS - 1; LEN];
    }
    right
}

/// Runs this test in two processes. Passes to `expect` whether both found the right data, and the findings of strict mode.
fn turns(name: &str, options: &str, wait: bool, expect: impl Fn(bool, &str)) {
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let at = allocate(LEN);
        let mine = event(BETWEEN_PROCESSES);
        peer.wire.send(&export(at));
        peer.wire.send(&export_event(mine));
        let theirs = open_event(peer.wire.receive()).unwrap();
        let here = in_turn(&mut peer.wire, true, at, mine, theirs, wait);
        let [there] = peer.wire.receive();
        expect(here && there == 1, &findings());
        peer.wire.meet();
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let at = open(wire.receive()).unwrap();
        let theirs = open_event(wire.receive()).unwrap();
        let mine = event(BETWEEN_PROCESSES);
        wire.send(&export_event(mine));
        let right = in_turn(wire, false, at, mine, theirs, wait);
        let found = findings();
        assert!(!wait || found.is_empty(), "{found}");
        wire.send(&[u8::from(right)]);
        wire.meet();
    };
    two(name, options, one, other);
}

#[test]
fn events_order_two_processes_with_every_seed() {
    let name = "events_order_two_processes_with_every_seed";
    let ordered = |right: bool, found: &str| {
        assert!(right, "{found}");
        assert_eq!(found, "", "what is ordered is not reported");
    };
    for seed in 0..20 {
        turns(
            name,
            &format!("streams:seeded,seed:{seed},strict:on"),
            true,
            ordered,
        );
    }
    for streams in ["threads", "in-place"] {
        turns(name, &format!("streams:{streams},strict:on"), true, ordered);
    }
}

/// The same test fails without waits, so the order comes from the events.
#[test]
fn without_the_events_nothing_orders_two_processes() {
    let name = "without_the_events_nothing_orders_two_processes";
    let unordered = |right: bool, _: &str| assert!(!right);
    turns(name, "streams:seeded,seed:3", false, unordered);
}

/// An event that both processes record stands for the latest record of either.
#[test]
fn two_processes_can_record_one_event() {
    let name = "two_processes_can_record_one_event";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let (at, event) = (allocate(LEN), event(BETWEEN_PROCESSES));
        peer.wire.send(&export(at));
        peer.wire.send(&export_event(event));
        let stream = stream();
        ok!(cuMemsetD8Async(at, 1, LEN, stream));
        ok!(cuEventRecord(event, stream));
        peer.wire.meet();
        peer.wire.meet();
        let mut answer = cu!(cuEventQuery(event));
        while answer == CUDA_ERROR_NOT_READY {
            answer = cu!(cuEventQuery(event));
        }
        assert_eq!((answer, read(at, LEN)), (CUDA_SUCCESS, vec![2; LEN]));
        ok!(cuMemsetD8Async(at, 3, LEN, stream));
        ok!(cuEventRecord(event, stream));
        ok!(cuEventSynchronize(event));
        assert_eq!(read(at, LEN), [3; LEN]);
        peer.wire.meet();
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let at = open(wire.receive()).unwrap();
        let event = open_event(wire.receive()).unwrap();
        let stream = stream();
        wire.meet();
        ok!(cuStreamWaitEvent(stream, event, 0));
        ok!(cuMemsetD8Async(at, 2, LEN, stream));
        ok!(cuEventRecord(event, stream));
        wire.meet();
        wire.meet();
    };
    for options in [
        "streams:seeded,seed:1,strict:on",
        "streams:threads",
        "streams:in-place",
    ] {
        two(name, options, one, other);
    }
}

unsafe extern "C" fn sleep_on(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// A process is killed while another one waits for it and uses its memory.
#[test]
fn memory_outlives_a_killed_process_and_waits_for_it_fail() {
    let name = "memory_outlives_a_killed_process_and_waits_for_it_fail";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let handle = peer.wire.receive();
        let late: [u8; 64] = peer.wire.receive();
        let event_handle = peer.wire.receive();
        let at = open(handle).unwrap();
        let event = open_event(event_handle).unwrap();
        assert_eq!(cu!(cuEventQuery(event)), CUDA_ERROR_NOT_READY);
        peer.kill();
        // A failed wait of the host does not affect the context. A failed wait of a stream does.
        assert_eq!(cu!(cuEventSynchronize(event)), CUDA_ERROR_EXTERNAL_DEVICE);
        let waiting = stream();
        ok!(cuStreamWaitEvent(waiting, event, 0));
        assert_eq!(cu!(cuStreamSynchronize(waiting)), CUDA_ERROR_EXTERNAL_DEVICE);
        let mut none = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut none, 512)), CUDA_ERROR_EXTERNAL_DEVICE);
        // Another context still works and finds the memory unchanged.
        let mut second = null_mut();
        ok!(cuCtxCreate_v2(&mut second, 0, 0));
        assert_eq!(read(at, 4096), pattern(4096, 5));
        peer.bury();
        assert_eq!(open(late), Err(CUDA_ERROR_MAP_FAILED));
        assert_eq!(open_event(event_handle), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(read(at, 4096), pattern(4096, 5));
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let (at, late) = (allocate(4096), allocate(4096));
        write(at, &pattern(4096, 5));
        let (stream, event) = (stream(), event(BETWEEN_PROCESSES));
        ok!(cuLaunchHostFunc(stream, Some(sleep_on), null_mut()));
        ok!(cuEventRecord(event, stream));
        for handle in [export(at), export(late), export_event(event)] {
            wire.send(&handle);
        }
        std::thread::sleep(std::time::Duration::from_secs(600));
    };
    for options in ["streams:threads", "streams:seeded,seed:2,strict:on"] {
        two(name, options, one, other);
    }
}

/// A wait on a stream ends when the other process is killed.
#[test]
fn a_wait_in_progress_ends_when_the_other_process_is_killed() {
    let name = "a_wait_in_progress_ends_when_the_other_process_is_killed";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let event = open_event(peer.wire.receive()).unwrap();
        let waiting = stream();
        let at = allocate(LEN);
        let killer = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                peer.kill();
            });
            // With in-place streams, this call waits.
            ok!(cuStreamWaitEvent(waiting, event, 0));
            let _ = cu!(cuMemsetD8Async(at, 1, LEN, waiting));
            assert_eq!(cu!(cuStreamSynchronize(waiting)), CUDA_ERROR_EXTERNAL_DEVICE);
            killer.join()
        });
        killer.unwrap();
    };
    let other = |wire: &mut Wire| {
        // The work of this process never ends, whichever executor the first process uses.
        let _context = CudaContext::new(0).unwrap();
        let event = event(BETWEEN_PROCESSES);
        let handle = export_event(event);
        let stream = stream();
        if std::env::var("MILLPOND_CUDA_EMU").unwrap().contains("in-place") {
            // Work that is queued on this stream from another thread waits while the first work runs.
            let busy = stream.expose_provenance();
            std::thread::spawn(move || {
                let _context = CudaContext::new(0).unwrap();
                let stream = std::ptr::with_exposed_provenance_mut(busy);
                ok!(cuLaunchHostFunc(stream, Some(sleep_on), null_mut()));
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
            let recorded = event.expose_provenance();
            std::thread::spawn(move || {
                let _context = CudaContext::new(0).unwrap();
                let (event, stream) = (
                    std::ptr::with_exposed_provenance_mut(recorded),
                    std::ptr::with_exposed_provenance_mut(busy),
                );
                ok!(cuEventRecord(event, stream));
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
        } else {
            ok!(cuLaunchHostFunc(stream, Some(sleep_on), null_mut()));
            ok!(cuEventRecord(event, stream));
        }
        wire.send(&handle);
        std::thread::sleep(std::time::Duration::from_secs(600));
    };
    for streams in ["in-place", "threads", "seeded"] {
        two(name, &format!("streams:{streams}"), one, other);
    }
}
