//! Graphs.

use super::args::{In, Out};
use super::copy::{extent, host, known};
use super::entries;
use super::structures::{AllocNode, HostNode, KernelNode, Memcpy3d, MemsetNode};
use crate::calls::Call;
use crate::driver::capture::NodeKind;
use crate::error::{Answer, Code};
use crate::work::action::{Action, Callback, Rows, Side};
use std::sync::Arc;

fn add(
    call: &Call,
    node: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    kind: Option<NodeKind>,
    action: Action,
) -> Answer {
    node.make(|| {
        let after = after.all(count)?;
        let mut state = call.driver.state();
        state.add_node(graph, &after, kind, action, call.origin())
    })
}

fn instantiate(call: &Call, executable: Out<u64>, graph: u64, flags: u64) -> Answer {
    executable.make(|| {
        call.context()?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.instantiate(graph, flags)
    })
}

/// Returns a copy of one row or one plane between host and device memory.
fn copy(call: &Call, c: &Memcpy3d) -> Answer<Action> {
    let one_row = c.height == 1 && c.depth == 1;
    let at_origin = [c.src_x, c.src_y, c.src_z, c.dst_x, c.dst_y, c.dst_z]
        .iter()
        .all(|offset| *offset == 0);
    Code::NOT_SUPPORTED.when(!at_origin || c.depth != 1)?;
    let pitch = |pitch: usize| if one_row { c.width as u64 } else { pitch as u64 };
    let rows = Rows {
        width: c.width as u64,
        count: c.height as u64,
        to_pitch: pitch(c.dst_pitch),
        from_pitch: pitch(c.src_pitch),
    };
    Code::INVALID_VALUE.when(
        rows.width == 0 || rows.count == 0 || rows.to_pitch < rows.width || rows.from_pitch < rows.width,
    )?;
    let side = |kind: u32, on_host: usize, device: u64, pitch: u64| -> Answer<Side> {
        let len = extent(rows, pitch)?;
        match kind {
            1 => host(call, on_host, len),
            2 | 4 => known(call, device, len),
            _ => Err(Code::NOT_SUPPORTED),
        }
    };
    let to = side(c.dst_type, c.dst_host, c.dst_device, rows.to_pitch)?;
    let from = side(c.src_type, c.src_host, c.src_device, rows.from_pitch)?;
    Ok(Action::Copy { to, from, rows })
}

