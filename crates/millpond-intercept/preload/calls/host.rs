//! Pinned memory of the host.

use super::{OUT_OF_MEMORY, calls, request, value};
use crate::account::{self, Request};
use crate::driver;
use crate::format::Memory;
use crate::live::Space;
use crate::stack;
use std::ffi::{c_int, c_uint};

fn pin(request: &Request, call: impl FnOnce() -> c_int, address: impl FnOnce() -> u64) -> c_int {
    if !account::admit(request) {
        return OUT_OF_MEMORY;
    }
    let result = call();
    let address = if result == 0 { address() } else { 0 };
    account::answered(request, Space::Host, result, address);
    result
}

fn unpin(at: u64, call: impl FnOnce() -> c_int) -> c_int {
    let freed = account::free(Space::Host, at, 0, stack::capture());
    let result = call();
    if let Some(freed) = freed {
        freed.answered(result);
    }
    result
}

calls! {
    cuMemAllocHost_v2(at: *mut u64, bytes: usize) {
        let request = request(Memory::Pinned, bytes, bytes as u64);
        pin(&request, || driver::cuMemAllocHost_v2(at, bytes), || value(at))
    }
    cuMemHostAlloc(at: *mut u64, bytes: usize, flags: c_uint) {
        let request = request(Memory::Pinned, bytes, bytes as u64);
        pin(&request, || driver::cuMemHostAlloc(at, bytes, flags), || value(at))
    }
    cuMemFreeHost(at: u64) {
        unpin(at, || driver::cuMemFreeHost(at))
    }
    cuMemHostRegister_v2(at: u64, bytes: usize, flags: c_uint) {
        let request = request(Memory::Registered, bytes, bytes as u64);
        pin(&request, || driver::cuMemHostRegister_v2(at, bytes, flags), || at)
    }
    cuMemHostUnregister(at: u64) {
        unpin(at, || driver::cuMemHostUnregister(at))
    }
}
