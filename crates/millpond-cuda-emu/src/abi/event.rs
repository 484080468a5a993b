//! Events.

use super::args::Out;
use super::entries;
use crate::calls::Call;
use crate::error::{Answer, Code};

fn elapsed(call: &Call, milliseconds: Out<f32>, start: usize, end: usize) -> Answer {
    milliseconds.check()?;
    let time = call.driver.state().elapsed(start as u64, end as u64)?;
    milliseconds.set(time)
}

entries! {
    cuEventCreate none 2000 Driver (event: Out<usize>, flags: u32) |call| {
        event.check()?;
        let context = call.context()?;
        let handle = call.driver.state().create_event(context, flags)?;
        event.set(handle as usize)
    }
    cuEventDestroy_v2 none 4000 Driver (event: usize) |call| {
        call.driver.state().events.remove(&(event as u64)).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
    cuEventRecord ptsz 2000 Driver (event: usize, stream: usize) |call| {
        call.driver.record(event as u64, call.stream(stream)?, call.origin())
    }
    cuEventRecordWithFlags ptsz 11010 Driver (event: usize, stream: usize, flags: u32) |call| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        call.driver.record(event as u64, call.stream(stream)?, call.origin())
    }
    cuEventQuery none 2000 Driver (event: usize) |call| { call.driver.query_event(event as u64) }
    cuEventSynchronize none 2000 Driver (event: usize) |call| { call.driver.synchronise_event(event as u64) }
    cuEventElapsedTime none 2000 Driver (milliseconds: Out<f32>, start: usize, end: usize) |call| {
        elapsed(call, milliseconds, start, end)
    }
    cuEventElapsedTime_v2 none 12080 Driver (milliseconds: Out<f32>, start: usize, end: usize) |call| {
        elapsed(call, milliseconds, start, end)
    }
}