entries! {
    cuGraphCreate none 10000 Driver (graph: Out<u64>, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        graph.make(|| Ok(call.driver.state().create_graph()))
    }
    cuGraphDestroy none 10000 Driver (graph: u64) |call| { call.driver.state().destroy_graph(graph) }
    cuGraphAddEmptyNode none 10000 Driver (node: Out<u64>, graph: u64, after: In<u64>, count: usize) |call| {
        add(call, node, graph, after, count, None, Action::Nothing)
    }
    cuGraphAddHostNode none 10000 Driver (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        params: In<HostNode>,
    ) |call| {
        let params = params.get()?;
        let function = params.function.ok_or(Code::INVALID_VALUE)?;
        let callback = Callback::Host { function, data: params.data };
        add(call, node, graph, after, count, None, Action::Call(callback))
    }
    cuGraphAddKernelNode_v2 none 12000 Driver (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        params: In<KernelNode>,
    ) |call| {
        let p = params.get()?;
        Code::NOT_SUPPORTED.when(p.extra != 0 || p.params == 0)?;
        let places = crate::abi::args::at(p.params);
        let launch = crate::abi::module::launch(call, p.function, p.grid, p.block, places)?;
        add(call, node, graph, after, count, None, Action::Kernel(Arc::new(launch)))
    }
    cuGraphAddMemsetNode none 10000 Driver (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        params: In<MemsetNode>,
        _context: u64,
    ) |call| {
        let p = params.get()?;
        let size = match p.element {
            1 | 2 | 4 => p.element as u8,
            _ => return Err(Code::INVALID_VALUE),
        };
        let width = (p.width as u64).checked_mul(u64::from(size)).filter(|width| *width > 0).ok_or(Code::INVALID_VALUE)?;
        let to_pitch = if p.height == 1 { width } else { p.pitch as u64 };
        Code::INVALID_VALUE.when(p.height == 0 || to_pitch < width)?;
        let rows = Rows { width, count: p.height as u64, to_pitch, from_pitch: 0 };
        known(call, p.dst, extent(rows, to_pitch)?)?;
        // The low bytes of the value come first.
        let action = Action::Fill { to: p.dst, pattern: p.value.to_le_bytes(), size, rows };
        add(call, node, graph, after, count, None, action)
    }
    cuGraphAddMemcpyNode none 10000 Driver (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        params: In<Memcpy3d>,
        _context: u64,
    ) |call| {
        let action = copy(call, &params.get()?)?;
        add(call, node, graph, after, count, None, action)
    }
    cuGraphAddMemAllocNode none 11040 Pools (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        params: Out<AllocNode>,
    ) |call| {
        node.check()?;
        let mut p = params.get()?;
        Code::INVALID_VALUE.when(p.props.kind != 1 || p.props.location.kind != 1 || p.bytes == 0)?;
        let device = call.known_device(p.props.location.id)?;
        let after = after.all(count)?;
        let made = call.driver.state().add_allocation(graph, &after, device, p.bytes as u64, call.origin())?;
        p.address = made.1;
        params.set(p)?;
        node.set(made.0)
    }
    cuGraphAddMemFreeNode none 11040 Pools (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        at: u64,
    ) |call| {
        Code::INVALID_VALUE.when(!call.driver.state().memory.is_graphs(at))?;
        add(call, node, graph, after, count, Some(NodeKind::Free), Action::Nothing)
    }
    cuGraphGetNodes none 10000 Driver (graph: u64, nodes: Out<u64>, count: Out<usize>) |call| {
        let state = call.driver.state();
        let found = state.graph(graph)?;
        if nodes.is_null() {
            return count.set(found.nodes.len());
        }
        let room = count.get()?;
        let mut handles: Vec<u64> = found.nodes.iter().map(|node| node.handle).collect();
        handles.truncate(room);
        count.set(handles.len())?;
        handles.resize(room, 0);
        nodes.fill(&handles)
    }
    cuGraphNodeGetType none 10000 Driver (node: u64, kind: Out<i32>) |call| {
        let found = call.driver.state().node_kind(node)?;
        kind.set(found as i32)
    }
    cuGraphInstantiateWithFlags none 11040 Driver (executable: Out<u64>, graph: u64, flags: u64) |call| {
        instantiate(call, executable, graph, flags)
    }
    cuGraphInstantiate_v2 none 11000 Driver (
        executable: Out<u64>,
        graph: u64,
        _node: Out<u64>,
        _log: usize,
        _room: usize,
    ) |call| { instantiate(call, executable, graph, 0) }
    cuGraphExecGetFlags none 12000 Driver (executable: u64, flags: Out<u64>) |call| {
        let state = call.driver.state();
        flags.set(state.executables.get(&(executable)).ok_or(Code::INVALID_VALUE)?.flags)
    }
    cuGraphExecDestroy none 10000 Driver (executable: u64) |call| {
        call.driver.destroy_executable(executable)
    }
    cuGraphUpload ptsz 11010 Driver (executable: u64, stream: u64) |call| {
        let stream = call.stream(stream)?;
        call.driver.state().executables.get(&(executable)).ok_or(Code::INVALID_VALUE)?;
        call.driver.submit(stream, Action::Nothing, call.origin())
    }
    cuGraphLaunch ptsz 10000 Driver (executable: u64, stream: u64) |call| {
        let stream = call.stream(stream)?;
        call.driver.launch_graph(executable, stream, call.origin())
    }
    cuDeviceGraphMemTrim none 11040 Pools (device: i32) |call| {
        let device = call.known_device(device)?;
        let mut guard = call.driver.state();
        let state = &mut *guard;
        let pool = state.memory.graph_pool(device)?;
        let queue = &state.queue;
        state.memory.trim(pool, 0, &|task| queue.is_done(task))
    }
    cuDeviceGetGraphMemAttribute none 11040 Pools (device: i32, number: i32, value: Out<u64>) |call| {
        let device = call.known_device(device)?;
        let mut state = call.driver.state();
        let pool = state.memory.graph_pool(device)?;
        let pool = state.memory.pool(pool)?;
        value.set(match number {
            0 => pool.heap.used(),
            1 => pool.used_high,
            2 => pool.heap.reserved(),
            3 => pool.reserved_high,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}
