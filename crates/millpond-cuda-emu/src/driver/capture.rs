//! Graphs: work that is assembled by hand or captured from streams, and launched as a whole.
//!
//! The memory of graphs comes from a separate pool on each device. An address stays allocated until its graph and everything
//! instantiated from it are destroyed. So a launch finds its memory where the capture saw it.
#![forbid(unsafe_code)]

use super::stream::{After, Stream, StreamKind};
use super::{Driver, State};
use crate::access::Origin;
use crate::clock::Clock;
use crate::error::{Answer, Code};
use crate::memory::pool::Asker;
use crate::thread;
use crate::work::action::Action;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of a node, numbered as in `CUgraphNodeType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Kernel = 0,
    Copy = 1,
    Fill = 2,
    Host = 3,
    Empty = 5,
    Allocate = 10,
    Free = 11,
}

impl NodeKind {
    pub(super) fn of(action: &Action) -> Self {
        match action {
            Action::Kernel(_) => Self::Kernel,
            Action::Copy { .. } => Self::Copy,
            Action::Fill { .. } => Self::Fill,
            Action::Call(_) => Self::Host,
            Action::Nothing | Action::Prefetch { .. } | Action::Tell(_) | Action::Await(_) => Self::Empty,
        }
    }
}

/// One node. Nodes are stored in an order in which they may run.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) kind: NodeKind,
    action: Action,
    origin: Origin,
    pub(super) after: Vec<usize>,
}

/// A graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(super) memory: GraphMemory,
}

/// Blocks that a graph and everything instantiated from it own together.
type GraphMemory = Vec<Arc<u64>>;

/// A graph ready to be launched.
#[derive(Debug)]
pub(crate) struct Executable {
    nodes: Vec<Node>,
    memory: GraphMemory,
    pub(crate) flags: u64,
    /// Orders two launches of the same graph, which must not overlap.
    last: After,
}

/// The values of `CUstreamCaptureMode`.
const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

thread_local! {
    /// Which captures forbid unsafe calls of this thread: those of all threads, its own, or none.
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// Sets the calling thread's mode, and returns the previous one.
pub(crate) fn exchange_mode(mode: i32) -> Answer<i32> {
    match mode {
        GLOBAL | THREAD_LOCAL | RELAXED => Ok(MODE.replace(mode)),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capture {
    stream: u64,
    context: u64,
    /// Which threads' unsafe calls the capture forbids: `CUstreamCaptureMode`.
    mode: i32,
    thread: u64,
    graph: Graph,
    /// The handle of the graph, which clients may use while it grows.
    handle: u64,
    /// The nodes that come before the next node of each stream.
    tails: BTreeMap<u64, Vec<usize>>,
    invalid: bool,
}

impl State {
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: i32, thread: u64) -> Answer {
        Code::INVALID_VALUE.when(!(GLOBAL..=RELAXED).contains(&mode))?;
        let found = self.stream(stream)?;
        Code::STREAM_CAPTURE_UNSUPPORTED.when(found.kind == StreamKind::Legacy)?;
        Code::ILLEGAL_STATE.when(found.capture.is_some())?;
        let context = found.context;
        let (handle, graph) = (self.new_handle(), self.new_handle());
        let capture = Capture {
            stream,
            context,
            mode,
            thread,
            graph: Graph::default(),
            handle: graph,
            tails: [(stream, Vec::new())].into(),
            invalid: false,
        };
        self.captures.insert(handle, capture);
        self.stream_mut(stream)?.capture = Some(handle);
        Ok(())
    }

    /// Ends a capture on the stream where it began. The capture has ended even if this returns an error, which it does if another thread
    /// calls it. A second call is refused.
    pub(crate) fn end_capture(&mut self, stream: u64, thread: u64) -> Answer<u64> {
        let handle = self.stream(stream)?.capture.ok_or(Code::ILLEGAL_STATE)?;
        let capture = self.captures.get(&handle).ok_or(Code::ILLEGAL_STATE)?;
        Code::STREAM_CAPTURE_UNMATCHED.when(capture.stream != stream)?;
        let foreign = capture.thread != thread && capture.mode != RELAXED;
        let capture = self.captures.remove(&handle).ok_or(Code::ILLEGAL_STATE)?;
        for stream in self.streams.values_mut() {
            stream.capture.take_if(|capture| *capture == handle);
        }
        for event in self.events.values_mut() {
            event.captured.take_if(|captured| captured.0 == handle);
        }
        let tails = capture.tails.get(&stream).map_or(&[][..], Vec::as_slice);
        let joined = || Code::STREAM_CAPTURE_UNJOINED.when(!capture.graph.all_before(tails));
        let own = Code::STREAM_CAPTURE_WRONG_THREAD.when(foreign);
        let valid = || Code::STREAM_CAPTURE_INVALIDATED.when(capture.invalid);
        if let Err(code) = own.and_then(|()| valid()).and_then(|()| joined()) {
            self.free_graph_memory(capture.graph.memory);
            return Err(code);
        }
        self.graphs.insert(capture.handle, capture.graph);
        Ok(capture.handle)
    }

    /// Returns the growing graph of a capture, and the nodes that the next one of the stream comes after.
    pub(crate) fn growing(&self, capture: u64, stream: u64) -> Option<(u64, Vec<u64>)> {
        let capture = self.captures.get(&capture)?;
        let tails = capture.tails.get(&stream).map_or(&[][..], Vec::as_slice);
        let nodes = tails.iter().map(|index| capture.graph.nodes[*index].handle);
        Some((capture.handle, nodes.collect()))
    }

    /// Returns the status and the capture's number. The status is 0 for none, 1 for active, and 2 for invalidated.
    pub(crate) fn capture_status(&self, stream: u64) -> Answer<(i32, u64)> {
        let found = self.stream(stream)?;
        if found.kind == StreamKind::Legacy && self.blocking_capture(found.context).is_some() {
            // Its status would depend on the other captures. The query does not harm them.
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        let Some(handle) = found.capture else {
            return Ok((0, 0));
        };
        let invalid = self.captures.get(&handle).is_none_or(|capture| capture.invalid);
        Ok((if invalid { 2 } else { 1 }, handle))
    }

    /// Invalidates a capture because of a call that the code refuses, and returns the code as an error.
    pub(crate) fn invalidate(&mut self, capture: u64, code: Code) -> Answer {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid = true;
        }
        Err(code)
    }

    fn active(&mut self, capture: u64) -> Answer<&mut Capture> {
        let found = self.captures.get_mut(&capture).ok_or(Code::ILLEGAL_STATE)?;
        Code::STREAM_CAPTURE_INVALIDATED.when(found.invalid)?;
        Ok(found)
    }

    /// Adds a node to a capture after the nodes of its stream.
    pub(super) fn capture_node(
        &mut self,
        capture: u64,
        stream: u64,
        kind: NodeKind,
        action: Action,
        origin: Origin,
    ) -> Answer {
        let handle = self.new_handle();
        let after = self.capture_tail(capture, stream)?;
        let capture = self.active(capture)?;
        capture.graph.nodes.push(Node {
            handle,
            kind,
            action,
            origin,
            after,
        });
        capture.tails.insert(stream, vec![capture.graph.nodes.len() - 1]);
        Ok(())
    }

    /// Returns the nodes that an event recorded now stands for.
    pub(crate) fn capture_tail(&mut self, capture: u64, stream: u64) -> Answer<Vec<usize>> {
        let tails = self.active(capture)?.tails.get(&stream);
        Ok(tails.cloned().unwrap_or_default())
    }

    /// Makes a stream that waits for a captured event join the capture.
    pub(crate) fn join_capture(&mut self, capture: u64, stream: u64, nodes: &[usize]) -> Answer {
        let found = self.stream(stream)?;
        if found.kind == StreamKind::Legacy {
            return self.invalidate(capture, Code::STREAM_CAPTURE_IMPLICIT);
        }
        if found.capture.is_some_and(|other| other != capture) {
            return self.invalidate(capture, Code::STREAM_CAPTURE_MERGE);
        }
        self.active(capture)?;
        self.stream_mut(stream)?.capture = Some(capture);
        let tails = self.active(capture)?.tails.entry(stream).or_default();
        tails.extend(nodes);
        tails.sort_unstable();
        tails.dedup();
        Ok(())
    }

    /// Refuses a call that waits for a stream, because it cannot be captured.
    pub(crate) fn refuse_stream_in_capture(&mut self, stream: u64) -> Answer {
        let found = self.stream(stream)?;
        if let Some(capture) = found.capture {
            return self.invalidate(capture, Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if found.kind == StreamKind::Legacy {
            self.refuse_legacy_in_capture(stream)
        } else {
            Ok(())
        }
    }

    /// Refuses work on the legacy stream that would wait for blocking streams that are captured.
    pub(crate) fn refuse_legacy_in_capture(&mut self, stream: u64) -> Answer {
        let found = self.stream(stream)?;
        if found.kind != StreamKind::Legacy || self.captures.is_empty() {
            return Ok(());
        }
        let capture = self.blocking_capture(found.context);
        capture.map_or(Ok(()), |capture| {
            self.invalidate(capture, Code::STREAM_CAPTURE_IMPLICIT)
        })
    }

    /// Returns the capture of a blocking stream in a context, if any. Such streams are ordered with the legacy stream.
    fn blocking_capture(&self, context: u64) -> Option<u64> {
        let blocking = |other: &&Stream| other.context == context && other.kind == StreamKind::Blocking;
        let mut streams = self.streams.values().filter(blocking);
        streams.find_map(|other| other.capture)
    }

    /// Refuses a wait for a whole context while a stream of it is captured in any mode, because captured work cannot be waited
    /// for.
    pub(crate) fn refuse_in_capture(&mut self, context: u64) -> Answer {
        self.refuse_where(|capture| capture.context == context)
    }

    /// Invalidates all captures that conflict with a call, and refuses the call if there are any.
    fn refuse_where(&mut self, conflicts: impl Fn(&Capture) -> bool) -> Answer {
        let mut answer = Ok(());
        for capture in self.captures.values_mut().filter(|capture| conflicts(capture)) {
            capture.invalid = true;
            answer = Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        answer
    }

    /// Refuses a call that CUDA names potentially unsafe, such as a plain allocation, a call on a pool, or a wait for another stream, while
    /// a capture forbids it. These are the calls that a driver for CUDA 13.0 refuses (`docs/measured/h200.md`). The calling thread's mode
    /// ([`exchange_mode`]) decides which captures forbid it. A global capture of another
    /// thread forbids the call too. All captures that forbid the call are invalidated.
    pub(crate) fn refuse_unsafe(&mut self, thread: u64) -> Answer {
        let cares = MODE.get();
        self.refuse_where(|capture| match (cares, capture.mode) {
            (RELAXED, _) | (_, RELAXED) => false,
            (GLOBAL, GLOBAL) => true,
            _ => capture.thread == thread,
        })
    }

    /// Allocates memory for a graph. Its address stays allocated until the graph is gone.
    fn graph_block(&mut self, device: u32, bytes: u64, origin: Origin) -> Answer<u64> {
        let pool = self.memory.graph_pool(device)?;
        let clock = Clock::default();
        let asker = Asker {
            stream: 0,
            clock: &clock,
            done: &|_| false,
        };
        Ok(self.memory.pool_allocate(pool, bytes, &asker, origin)?.0)
    }

    /// Allocates memory on a stream that is captured.
    pub(crate) fn capture_allocate(
        &mut self,
        capture: u64,
        stream: u64,
        bytes: u64,
        origin: Origin,
    ) -> Answer<u64> {
        self.active(capture)?;
        let device = self.stream(stream)?.device;
        let at = self.graph_block(device, bytes, origin)?;
        self.capture_node(capture, stream, NodeKind::Allocate, Action::Nothing, origin)?;
        self.active(capture)?.graph.memory.push(Arc::new(at));
        Ok(at)
    }

    pub(crate) fn capture_free(&mut self, capture: u64, stream: u64, origin: Origin) -> Answer {
        self.capture_node(capture, stream, NodeKind::Free, Action::Nothing, origin)
    }

    fn free_graph_memory(&mut self, memory: GraphMemory) {
        for at in memory.into_iter().filter_map(Arc::into_inner) {
            let _ = self.memory.free(at);
        }
    }

    pub(crate) fn create_graph(&mut self) -> u64 {
        let handle = self.new_handle();
        self.graphs.insert(handle, Graph::default());
        handle
    }

    pub(crate) fn graph(&self, handle: u64) -> Answer<&Graph> {
        let growing = || self.captures.values().find(|capture| capture.handle == handle);
        let graph = self.graphs.get(&handle);
        let graph = graph.or_else(|| growing().map(|capture| &capture.graph));
        graph.ok_or(Code::INVALID_VALUE)
    }

    /// Adds a node that comes after existing nodes, so that the nodes stay in an order in which they may run.
    pub(crate) fn add_node(
        &mut self,
        graph: u64,
        after: &[u64],
        kind: Option<NodeKind>,
        action: Action,
        origin: Origin,
    ) -> Answer<u64> {
        let found = self.graph(graph)?;
        let index = |handle: &u64| {
            let index = found.nodes.iter().position(|node| node.handle == *handle);
            index.ok_or(Code::INVALID_VALUE)
        };
        let after = after.iter().map(index).collect::<Answer<Vec<_>>>()?;
        let handle = self.new_handle();
        let kind = kind.unwrap_or(NodeKind::of(&action));
        let graph = self.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        graph.nodes.push(Node {
            handle,
            kind,
            action,
            origin,
            after,
        });
        Ok(handle)
    }

    pub(crate) fn add_allocation(
        &mut self,
        graph: u64,
        after: &[u64],
        device: u32,
        bytes: u64,
        origin: Origin,
    ) -> Answer<(u64, u64)> {
        self.graph(graph)?;
        let at = self.graph_block(device, bytes, origin)?;
        match self.add_node(graph, after, Some(NodeKind::Allocate), Action::Nothing, origin) {
            Ok(node) => {
                let graph = self.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
                graph.memory.push(Arc::new(at));
                Ok((node, at))
            }
            Err(code) => {
                let _ = self.memory.free(at);
                Err(code)
            }
        }
    }

    pub(crate) fn node_kind(&self, node: u64) -> Answer<NodeKind> {
        let mut nodes = self.graphs.values().flat_map(|graph| &graph.nodes);
        let found = nodes.find(|found| found.handle == node);
        Ok(found.ok_or(Code::INVALID_VALUE)?.kind)
    }

    pub(crate) fn instantiate(&mut self, graph: u64, flags: u64) -> Answer<u64> {
        // The flags are: free at launch, upload, launch by the device, and priorities of nodes. The first and third exclude
        // each other.
        Code::INVALID_VALUE.when(flags & !15 != 0 || flags & 5 == 5)?;
        Code::NOT_SUPPORTED.when(flags & 4 != 0)?;
        let graph = self.graph(graph)?;
        let executable = Executable {
            nodes: graph.nodes.clone(),
            memory: graph.memory.clone(),
            flags,
            last: After::default(),
        };
        let handle = self.new_handle();
        self.executables.insert(handle, executable);
        Ok(handle)
    }

    pub(crate) fn destroy_graph(&mut self, handle: u64) -> Answer {
        let graph = self.graphs.remove(&handle).ok_or(Code::INVALID_VALUE)?;
        self.free_graph_memory(graph.memory);
        Ok(())
    }

    /// Queues all nodes of a graph on a stream. Returns the last piece of work, which comes after all of them.
    fn queue_graph(&mut self, handle: u64, stream: u64, origin: Origin) -> Answer<Option<u64>> {
        let executable = self.executables.get(&handle).ok_or(Code::INVALID_VALUE)?;
        let (nodes, last) = (executable.nodes.clone(), executable.last.clone());
        if let Some(capture) = self.stream(stream)?.capture {
            return self.capture_graph(capture, stream, nodes).map(|()| None);
        }
        let Some(start) = self.enqueue_after(stream, Action::Nothing, origin, &last)? else {
            return Ok(None);
        };
        let start = (start, self.stream(stream)?.end);
        let mut done: Vec<(u64, u64)> = Vec::new();
        for node in nodes {
            let before = node.after.iter().filter_map(|index| done.get(*index));
            let mut after = After::default();
            for (task, end) in before.chain([&start]) {
                after.add(*task, *end);
            }
            let origin = Origin {
                call: node.origin.call,
                ..origin
            };
            let task = self.put(stream, node.action, origin, &after)?;
            done.push((task, self.stream(stream)?.end));
        }
        let mut after = After::default();
        for (task, end) in done.iter().chain([&start]) {
            after.add(*task, *end);
        }
        let task = self.put(stream, Action::Nothing, origin, &after)?;
        let found = self.stream(stream)?;
        let last = After {
            tasks: vec![task],
            end: found.end,
            clock: found.clock.clone(),
        };
        if let Some(executable) = self.executables.get_mut(&handle) {
            executable.last = last;
        }
        Ok(Some(task))
    }

    /// Adds the nodes of a graph that is launched on a captured stream to the captured graph.
    fn capture_graph(&mut self, capture: u64, stream: u64, nodes: Vec<Node>) -> Answer {
        let first = self.active(capture)?.graph.nodes.len();
        let roots = self.capture_tail(capture, stream)?;
        for mut node in nodes {
            node.handle = self.new_handle();
            node.after.iter_mut().for_each(|index| *index += first);
            if node.after.is_empty() {
                node.after.clone_from(&roots);
            }
            self.active(capture)?.graph.nodes.push(node);
        }
        let capture = self.active(capture)?;
        let mut tails: Vec<usize> = (first..capture.graph.nodes.len()).collect();
        tails.extend(roots);
        capture.tails.insert(stream, tails);
        Ok(())
    }
}

impl Graph {
    /// Returns whether every node is one of these or comes before one of them.
    fn all_before(&self, tails: &[usize]) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let mut open = tails.to_vec();
        while let Some(index) = open.pop() {
            if let Some(seen) = reached.get_mut(index)
                && !*seen
            {
                *seen = true;
                open.extend(&self.nodes[index].after);
            }
        }
        reached.into_iter().all(|seen| seen)
    }
}

impl Driver {
    pub(crate) fn launch_graph(&self, handle: u64, stream: u64, origin: Origin) -> Answer {
        let mut state = self.state();
        if let Some(task) = state.queue_graph(handle, stream, origin)? {
            self.queued(state, task, stream);
        }
        Ok(())
    }

    pub(crate) fn destroy_executable(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_unsafe(thread::number())?;
        let executable = state.executables.get(&handle).ok_or(Code::INVALID_VALUE)?;
        let last = executable.last.tasks.clone();
        let mut state = self.shared.wait_for(state, &last);
        if let Some(executable) = state.executables.remove(&handle) {
            state.free_graph_memory(executable.memory);
        }
        Ok(())
    }
}
