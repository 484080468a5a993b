//! Physical memory for virtual addresses. It lives until its last handle is released and its last mapping ends.
//!
//! Reserved addresses take no memory, so they are not recorded. Memory that this process imports is counted in the process that created it.

use super::{OUT_OF_MEMORY, calls, field, request, value};
use crate::account::{self, Freed};
use crate::driver;
use crate::format::Memory;
use crate::live::{Held, Space};
use crate::state::Inner;
use crate::{stack, state};
use std::ffi::{c_int, c_ulonglong, c_void};

/// The bytes of the smallest mapping on any device.
const LEAST: u64 = 64 << 10;

/// Removes one user of physical memory. If it was the last one, records the end of the memory.
fn release(state: &mut Inner, handle: u64, stack: u32) -> Option<Freed> {
    let held = state.account.get(Space::Handle, handle)?;
    held.users -= 1;
    if held.users > 0 {
        return None;
    }
    let held = state.account.remove(Space::Handle, handle)?;
    Some(account::end(state, Held { users: 1, ..held }, 0, stack))
}

/// Adds a user of known physical memory.
fn retain(state: &mut Inner, handle: u64) -> Option<Held> {
    let held = state.account.get(Space::Handle, handle)?;
    held.users += 1;
    Some(*held)
}

calls! {
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_void, flags: c_ulonglong) {
        // The driver refuses a null pointer. Until then, the request counts as host memory.
        let (kind, number): (c_int, c_int) = (field(properties, 8), field(properties, 12));
        let mut request = request(Memory::Pages, bytes, bytes as u64);
        request.device = number;
        if kind != 1 {
            (request.memory, request.device) = (Memory::HostPages, -1);
        }
        if !account::admit(&request) {
            return OUT_OF_MEMORY;
        }
        let result = driver::cuMemCreate(handle, bytes, properties, flags);
        account::answered(&request, Space::Handle, result, if result == 0 { value(handle) } else { 0 });
        result
    }
    cuMemRelease(handle: u64) {
        let stack = stack::capture();
        let freed = state::with(|state| release(state, handle, stack)).flatten();
        let result = driver::cuMemRelease(handle);
        match freed {
            Some(freed) => freed.answered(result),
            None if result != 0 => {
                let _ = state::with(|state| retain(state, handle));
            }
            None => {}
        }
        result
    }
    cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let result = driver::cuMemMap(at, bytes, offset, handle, flags);
        if result == 0 {
            let _ = state::with(|state| {
                if let Some(held) = retain(state, handle) {
                    state.account.insert(Held {
                        key: at,
                        space: Space::Mapping,
                        bytes: bytes as u64,
                        owner: handle,
                        ..held
                    });
                }
            });
        }
        result
    }
    cuMemUnmap(at: u64, bytes: usize) {
        let stack = stack::capture();
        let result = driver::cuMemUnmap(at, bytes);
        if result == 0 {
            let end = at.saturating_add(bytes as u64);
            let mut next = at;
            while next < end {
                // The lock is released between two mappings, so that other calls can continue.
                let mapping = state::with(|state| {
                    let mapping = state.account.remove(Space::Mapping, next)?;
                    release(state, mapping.owner, stack);
                    Some(mapping)
                });
                next += mapping.flatten().map_or(LEAST, |mapping| mapping.bytes.max(LEAST));
            }
        }
        result
    }
    cuMemRetainAllocationHandle(handle: *mut u64, at: u64) {
        let result = driver::cuMemRetainAllocationHandle(handle, at);
        if result == 0 {
            let _ = state::with(|state| retain(state, value(handle)));
        }
        result
    }
}
