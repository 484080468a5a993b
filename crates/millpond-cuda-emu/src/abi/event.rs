//! Events.

use super::args::Out;
use super::entries;
use crate::calls::Call;
use crate::error::{Answer, Code};

fn elapsed(call: &Call, milliseconds: Out<f32>, start: usize, end: usize) -> Answer {
    milliseconds.check()?;
    let (start, end) = (call.event(start)?, call.event(end)?);
    let time = call.driver.state().elapsed(start, end)?;
    milliseconds.set(time)
}

entries! {
    cuEventCreate none 2000 Driver (event: Out<usize>, flags: u32) |call| {
        event.check()?;
        let context = call.context()?;
        let mut state = call.driver.state();
        state.refuse_doubtful(call.thread)?;
        let handle = state.create_event(context, flags)?;
        drop(state);
        event.set(handle as usize)
    }
    cuEventDestroy_v2 none 4000 Driver (event: usize) |call| {
        let event = call.event(event)?;
        let mut state = call.driver.state();
        state.events.remove(&event);
        state.end_handle(event, "event", "cuEventDestroy_v2");
        Ok(())
    }
    cuEventRecord ptsz 2000 Driver (event: usize, stream: usize) |call| {
        call.driver.record(call.event(event)?, call.stream(stream)?, call.origin())
    }
    cuEventRecordWithFlags ptsz 11010 Driver (event: usize, stream: usize, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags > 1)?;
        call.driver.record(call.event(event)?, call.stream(stream)?, call.origin())
    }
    cuEventQuery none 2000 Driver (event: usize) |call| { call.driver.query_event(call.event(event)?) }
    cuEventSynchronize none 2000 Driver (event: usize) |call| { call.driver.synchronise_event(call.event(event)?) }
    cuEventElapsedTime none 2000 Driver (milliseconds: Out<f32>, start: usize, end: usize) |call| {
        elapsed(call, milliseconds, start, end)
    }
    cuEventElapsedTime_v2 none 12080 Driver (milliseconds: Out<f32>, start: usize, end: usize) |call| {
        elapsed(call, milliseconds, start, end)
    }
}
