//! The requests that a recorded allocator refused.

use super::RefusedRequest;
use crate::program::Selection;
use crate::web::text::Count;
use millpond_trace::{Caution, Event, Format, Trace};

/// Returns the requests that the recorded allocator refused, in recorded order.
pub fn refused_requests(trace: &Trace) -> impl Iterator<Item = RefusedRequest> + '_ {
    let all = Selection::default().refused(trace);
    all.filter_map(|(at, _)| request(trace, at))
}

/// Returns the request of an event.
pub(super) fn request(trace: &Trace, at: u32) -> Option<RefusedRequest> {
    let event = trace.events.get(at as usize)?;
    Some(RefusedRequest {
        event: Some(at),
        time_us: time_us(trace, at),
        bytes: event.bytes,
        stream: trace.streams.get(usize::from(event.stream)).copied().unwrap_or(0),
        pool: pool(trace, event.pool),
        tag: trace.tags.get(event.tag).to_owned(),
    })
}

/// Returns the position and the time of an event in words.
pub(crate) fn moment(event: u32, time_us: Option<u64>) -> String {
    let at = format!("at event {}", Count(u64::from(event)));
    match time_us {
        Some(us) => format!("{at}, {:.2} s in", us as f64 / 1e6),
        None => at,
    }
}

/// Returns the time of an event since the recording began, if it has times. Only recordings of this library say when they began. Others
/// began with their first event.
pub(crate) fn time_us(trace: &Trace, event: u32) -> Option<u64> {
    if trace.cautions.iter().any(|c| matches!(c, Caution::NoTimes)) {
        return None;
    }
    let start = match trace.origin.format {
        Format::MillpondRecording => 0,
        _ => trace.events.first()?.time_us,
    };
    Some(trace.events.get(event as usize)?.time_us.saturating_sub(start))
}

pub(super) fn pool(trace: &Trace, pool: u16) -> Option<(u64, u64)> {
    trace.pools.get(usize::from(pool)).copied().filter(|_| pool != 0)
}

/// Returns the bytes that the device had free at an event, if they are recorded.
pub(super) fn device_free(trace: &Trace, event: &Event) -> Option<u64> {
    // Only PyTorch always records them. In other formats 0 means that they are unknown.
    (trace.origin.format == Format::TorchSnapshot || event.address != 0).then_some(event.address)
}
