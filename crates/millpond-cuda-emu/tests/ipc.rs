//! Two processes share memory: one opens blocks of the other.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;
#[path = "common/ipc.rs"]
mod ipc;
#[path = "common/peer.rs"]
mod peer;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUipcMemHandle;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED,
};
use ipc::{
    BETWEEN_PROCESSES, allocate, event, export, export_event, findings, open, open_event, pattern, read,
    stream, write,
};
use peer::{Wire, two};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Returns a block that consists of several pieces, with allocated memory between them.
fn in_pieces() -> u64 {
    let granules: Vec<u64> = (0..12).map(|_| allocate(2 << 20)).collect();
    for at in granules.iter().step_by(2) {
        ok!(cuMemFree_v2(*at));
    }
    // The free memory behind these granules is not enough, so the block uses the holes.
    allocate(10 << 20)
}

#[test]
fn blocks_are_written_and_read_both_ways() {
    let name = "blocks_are_written_and_read_both_ways";
    let sizes = [1000, 3 << 20, 10 << 20];
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        allocate(512);
        let blocks = [allocate(sizes[0]), allocate(sizes[1]), in_pieces()];
        assert_ne!(blocks[0] % (2 << 20), 0, "it has neighbours in its granule");
        for (index, at) in blocks.into_iter().enumerate() {
            write(at, &pattern(sizes[index], index));
            assert_eq!(export(at), export(at + 100), "a handle is of the whole block");
            peer.wire.send(&export(at));
        }
        peer.wire.meet();
        for (index, at) in blocks.into_iter().enumerate() {
            assert!(
                read(at, sizes[index]) == pattern(sizes[index], 100 + index),
                "block {index}"
            );
        }
        peer.wire.meet();
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        allocate(5 << 20);
        let blocks = sizes.map(|size| (open(wire.receive()).unwrap(), size));
        for (index, (at, size)) in blocks.into_iter().enumerate() {
            assert!(read(at, size) == pattern(size, index), "block {index}");
            let (mut base, mut len) = (0, 0);
            ok!(cuMemGetAddressRange_v2(&mut base, &mut len, at + 1));
            assert_eq!((base, len), (at, size));
            write(at, &pattern(size, 100 + index));
        }
        wire.meet();
        wire.meet();
        for (at, _) in blocks {
            ok!(cuIpcCloseMemHandle(at));
        }
    };
    for options in ["", "streams:threads", "streams:seeded,strict:on"] {
        two(
            name,
            format!("memory:40M,{options}").trim_end_matches(','),
            one,
            other,
        );
    }
}

