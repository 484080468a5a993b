//! Graphs.

use super::args::{In, Out, at};
use super::boxes;
use super::copy::known;
use super::entries;
use super::structures::{AllocNode, HostNode, InstantiateParams, KernelNode, Memcpy3d, MemsetNode};
use crate::calls::Call;
use crate::driver::capture::NodeKind;
use crate::error::{Answer, Code};
use crate::work::action::{Action, Callback, Rows};
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

/// Writes as many elements of a list as fit, and their number. Fills the rest of the room with zeros. If `place` is null, writes only the
/// length of the list.
fn list(found: &[u64], place: Out<u64>, count: Out<usize>) -> Answer {
    if place.is_null() {
        return count.set(found.len());
    }
    let room = count.get()?;
    let mut found = found.to_vec();
    found.truncate(room);
    count.set(found.len())?;
    found.resize(room, 0);
    place.fill(&found)
}

/// Writes the data of edges. All edges are plain ones, whose data is zero.
fn plain_edges(data: Out<u64>, count: Out<usize>) -> Answer {
    if data.is_null() {
        return Ok(());
    }
    data.fill(&vec![0; count.get()?])
}

entries! {
    cuGraphCreate none 10000 Driver (graph: Out<u64>, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        graph.make(|| Ok(call.driver.state().create_graph()))
    }
    cuGraphDestroy none 10000 Driver (graph: u64) |call| { call.driver.state().destroy_graph(graph) }
    /// Destroys a node. Nodes that came after it no longer depend on it. The documentation excludes nodes that allocate or free memory.
    cuGraphDestroyNode none 10000 Driver (node: u64) |call| { call.driver.state().destroy_node(node) }
    cuGraphAddNode none 12020 Driver (node: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<u8>) |call| {
        // The structure has the type, twelve reserved bytes, and then the structure of the type's own call.
        let kind = params.cast::<i32>().get()?;
        let own = params.address() + 16;
        match kind {
            0 => cuGraphAddKernelNode_v2(call, node, graph, after, count, at(own)),
            // Flags, a reserved number and a context come before the copy.
            1 => cuGraphAddMemcpyNode(call, node, graph, after, count, at(own + 16), 0),
            2 => cuGraphAddMemsetNode(call, node, graph, after, count, at(own), 0),
            3 => cuGraphAddHostNode(call, node, graph, after, count, at(own)),
            5 => cuGraphAddEmptyNode(call, node, graph, after, count),
            10 => cuGraphAddMemAllocNode(call, node, graph, after, count, at(own).as_out()),
            11 => cuGraphAddMemFreeNode(call, node, graph, after, count, at::<u64>(own).get()?),
            4 | 6..=9 | 12 | 13 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    cuGraphAddNode_v2 none 12030 Driver (
        node: Out<u64>,
        graph: u64,
        after: In<u64>,
        data: In<u64>,
        count: usize,
        params: In<u8>,
    ) |call| {
        // An edge with data is one between ports of kernels.
        let plain = data.is_null() || data.all(count)?.iter().all(|data| *data == 0);
        Code::NOT_SUPPORTED.when(!plain)?;
        cuGraphAddNode(call, node, graph, after, count, params)
    }
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
        let places = at(p.params);
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
        let rows = Rows { count: p.height as u64, to_pitch, ..Rows::one(width) };
        known(call, p.dst, rows.extent_written()?)?;
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
        let mut p = params.get()?;
        if p.height == 1 && p.depth == 1 {
            // The pitch of a single row does not matter.
            (p.src_pitch, p.dst_pitch) = (0, 0);
        }
        let (to, from, rows) = boxes::ends(call, &p)?.ok_or(Code::INVALID_VALUE)?;
        let action = Action::Copy { to, from, rows };
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
        let handles: Vec<u64> = call.driver.state().graph(graph)?.nodes.iter().map(|node| node.handle).collect();
        list(&handles, nodes, count)
    }
    cuGraphGetRootNodes none 10000 Driver (graph: u64, nodes: Out<u64>, count: Out<usize>) |call| {
        let handles = call.driver.state().graph(graph)?.roots();
        list(&handles, nodes, count)
    }
    cuGraphGetEdges none 10000 Driver (graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) |call| {
        let edges = call.driver.state().graph(graph)?.edges();
        Code::INVALID_VALUE.when(from.is_null() != to.is_null())?;
        let (first, second): (Vec<u64>, Vec<u64>) = edges.into_iter().unzip();
        let room = count.get().unwrap_or(0);
        list(&first, from, count)?;
        if !to.is_null() {
            count.set(room)?;
        }
        list(&second, to, count)
    }
    cuGraphGetEdges_v2 none 12030 Driver (
        graph: u64,
        from: Out<u64>,
        to: Out<u64>,
        data: Out<u64>,
        count: Out<usize>,
    ) |call| {
        plain_edges(data, count)?;
        cuGraphGetEdges(call, graph, from, to, count)
    }
    cuGraphNodeGetDependencies none 10000 Driver (node: u64, nodes: Out<u64>, count: Out<usize>) |call| {
        let before = call.driver.state().nodes_before(node)?;
        list(&before, nodes, count)
    }
    cuGraphNodeGetDependencies_v2 none 12030 Driver (
        node: u64,
        nodes: Out<u64>,
        data: Out<u64>,
        count: Out<usize>,
    ) |call| {
        plain_edges(data, count)?;
        cuGraphNodeGetDependencies(call, node, nodes, count)
    }
    cuGraphNodeGetDependentNodes none 10000 Driver (node: u64, nodes: Out<u64>, count: Out<usize>) |call| {
        let after = call.driver.state().nodes_after(node)?;
        list(&after, nodes, count)
    }
    cuGraphNodeGetDependentNodes_v2 none 12030 Driver (
        node: u64,
        nodes: Out<u64>,
        data: Out<u64>,
        count: Out<usize>,
    ) |call| {
        plain_edges(data, count)?;
        cuGraphNodeGetDependentNodes(call, node, nodes, count)
    }
    cuGraphClone none 10000 Driver (copy: Out<u64>, graph: u64) |call| {
        copy.make(|| call.driver.state().clone_graph(graph))
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
    cuGraphInstantiateWithParams ptsz 12000 Driver (
        executable: Out<u64>,
        graph: u64,
        params: Out<InstantiateParams>,
    ) |call| {
        let mut p = params.get()?;
        let upload = p.flags & 2 != 0;
        let stream = if upload { call.stream(p.upload)? } else { 0 };
        p.node = 0;
        let made = instantiate(call, executable, graph, p.flags);
        // Failures without a code of their own are reported as 1.
        p.result = i32::from(made.is_err());
        params.set(p)?;
        made?;
        if upload { call.driver.submit(stream, Action::Nothing, call.origin()) } else { Ok(()) }
    }
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
    /// Sets a peak to the current value.
    cuDeviceSetGraphMemAttribute none 11040 Pools (device: i32, number: i32, value: Out<u64>) |call| {
        let device = call.known_device(device)?;
        Code::INVALID_VALUE.when(value.get()? != 0)?;
        let mut state = call.driver.state();
        let pool = state.memory.graph_pool(device)?;
        let pool = state.memory.pool_mut(pool)?;
        match number {
            1 => pool.used_high = pool.used(),
            3 => pool.reserved_high = pool.heap.reserved(),
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
    cuDeviceGetGraphMemAttribute none 11040 Pools (device: i32, number: i32, value: Out<u64>) |call| {
        let device = call.known_device(device)?;
        let mut state = call.driver.state();
        let pool = state.memory.graph_pool(device)?;
        let pool = state.memory.pool(pool)?;
        value.set(match number {
            0 => pool.used(),
            1 => pool.used_high,
            2 => pool.heap.reserved(),
            3 => pool.reserved_high,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}
