//! Wrappers of the calls by which processes share blocks and events.
#![allow(dead_code, reason = "each test program uses some of it")]

use crate::{cu, ok};
use cudarc::driver::sys::CUresult::CUDA_SUCCESS;
use cudarc::driver::sys::{CUevent, CUipcEventHandle, CUipcMemHandle, CUresult, CUstream};
use std::ffi::c_char;
use std::ptr::null_mut;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(crate) const LAZY: u32 = 1;
/// `CU_EVENT_INTERPROCESS` and `CU_EVENT_DISABLE_TIMING`.
pub(crate) const BETWEEN_PROCESSES: u32 = 6;

/// Allocates plain memory.
pub(crate) fn allocate(bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, bytes));
    at
}

/// Copies bytes from the host. The copy is complete when this returns.
pub(crate) fn write(at: u64, bytes: &[u8]) {
    ok!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()));
}

/// Copies bytes to the host.
pub(crate) fn read(at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, len));
    bytes
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|index| (index / 3 * 7 + salt) as u8).collect()
}

/// Returns a handle of a block.
pub(crate) fn export(at: u64) -> [u8; 64] {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, at));
    handle.reserved.map(c_char::cast_unsigned)
}

/// Opens the block of a handle.
pub(crate) fn open(handle: [u8; 64]) -> Result<u64, CUresult> {
    let mut at = 0;
    let reserved = handle.map(u8::cast_signed);
    match cu!(cuIpcOpenMemHandle_v2(&mut at, CUipcMemHandle { reserved }, LAZY)) {
        CUDA_SUCCESS => Ok(at),
        code => Err(code),
    }
}

/// Returns a stream that is not ordered with the default stream.
pub(crate) fn stream() -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

/// Returns an event with these flags.
pub(crate) fn event(flags: u32) -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, flags));
    event
}

/// Returns a handle of an event.
pub(crate) fn export_event(event: CUevent) -> [u8; 64] {
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    ok!(cuIpcGetEventHandle(&mut handle, event));
    handle.reserved.map(c_char::cast_unsigned)
}

/// Opens the event of a handle.
pub(crate) fn open_event(handle: [u8; 64]) -> Result<CUevent, CUresult> {
    let mut event = null_mut();
    let reserved = handle.map(u8::cast_signed);
    match cu!(cuIpcOpenEventHandle(&mut event, CUipcEventHandle { reserved })) {
        CUDA_SUCCESS => Ok(event),
        code => Err(code),
    }
}

/// Returns the findings of strict mode so far.
pub(crate) fn findings() -> String {
    type Report = unsafe extern "C" fn(*mut c_char, usize) -> u64;
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the function has this type.
    let report = unsafe { crate::common::load().get::<Report>(b"millpond_emu_report") }.unwrap();
    // SAFETY: the buffer has the given length.
    unsafe { report(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
}