#[test]
fn a_block_opened_twice_stays_open_until_it_is_closed_twice() {
    let name = "a_block_opened_twice_stays_open_until_it_is_closed_twice";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let at = allocate(4096);
        write(at, &pattern(4096, 1));
        peer.wire.send(&export(at));
        peer.wire.send(&export(allocate(4096)));
        peer.wire.meet();
        assert_eq!(read(at, 4096), pattern(4096, 1));
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let handle = wire.receive();
        let at = open(handle).unwrap();
        assert_eq!(open(handle), Ok(at));
        assert_eq!(cu!(cuMemFree_v2(at)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cu!(cuIpcCloseMemHandle(at + 512)), CUDA_ERROR_INVALID_VALUE);
        let mut again = CUipcMemHandle { reserved: [0; 64] };
        assert_eq!(cu!(cuIpcGetMemHandle(&mut again, at)), CUDA_ERROR_INVALID_VALUE);
        // Another context of the same process cannot open it too.
        let (mut before, mut second) = (null_mut(), null_mut());
        ok!(cuCtxGetCurrent(&mut before));
        ok!(cuCtxCreate_v2(&mut second, 0, 0));
        assert_eq!(open(handle), Err(CUDA_ERROR_INVALID_CONTEXT));
        // Destroying a context closes the blocks that it has open.
        let its_own = wire.receive();
        open(its_own).unwrap();
        ok!(cuCtxDestroy_v2(second));
        ok!(cuCtxSetCurrent(before));
        let other = open(its_own).unwrap();
        assert_ne!(other, at);
        ok!(cuIpcCloseMemHandle(other));
        ok!(cuIpcCloseMemHandle(at));
        assert_eq!(read(at, 4096), pattern(4096, 1));
        ok!(cuIpcCloseMemHandle(at));
        assert_eq!(cu!(cuIpcCloseMemHandle(at)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(findings(), "");
        assert_eq!(cu!(cuMemsetD8_v2(at, 1, 8)), CUDA_ERROR_INVALID_VALUE);
        let found = findings();
        assert!(
            found.contains("use after free") && found.contains("cuIpcCloseMemHandle"),
            "{found}"
        );
        assert_ne!(
            open(handle),
            Err(CUDA_ERROR_MAP_FAILED),
            "it is still there to be opened"
        );
        wire.meet();
    };
    two(name, "strict:on", one, other);
}

/// Work on a block is complete when the block is closed, however late it runs. No other wait is necessary.
#[test]
fn closing_waits_for_work() {
    let name = "closing_waits_for_work";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let at = allocate(4096);
        write(at, &[1; 4096]);
        peer.wire.send(&export(at));
        peer.wire.meet();
        assert_eq!(read(at, 4096), [2; 4096]);
        peer.wire.meet();
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let at = open(wire.receive()).unwrap();
        let stream = stream();
        ok!(cuLaunchHostFunc(stream, Some(nap), null_mut()));
        ok!(cuMemsetD8Async(at, 2, 4096, stream));
        ok!(cuIpcCloseMemHandle(at));
        ok!(cuStreamQuery(stream));
        assert_eq!(findings(), "");
        wire.meet();
        wire.meet();
    };
    two(name, "streams:seeded,seed:4,strict:on", one, other);
}

unsafe extern "C" fn nap(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// Strict mode protects another process's memory from the host in the same way as its own.
#[test]
fn an_opened_block_is_closed_to_the_host() {
    let name = "an_opened_block_is_closed_to_the_host";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let at = allocate(4096);
        write(at, &[6; 4096]);
        peer.wire.send(&export(at));
        // By default, the byte arrives. In strict mode, the read has killed the other process.
        let strict = std::env::var("MILLPOND_CUDA_EMU").is_ok_and(|options| options.contains("strict:on"));
        let mut byte = [0];
        let got = std::io::Read::read_exact(&mut peer.wire.0, &mut byte).is_ok();
        assert_eq!((got, byte), if strict { (false, [0]) } else { (true, [6]) });
        if strict {
            // The death of the other process is the expected result.
            std::process::exit(0);
        }
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let at = open(wire.receive()).unwrap();
        // SAFETY: the test checks whether this access is allowed.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() };
        wire.send(&[byte]);
    };
    two(name, "devices:1", one, other);
    two(name, "strict:on", one, other);
}

#[test]
fn handles_that_are_not_of_another_process_are_refused() {
    let name = "handles_that_are_not_of_another_process_are_refused";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        let mut refused = |at| assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, at)), CUDA_ERROR_INVALID_VALUE);
        let (mut managed, mut pooled, mut reserved, mut host) = (0, 0, 0, null_mut::<c_void>());
        ok!(cuMemAllocManaged(&mut managed, 4096, 1));
        ok!(cuMemAllocAsync(&mut pooled, 4096, null_mut()));
        ok!(cuMemAddressReserve(&mut reserved, 2 << 20, 0, 0, 0));
        ok!(cuMemHostAlloc(&mut host, 4096, 0));
        for at in [
            managed,
            pooled,
            reserved,
            host.expose_provenance() as u64,
            0,
            4096,
        ] {
            refused(at);
        }
        let (kept, freed) = (allocate(4096), allocate(3 << 20));
        let (good, gone) = (export(kept), export(freed));
        assert_eq!(open(good), Err(CUDA_ERROR_INVALID_CONTEXT));
        ok!(cuMemFree_v2(freed));
        let other = export_event(event(BETWEEN_PROCESSES));
        for handle in [good, gone, other] {
            peer.wire.send(&handle);
        }
        peer.wire.meet();
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(0).unwrap();
        let [good, gone, event]: [[u8; 64]; 3] = [(); 3].map(|()| wire.receive());
        assert_eq!(open([0; 64]), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(open([0x5a; 64]), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(open(gone), Err(CUDA_ERROR_MAP_FAILED), "it was freed");
        assert_eq!(open(event), Err(CUDA_ERROR_MAP_FAILED), "it is an event's");
        assert_eq!(
            open_event(good),
            Err(CUDA_ERROR_INVALID_HANDLE),
            "it is a block's"
        );
        // A change of any significant byte leads to an error.
        for index in 0..64 {
            let mut wrong = good;
            wrong[index] ^= 0x11;
            assert!(open(wrong).is_err(), "byte {index}");
        }
        // Files that are not memory are not even opened: the socket and the files of the first process.
        for number in 0..32u32 {
            let mut wrong = good;
            wrong[12..16].copy_from_slice(&number.to_le_bytes());
            let answer = open(wrong);
            assert!(answer.is_err() || wrong == good, "file {number}");
        }
        let mut at = 0;
        let handle = CUipcMemHandle {
            reserved: good.map(u8::cast_signed),
        };
        assert_eq!(
            cu!(cuIpcOpenMemHandle_v2(&mut at, handle, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        wire.meet();
    };
    two(name, "", one, other);
}
