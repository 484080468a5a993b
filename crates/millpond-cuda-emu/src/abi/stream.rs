//! Streams.

use super::args::Out;
use super::entries;
use crate::calls::Call;
use crate::driver::capture::exchange_mode;
use crate::error::{Answer, Code};
use crate::work::action::{Action, Callback};

fn create(call: &Call, stream: Out<usize>, flags: u32, priority: i32) -> Answer {
    stream.check()?;
    let context = call.context()?;
    let mut state = call.driver.state();
    state.refuse_unsafe(call.thread)?;
    let handle = state.create_stream(context, flags, priority)?;
    drop(state);
    stream.set(handle as usize)
}

entries! {
    cuStreamCreate none 2000 Driver (stream: Out<usize>, flags: u32) |call| { create(call, stream, flags, 0) }
    cuStreamCreateWithPriority none 5050 Driver (stream: Out<usize>, flags: u32, priority: i32) |call| {
        create(call, stream, flags, priority)
    }
    cuStreamDestroy_v2 none 4000 Driver (stream: usize) |call| {
        match stream {
            0..=2 => Err(Code::INVALID_HANDLE),
            _ => call.driver.destroy_stream(call.named_stream(stream)?),
        }
    }
    cuStreamSynchronize ptsz 2000 Driver (stream: usize) |call| { call.driver.synchronise_stream(call.stream(stream)?) }
    cuStreamQuery ptsz 2000 Driver (stream: usize) |call| { call.driver.query_stream(call.stream(stream)?) }
    cuStreamWaitEvent ptsz 3020 Driver (stream: usize, event: usize, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags > 1)?;
        call.driver.wait_event(call.stream(stream)?, call.event(event)?, call.origin())
    }
    cuStreamGetPriority ptsz 5050 Driver (stream: usize, priority: Out<i32>) |call| {
        let stream = call.stream(stream)?;
        priority.set(call.driver.state().stream(stream)?.priority)
    }
    cuStreamGetFlags ptsz 5050 Driver (stream: usize, flags: Out<u32>) |call| {
        let stream = call.stream(stream)?;
        flags.set(call.driver.state().stream(stream)?.flags)
    }
    cuStreamGetCtx ptsz 9020 Driver (stream: usize, context: Out<usize>) |call| {
        let stream = call.stream(stream)?;
        context.set(call.driver.state().stream(stream)?.context as usize)
    }
    cuStreamGetDevice ptsz 12080 Driver (stream: usize, device: Out<i32>) |call| {
        let stream = call.stream(stream)?;
        device.set(call.driver.state().stream(stream)?.device as i32)
    }
    cuStreamGetId ptsz 12000 Driver (stream: usize, id: Out<u64>) |call| { id.set(call.stream(stream)?) }
    cuStreamAddCallback ptsz 5000 Driver (
        stream: usize,
        function: Option<unsafe extern "C" fn(usize, i32, usize)>,
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
        stream: usize,
        function: Option<unsafe extern "C" fn(usize)>,
        data: usize,
    ) |call| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let callback = Callback::Host { function, data };
        call.driver.submit(call.stream(stream)?, Action::Call(callback), call.origin())
    }
    cuStreamAttachMemAsync ptsz 6000 Driver (stream: usize, at: u64, len: usize, flags: u32) |call| {
        let stream = call.stream(stream)?;
        let whole = call.driver.state().memory.block(at).filter(|(base, _)| *base == at).map(|(_, block)| block.len);
        let whole = whole.ok_or(Code::INVALID_VALUE)?;
        let managed = call.driver.state().memory.is_managed(at, whole);
        Code::INVALID_VALUE.when(!managed || len != 0 && len as u64 != whole || !matches!(flags, 1 | 2 | 4))?;
        call.driver.submit(stream, Action::Nothing, call.origin())
    }
    cuStreamBeginCapture_v2 ptsz 10010 Driver (stream: usize, mode: i32) |call| {
        let stream = call.stream(stream)?;
        call.driver.state().begin_capture(stream, mode, call.thread)
    }
    cuStreamEndCapture ptsz 10000 Driver (stream: usize, graph: Out<usize>) |call| {
        let stream = call.stream(stream)?;
        graph.set(0)?;
        let mut state = call.driver.state();
        let made = state.end_capture(stream, call.thread)?;
        match call.fault {
            None => graph.set(made as usize),
            Some(code) => {
                state.destroy_graph(made)?;
                Err(code)
            }
        }
    }
    cuThreadExchangeStreamCaptureMode none 10010 Driver (mode: Out<i32>) |_call| {
        mode.set(exchange_mode(mode.get()?)?)
    }
    cuStreamIsCapturing ptsz 10000 Driver (stream: usize, status: Out<i32>) |call| {
        let stream = call.stream(stream)?;
        status.set(call.driver.state().capture_status(stream)?.0)
    }
    cuStreamGetCaptureInfo ptsz 10010 Driver (stream: usize, status: Out<i32>, id: Out<u64>) |call| {
        let stream = call.stream(stream)?;
        let (found, number) = call.driver.state().capture_status(stream)?;
        id.offer(number);
        status.set(found)
    }
    /// Does not return the growing graph or the nodes that the next one comes after.
    cuStreamGetCaptureInfo_v2 ptsz 11030 Driver (
        stream: usize,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<usize>,
        nodes: Out<usize>,
        count: Out<usize>,
    ) |call| {
        graph.offer(0);
        nodes.offer(0);
        count.offer(0);
        cuStreamGetCaptureInfo(call, stream, status, id)
    }
}
