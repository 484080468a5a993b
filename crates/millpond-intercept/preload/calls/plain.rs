//! Plain and managed memory.

use super::{OUT_OF_MEMORY, calls, request, value};
use crate::account::{self, Request};
use crate::driver;
use crate::format::Memory;
use crate::live::Space;
use crate::stack;
use std::ffi::{c_int, c_uint};

/// The alignment of the driver. The replay rounds requests to the same alignment.
const UNIT: u64 = 256;

fn whole(bytes: usize) -> u64 {
    (bytes as u64).checked_next_multiple_of(UNIT).unwrap_or(u64::MAX)
}

/// Calls the driver if the limit permits the request.
fn allocate(request: &Request, at: *mut u64, call: impl FnOnce() -> c_int) -> c_int {
    if !account::admit(request) {
        return OUT_OF_MEMORY;
    }
    let result = call();
    let address = if result == 0 { value(at) } else { 0 };
    account::answered(request, Space::Device, result, address);
    result
}

calls! {
    cuMemAlloc_v2(at: *mut u64, bytes: usize) {
        let request = request(Memory::Device, bytes, whole(bytes));
        allocate(&request, at, || driver::cuMemAlloc_v2(at, bytes))
    }
    cuMemAllocPitch_v2(at: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) {
        // The driver chooses the pitch, of at most 512 bytes more than the width.
        let most = width.checked_next_multiple_of(512).and_then(|row| row.checked_mul(height)).unwrap_or(usize::MAX);
        let request = request(Memory::Device, width.saturating_mul(height), whole(most));
        allocate(&request, at, || driver::cuMemAllocPitch_v2(at, pitch, width, height, element))
    }
    cuMemAllocManaged(at: *mut u64, bytes: usize, flags: c_uint) {
        let request = request(Memory::Managed, bytes, whole(bytes));
        allocate(&request, at, || driver::cuMemAllocManaged(at, bytes, flags))
    }
    cuMemFree_v2(at: u64) {
        let freed = account::free(Space::Device, at, 0, stack::capture());
        let result = driver::cuMemFree_v2(at);
        super::pool::freed(freed, result);
        result
    }
}
