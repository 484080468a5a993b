//! Stream-ordered memory and its pools. A pool counts with its reserved bytes, which are queried after each call.

use super::{OUT_OF_MEMORY, calls, current, field, graph, set, value};
use crate::account::{self, Freed, Request};
use crate::driver;
use crate::format::Memory;
use crate::live::Space;
use crate::{stack, state};
use std::ffi::{c_int, c_void};

/// The attribute of the bytes that a pool has reserved.
const RESERVED: c_int = 5;

/// Returns whether a stream records its calls for a graph.
fn is_capturing(stream: u64, ask: fn(u64, *mut c_int) -> c_int) -> bool {
    const ACTIVE: c_int = 1;
    let mut status = 0;
    ask(stream, &raw mut status) == 0 && status == ACTIVE
}

/// Queries whether a stream is captured. Functions with the suffix `_ptsz` use the per-thread default stream, and the others use the
/// legacy default stream.
const LEGACY: fn(u64, *mut c_int) -> c_int = |stream, status| match stream {
    // The legacy default stream cannot be captured. During a capture of another stream it cannot even be queried.
    0 | 1 => 1,
    _ => driver::cuStreamIsCapturing(stream, status),
};
const PER_THREAD: fn(u64, *mut c_int) -> c_int = driver::cuStreamIsCapturing_ptsz;

/// Queries the bytes that a pool has reserved, and records them. Returns the bytes of its device that count against the limit, or `None`
/// if the pool was destroyed or is not known.
fn poll(pool: u64) -> Option<u64> {
    let device = state::with(|state| state.account.device_of_pool(pool))??;
    let mut reserved = 0;
    (driver::cuMemPoolGetAttribute(pool, RESERVED, &raw mut reserved) == 0)
        .then(|| account::reserved(pool, device, Memory::Pool, reserved))
}

/// Records the driver's answer to a free.
pub(super) fn freed(freed: Option<Freed>, result: c_int) {
    let Some(freed) = freed else { return };
    let held = *freed.held();
    freed.answered(result);
    if held.memory == Memory::Pool {
        poll(held.owner);
    }
}

/// Allocates from a pool, or from the current pool of the device.
fn allocate(
    at: *mut u64,
    bytes: usize,
    pool: Option<u64>,
    stream: u64,
    ask: fn(u64, *mut c_int) -> c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let (_, mut device) = current();
    let mut owner = pool.unwrap_or(0);
    if pool.is_none() {
        driver::cuDeviceGetMemPool(&raw mut owner, device);
    }
    device = state::with(|state| state.account.device_of_pool(owner))
        .flatten()
        .unwrap_or(device);
    let mut request = Request {
        memory: Memory::Pool,
        device,
        bytes: bytes as u64,
        requested: bytes as u64,
        stream,
        owner,
        stack: stack::capture(),
    };
    if is_capturing(stream, ask) {
        let result = call();
        if result == 0 {
            (request.memory, request.owner) = (Memory::Graph, account::graphs_of(device));
            graph::node(&request, value(at));
        }
        return result;
    }
    if !account::admit(&request) {
        return OUT_OF_MEMORY;
    }
    let result = call();
    let is_over = || {
        poll(owner)
            .zip(account::limit())
            .is_some_and(|(total, limit)| total > limit)
    };
    if result == 0 && is_over() {
        // The driver reserves more than was requested. On a card of the limited size, it would release the unused memory of the pool.
        driver::cuMemPoolTrimTo(owner, 0);
        if is_over() {
            driver::cuMemFreeAsync(value(at), stream);
            driver::cuMemPoolTrimTo(owner, 0);
            set(at, 0);
            account::refuse(&request);
            poll(owner);
            return OUT_OF_MEMORY;
        }
    }
    account::answered(
        &request,
        Space::Device,
        result,
        if result == 0 { value(at) } else { 0 },
    );
    result
}

fn free(at: u64, stream: u64, ask: fn(u64, *mut c_int) -> c_int, call: impl FnOnce() -> c_int) -> c_int {
    // During a capture, the call adds a node that frees the memory when the graph runs.
    let block =
        (!is_capturing(stream, ask)).then(|| account::free(Space::Device, at, stream, stack::capture()));
    let result = call();
    freed(block.flatten(), result);
    result
}

calls! {
    cuMemAllocAsync(at: *mut u64, bytes: usize, stream: u64) {
        allocate(at, bytes, None, stream, LEGACY, || driver::cuMemAllocAsync(at, bytes, stream))
    }
    cuMemAllocAsync_ptsz(at: *mut u64, bytes: usize, stream: u64) {
        allocate(at, bytes, None, stream, PER_THREAD, || driver::cuMemAllocAsync_ptsz(at, bytes, stream))
    }
    cuMemAllocFromPoolAsync(at: *mut u64, bytes: usize, pool: u64, stream: u64) {
        allocate(at, bytes, Some(pool), stream, LEGACY, || driver::cuMemAllocFromPoolAsync(at, bytes, pool, stream))
    }
    cuMemAllocFromPoolAsync_ptsz(at: *mut u64, bytes: usize, pool: u64, stream: u64) {
        allocate(at, bytes, Some(pool), stream, PER_THREAD, || driver::cuMemAllocFromPoolAsync_ptsz(at, bytes, pool, stream))
    }
    cuMemFreeAsync(at: u64, stream: u64) {
        free(at, stream, LEGACY, || driver::cuMemFreeAsync(at, stream))
    }
    cuMemFreeAsync_ptsz(at: u64, stream: u64) {
        free(at, stream, PER_THREAD, || driver::cuMemFreeAsync_ptsz(at, stream))
    }
    cuMemPoolCreate(pool: *mut u64, properties: *const c_void) {
        let result = driver::cuMemPoolCreate(pool, properties);
        if result == 0 {
            // The kind and the number of the location. Kind 1 is a device.
            let (kind, number): (c_int, c_int) = (field(properties, 8), field(properties, 12));
            let device = if kind == 1 { number } else { -1 };
            let _ = state::with(|state| state.account.pool_begins(value(pool), device));
        }
        result
    }
    cuMemPoolDestroy(pool: u64) {
        let result = driver::cuMemPoolDestroy(pool);
        if result == 0 {
            account::pool_ended(pool);
        }
        result
    }
    cuMemPoolTrimTo(pool: u64, keep: usize) {
        let result = driver::cuMemPoolTrimTo(pool, keep);
        poll(pool);
        result
    }
}
