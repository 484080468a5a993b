//! Events.

use super::args::Out;
use super::entries;
use crate::error::Code;

entries! {
    cuEventCreate none 2000 Driver (event: Out<u64>, flags: u32) |call| {
        event.make(|| {
            let context = call.context()?;
            call.driver.state().create_event(context, flags)
        })
    }
    cuEventDestroy_v2 none 4000 Driver (event: u64) |call| {
        call.context()?;
        let event = call.event(event)?;
        let mut state = call.driver.state();
        state.events.remove(&event);
        state.end_handle(event, "event", "cuEventDestroy_v2");
        Ok(())
    }
    cuEventRecord ptsz 2000 Driver (event: u64, stream: u64) |call| {
        call.driver.record(call.event(event)?, call.stream(stream)?, call.origin())
    }
    cuEventRecordWithFlags ptsz 11010 Driver (event: u64, stream: u64, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags > 1)?;
        cuEventRecord(call, event, stream)
    }
    cuEventQuery none 2000 Driver (event: u64) |call| { call.driver.query_event(call.event(event)?) }
    cuEventSynchronize none 2000 Driver (event: u64) |call| { call.driver.synchronise_event(call.event(event)?) }
    cuEventElapsedTime none 2000 Driver (milliseconds: Out<f32>, start: u64, end: u64) |call| {
        milliseconds.make(|| {
            call.context()?;
            let (start, end) = (call.event(start)?, call.event(end)?);
            call.driver.state().elapsed(start, end)
        })
    }
    cuEventElapsedTime_v2 none 12080 Driver (milliseconds: Out<f32>, start: u64, end: u64) |call| {
        cuEventElapsedTime(call, milliseconds, start, end)
    }
}
