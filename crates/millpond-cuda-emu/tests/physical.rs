//! Tests physical memory that is shared with other processes as a file.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;
#[path = "common/peer.rs"]
mod peer;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS,
};
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUresult,
};
use peer::{Wire, two, two_unlike};
use rustix::io::{FdFlags, IoSlice, IoSliceMut, fcntl_getfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PAGE: usize = 2 << 20;
const FILE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const NONE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

fn place(device: i32) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

fn create(device: i32, bytes: usize, kind: CUmemAllocationHandleType) -> u64 {
    // SAFETY: all zeros are a valid value of every field.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = place(device);
    prop.requestedHandleTypes = kind;
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, bytes, &prop, 0));
    handle
}

fn kind_of(handle: u64) -> (CUmemAllocationHandleType, i32) {
    // SAFETY: all zeros are a valid value of every field.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    ok!(cuMemGetAllocationPropertiesFromHandle(&mut prop, handle));
    (prop.requestedHandleTypes, prop.location.id)
}

fn map(handle: u64, bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
    ok!(cuMemMap(at, bytes, 0, handle, 0));
    let access = CUmemAccessDesc {
        location: place(0),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    ok!(cuMemSetAccess(at, bytes, &access, 1));
    at
}

fn unmap(at: u64, bytes: usize) {
    ok!(cuMemUnmap(at, bytes));
    ok!(cuMemAddressFree(at, bytes));
}

fn export(handle: u64) -> OwnedFd {
    let mut number = -1i32;
    ok!(cuMemExportToShareableHandle(
        (&raw mut number).cast(),
        handle,
        FILE,
        0
    ));
    // SAFETY: the driver created this file for the caller.
    unsafe { OwnedFd::from_raw_fd(number) }
}

fn import(file: usize) -> Result<u64, CUresult> {
    let mut handle = 0;
    let from = std::ptr::without_provenance_mut(file);
    match cu!(cuMemImportFromShareableHandle(&mut handle, from, FILE)) {
        CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

fn import_from(file: &impl AsRawFd) -> Result<u64, CUresult> {
    import(file.as_raw_fd() as usize)
}

fn write(at: u64, bytes: &[u8]) {
    ok!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()));
}

fn read(at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, len));
    bytes
}

fn free() -> usize {
    let (mut free, mut all) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut all));
    free
}

fn send_file(wire: &Wire, file: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let sent = sendmsg(
        wire.0.as_fd(),
        &[IoSlice::new(b"f")],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent, Ok(1));
}

fn receive_file(wire: &Wire) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(
        wire.0.as_fd(),
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        flags,
    )
    .unwrap();
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.unwrap()
}

fn pattern(salt: usize) -> Vec<u8> {
    (0..2 * PAGE).map(|index| (index / 5 * 3 + salt) as u8).collect()
}

#[test]
fn memory_shared_as_a_file_outlives_the_process_that_created_it() {
    let name = "memory_shared_as_a_file_outlives_the_process_that_created_it";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let before = free();
        let file = receive_file(&peer.wire);
        let handle = import_from(&file).unwrap();
        assert_eq!(import_from(&file), Ok(handle), "it is known");
        drop(file);
        assert_eq!(kind_of(handle), (FILE, 1));
        assert_eq!(free(), before, "it is another process's");
        let at = map(handle, 2 * PAGE);
        assert!(read(at, 2 * PAGE) == pattern(1));
        write(at, &pattern(2));
        peer.wire.meet();
        peer.wire.meet();
        peer.kill();
        peer.bury();
        assert!(read(at, 2 * PAGE) == pattern(2));
        // Imported memory can be exported again.
        let next = export(handle);
        let mut retained = 0;
        ok!(cuMemRetainAllocationHandle(
            &mut retained,
            std::ptr::without_provenance_mut(at as usize)
        ));
        assert_eq!(retained, handle);
        for _ in 0..3 {
            ok!(cuMemRelease(handle));
        }
        assert_eq!(cu!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
        assert!(read(at, 2 * PAGE) == pattern(2), "a map keeps it");
        unmap(at, 2 * PAGE);
        let handle = import_from(&next).unwrap();
        let at = map(handle, 2 * PAGE);
        assert!(read(at, 2 * PAGE) == pattern(2), "the file keeps it");
        unmap(at, 2 * PAGE);
        ok!(cuMemRelease(handle));
    };
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(1).unwrap();
        let before = free();
        let handle = create(1, 2 * PAGE, FILE);
        assert_eq!(
            before - free(),
            2 * PAGE,
            "it takes granules as other memory does"
        );
        let at = map(handle, 2 * PAGE);
        write(at, &pattern(1));
        let (file, second) = (export(handle), export(handle));
        assert_ne!(file.as_raw_fd(), second.as_raw_fd());
        assert!(fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC));
        send_file(wire, file.as_fd());
        wire.meet();
        assert!(read(at, 2 * PAGE) == pattern(2));
        unmap(at, 2 * PAGE);
        ok!(cuMemRelease(handle));
        assert_eq!(free(), before);
        wire.meet();
        std::thread::sleep(std::time::Duration::from_secs(600));
    };
    for options in ["devices:2", "devices:2,streams:seeded,strict:on"] {
        two(name, options, one, other);
    }
}

