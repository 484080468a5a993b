//! Streams.

use super::args::Out;
use super::entries;
use crate::calls::Call;
use crate::driver::capture::exchange_mode;
use crate::error::{Answer, Code};
use crate::thread;
use crate::work::action::{Action, Callback};

fn create(call: &Call, stream: Out<u64>, flags: u32, priority: i32) -> Answer {
    stream.make(|| {
        let context = call.context()?;
        call.driver.state().create_stream(context, flags, priority)
    })
}

entries! {
    cuStreamCreate none 2000 Driver (stream: Out<u64>, flags: u32) |call| { create(call, stream, flags, 0) }
    cuStreamCreateWithPriority none 5050 Driver (stream: Out<u64>, flags: u32, priority: i32) |call| {
        create(call, stream, flags, priority)
    }
    cuStreamDestroy_v2 none 4000 Driver (stream: u64) |call| {
        match stream {
            0..=2 => Err(Code::INVALID_HANDLE),
            _ => call.driver.destroy_stream(call.named_stream(stream)?),
        }
    }
    cuStreamSynchronize ptsz 2000 Driver (stream: u64) |call| { call.driver.synchronise_stream(call.stream(stream)?) }
    cuStreamQuery ptsz 2000 Driver (stream: u64) |call| { call.driver.query_stream(call.stream(stream)?) }
    cuStreamWaitEvent ptsz 3020 Driver (stream: u64, event: u64, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags > 1)?;
        call.driver.wait_event(call.stream(stream)?, call.event(event)?, call.origin())
    }
    cuStreamGetPriority ptsz 5050 Driver (stream: u64, priority: Out<i32>) |call| {
        priority.set(call.of_stream(stream, |stream| stream.priority)?)
    }
    cuStreamGetFlags ptsz 5050 Driver (stream: u64, flags: Out<u32>) |call| {
        flags.set(call.of_stream(stream, |stream| stream.flags)?)
    }
    cuStreamGetCtx ptsz 9020 Driver (stream: u64, context: Out<u64>) |call| {
        context.set(call.of_stream(stream, |stream| stream.context)?)
    }
    /// There are no green contexts.
    cuStreamGetCtx_v2 ptsz 12050 Driver (stream: u64, context: Out<u64>, green: Out<u64>) |call| {
        cuStreamGetCtx(call, stream, context)?;
        green.offer(0);
        Ok(())
    }
    cuStreamGetDevice ptsz 12080 Driver (stream: u64, device: Out<i32>) |call| {
        device.set(call.of_stream(stream, |stream| stream.device as i32)?)
    }
    cuStreamGetId ptsz 12000 Driver (stream: u64, id: Out<u64>) |call| { id.set(call.stream(stream)?) }
    cuStreamAddCallback ptsz 5000 Driver (
        stream: u64,
        function: Option<unsafe extern "C" fn(u64, i32, usize)>,
        data: usize,
        flags: u32,
    ) |call| {
        let function = function.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        let found = call.stream(stream)?;
        call.driver.state().refuse_stream_in_capture(found)?;
        let callback = Callback::Stream { function, stream, data };
        call.driver.submit(found, Action::Call(callback), call.origin())
    }
    cuLaunchHostFunc ptsz 10000 Driver (
        stream: u64,
        function: Option<unsafe extern "C" fn(usize)>,
        data: usize,
    ) |call| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let callback = Callback::Host { function, data };
        call.driver.submit(call.stream(stream)?, Action::Call(callback), call.origin())
    }
    /// The mode selects how a waiting thread is notified of the end of the function. It makes no difference here.
    cuLaunchHostFunc_v2 ptsz 13010 Driver (
        stream: u64,
        function: Option<unsafe extern "C" fn(usize)>,
        data: usize,
        mode: u32,
    ) |call| {
        Code::INVALID_VALUE.when(mode > 1)?;
        cuLaunchHostFunc(call, stream, function, data)
    }
    cuStreamAttachMemAsync ptsz 6000 Driver (stream: u64, at: u64, len: usize, flags: u32) |call| {
        let stream = call.stream(stream)?;
        let whole = call.driver.state().memory.block_at(at)?.len;
        let managed = call.driver.state().memory.is_managed(at, whole);
        Code::INVALID_VALUE.when(!managed || len != 0 && len as u64 != whole || !matches!(flags, 1 | 2 | 4))?;
        call.driver.submit(stream, Action::Nothing, call.origin())
    }
    cuStreamBeginCapture_v2 ptsz 10010 Driver (stream: u64, mode: i32) |call| {
        let stream = call.stream(stream)?;
        call.driver.state().begin_capture(stream, mode, call.thread)
    }
    cuStreamEndCapture ptsz 10000 Driver (stream: u64, graph: Out<u64>) |call| {
        let stream = call.stream(stream)?;
        graph.set(0)?;
        let mut state = call.driver.state();
        let made = state.end_capture(stream, call.thread)?;
        match call.fault {
            None => graph.set(made),
            Some(code) => {
                state.destroy_graph(made)?;
                Err(code)
            }
        }
    }
    cuThreadExchangeStreamCaptureMode none 10010 Driver (mode: Out<i32>) |_call| {
        mode.set(exchange_mode(mode.get()?)?)
    }
    cuStreamIsCapturing ptsz 10000 Driver (stream: u64, status: Out<i32>) |call| {
        let stream = call.stream(stream)?;
        status.set(call.driver.state().capture_status(stream)?.0)
    }
    cuStreamGetCaptureInfo ptsz 10010 Driver (stream: u64, status: Out<i32>, id: Out<u64>) |call| {
        let stream = call.stream(stream)?;
        let (found, number) = call.driver.state().capture_status(stream)?;
        id.offer(number);
        status.set(found)
    }
    /// Also returns the growing graph, and the nodes that the next one comes after. The driver owns the list of nodes, which stays valid
    /// until the thread's next call of this function.
    cuStreamGetCaptureInfo_v2 ptsz 11030 Driver (
        stream: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        nodes: Out<u64>,
        count: Out<usize>,
    ) |call| {
        cuStreamGetCaptureInfo(call, stream, status, id)?;
        let stream = call.stream(stream)?;
        let state = call.driver.state();
        let capture = state.stream(stream)?.capture;
        let (growing, tails) = capture.and_then(|capture| state.growing(capture, stream)).unwrap_or_default();
        graph.offer(growing);
        count.offer(tails.len());
        nodes.offer(thread::keep(tails) as u64);
        Ok(())
    }
    cuStreamGetCaptureInfo_v3 ptsz 12030 Driver (
        stream: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        nodes: Out<u64>,
        edges: Out<u64>,
        count: Out<usize>,
    ) |call| {
        edges.offer(0);
        cuStreamGetCaptureInfo_v2(call, stream, status, id, graph, nodes, count)
    }
}
