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

/// Asks the driver what the graphs of a device have reserved.
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
        if result == 0 {
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
            self::node(&request, field(parameters, ADDRESS));
        }
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