#[test]
fn files_that_are_not_physical_memory_are_refused() {
    let name = "files_that_are_not_physical_memory_are_refused";
    let one = |peer: &mut peer::Peer| {
        let _context = CudaContext::new(0).unwrap();
        let foreign = receive_file(&peer.wire);
        assert_eq!(
            import_from(&foreign),
            Err(CUDA_ERROR_INVALID_DEVICE),
            "there is no such device here"
        );
        for number in [usize::MAX, 1 << 40, 9999] {
            assert_eq!(import(number), Err(CUDA_ERROR_INVALID_VALUE));
        }
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(import_from(&plain), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(import_from(&peer.wire.0), Err(CUDA_ERROR_INVALID_VALUE));
        // Forged files: memory with a valid name that could be truncated later, and memory with an invalid length.
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let forged = |len: u64, seals: rustix::fs::SealFlags| {
            let file = rustix::fs::memfd_create("cuda-emu-physical-0", flags).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            import_from(&file).map(|_| ())
        };
        let shrink = rustix::fs::SealFlags::SHRINK;
        let grow = rustix::fs::SealFlags::GROW;
        assert!(forged(PAGE as u64, grow).is_err());
        assert_eq!(forged(PAGE as u64 + 4096, shrink), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(
            forged(PAGE as u64, shrink),
            Ok(()),
            "nothing else is wrong with it"
        );
        // Memory that was not created as shareable cannot be exported.
        let kept = create(0, PAGE, NONE);
        assert_eq!(kind_of(kept), (NONE, 0));
        let mut number = -1i32;
        let to = (&raw mut number).cast();
        assert_eq!(
            cu!(cuMemExportToShareableHandle(to, kept, FILE, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        let made = create(0, PAGE, FILE);
        assert_eq!(
            cu!(cuMemExportToShareableHandle(to, made, FILE, 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            cu!(cuMemExportToShareableHandle(to, made, NONE, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            cu!(cuMemExportToShareableHandle(to, 12345, FILE, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(number, -1);
        // The process imports its own memory. It stays one memory, whose granules are free after all releases.
        let before = free();
        let again = import_from(&export(made)).unwrap();
        ok!(cuMemRelease(made));
        assert_eq!((again, free()), (made, before));
        ok!(cuMemRelease(again));
        assert_eq!(free(), before + PAGE);
        let mut pool = std::ptr::null_mut();
        ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
        assert_eq!(
            cu!(cuMemPoolExportToShareableHandle(to, pool, FILE, 0)),
            CUDA_ERROR_NOT_SUPPORTED
        );
        peer.wire.meet();
    };
    // The second process has a second device.
    let other = |wire: &mut Wire| {
        let _context = CudaContext::new(1).unwrap();
        let file = export(create(1, PAGE, FILE));
        send_file(wire, file.as_fd());
        wire.meet();
    };
    let options = [("MILLPOND_CUDA_EMU", "devices:2")];
    two_unlike(name, "devices:1", &options, one, other);
}

#[test]
fn attributes_report_what_can_be_shared_with_other_processes() {
    let name = "attributes_report_what_can_be_shared_with_other_processes";
    use cudarc::driver::sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED as FABRIC,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as FILES,
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED as EVENTS,
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES as POOLS,
    };
    for options in ["", "without:vmm"] {
        common::with_options(name, options, || {
            ok!(cuInit(0));
            let answer = |attribute| {
                let mut value = -1;
                ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
                value
            };
            let vmm = std::env::var("MILLPOND_CUDA_EMU").unwrap().is_empty();
            assert_eq!(answer(FILES), i32::from(vmm));
            assert_eq!([answer(EVENTS), answer(FABRIC), answer(POOLS)], [1, 0, 0]);
        });
    }
}
