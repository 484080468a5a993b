//! Memory of graphs. A node allocates when its graph runs, from memory that the driver reserves for all graphs of a device.

use super::{calls, current, field};
use crate::account::{self, Request};
use crate::driver;
use crate::format::Memory;
use crate::stack;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// The attribute of the bytes that graphs have reserved.
const RESERVED: c_int = 2;
/// The offsets of the bytes and of the address in the parameters of a node.
const BYTES: usize = 104;
const ADDRESS: usize = 112;

/// Whether any graph of this process has nodes that allocate. Until then, launches do not query the driver.
static ALLOCATES: AtomicBool = AtomicBool::new(false);

/// Records a node that allocates.
pub(super) fn node(request: &Request, address: u64) {
    ALLOCATES.store(true, Ordering::Relaxed);
    account::node(request, address);
}

/// Records a node that was added with the parameters of an allocation.
fn added(result: c_int, parameters: *const c_void) {
    if result != 0 {
        return;
    }
    let bytes: u64 = field(parameters, BYTES);
    let (_, device) = current();
    let request = Request {
        memory: Memory::Graph,
        device,
        bytes,
        requested: bytes,
        stream: 0,
        owner: account::graphs_of(device),
        stack: stack::capture(),
    };
    node(&request, field(parameters, ADDRESS));
}

/// Records a node of any type if it allocates. The parameters of its type follow the type.
fn added_any(result: c_int, parameters: *const c_void) {
    const ALLOCATION: c_int = 10;
    if field::<c_int>(parameters, 0) == ALLOCATION {
        added(result, parameters.wrapping_byte_add(16));
    }
}

/// Queries the bytes that the graphs of a device have reserved, and records them.
fn poll(device: i32) {
    let mut reserved = 0;
    if ALLOCATES.load(Ordering::Relaxed)
        && driver::cuDeviceGetGraphMemAttribute(device, RESERVED, &raw mut reserved) == 0
    {
        account::reserved(account::graphs_of(device), device, Memory::Graph, reserved);
    }
}

calls! {
    cuGraphAddMemAllocNode(node: *mut u64, graph: u64, after: *const u64, count: usize, parameters: *mut c_void) {
        let result = driver::cuGraphAddMemAllocNode(node, graph, after, count, parameters);
        added(result, parameters);
        result
    }
    cuGraphAddNode(node: *mut u64, graph: u64, after: *const u64, count: usize, parameters: *mut c_void) {
        let result = driver::cuGraphAddNode(node, graph, after, count, parameters);
        added_any(result, parameters);
        result
    }
    cuGraphAddNode_v2(
        node: *mut u64, graph: u64, after: *const u64, edges: *const c_void, count: usize, parameters: *mut c_void
    ) {
        let result = driver::cuGraphAddNode_v2(node, graph, after, edges, count, parameters);
        added_any(result, parameters);
        result
    }
    cuGraphLaunch(graph: u64, stream: u64) {
        let result = driver::cuGraphLaunch(graph, stream);
        poll(current().1);
        result
    }
    cuGraphLaunch_ptsz(graph: u64, stream: u64) {
        let result = driver::cuGraphLaunch_ptsz(graph, stream);
        poll(current().1);
        result
    }
    cuDeviceGraphMemTrim(device: c_int) {
        let result = driver::cuDeviceGraphMemTrim(device);
        poll(device);
        result
    }
}
