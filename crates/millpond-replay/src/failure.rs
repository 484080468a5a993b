//! Explains why a policy ran out of memory, and what would have made the request fit.

use crate::outcome::{Failure, Holder};
use crate::program::Program;
use crate::run::{Run, Stop};
use crate::tags::tag_group;
use millpond_engine::display_size;
use millpond_trace::{OLDER, Trace};
use std::collections::HashMap;

/// The most groups that are shown.
const HOLDERS: usize = 8;

/// Explains where a replay stopped.
pub(crate) fn explain(
    trace: &Trace,
    program: &Program,
    stop: &Stop,
    outcome: &Run,
    capacity: Option<u64>,
) -> Failure {
    let op = &program.ops[stop.op];
    let held: u64 = outcome.stats.requested.current;
    let cached = outcome.stats.cached();
    let tag = op
        .event()
        .and_then(|e| trace.events.get(e as usize))
        .map_or(0, |e| e.tag);
    Failure {
        event: op.event(),
        bytes: op.bytes,
        stream: trace.streams.get(usize::from(op.stream)).copied().unwrap_or(0),
        tag: trace.tags.get(tag).to_owned(),
        held_bytes: held,
        free_bytes: stop.device_free,
        largest_hole_bytes: stop.largest_hole,
        reserved_bytes: outcome.stats.reserved.current,
        cached_bytes: cached,
        holders: holders(trace, program, stop.op, HOLDERS),
        remedy: remedy(op.bytes, held, cached, stop, capacity),
    }
}

/// Returns the groups that hold the most after the first `ops` calls, the largest first.
#[must_use]
pub fn holders(trace: &Trace, program: &Program, ops: usize, most: usize) -> Vec<Holder> {
    let mut by_tag: HashMap<(u32, bool), (u64, u64)> = HashMap::new();
    for op in program.held_after(ops) {
        let tag = match op.event() {
            Some(event) => trace.events.get(event as usize).map_or(0, |e| e.tag),
            None => trace
                .initial_blocks
                .get(op.allocation as usize)
                .map_or(0, |b| b.tag),
        };
        let older = op.event().is_none() && (op.allocation as usize) < trace.initial_blocks.len();
        let entry = by_tag.entry((tag, older)).or_default();
        *entry = (entry.0.saturating_add(op.bytes), entry.1 + 1);
    }
    let mut groups: HashMap<String, (u64, u64)> = HashMap::new();
    for ((tag, older), (bytes, blocks)) in by_tag {
        let tag = trace.tags.get(tag);
        let group = if older && tag.is_empty() {
            OLDER.to_owned()
        } else {
            tag_group(tag)
        };
        let entry = groups.entry(group).or_default();
        *entry = (entry.0.saturating_add(bytes), entry.1 + blocks);
    }
    let mut holders: Vec<Holder> = groups
        .into_iter()
        .map(|(tag, (bytes, blocks))| Holder { tag, bytes, blocks })
        .collect();
    holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.tag.cmp(&b.tag)));
    holders.truncate(most);
    holders
}

/// Returns the remedy for one of these cases: the program holds too much for any placement, the policy does
/// not use memory that is free, its rounding took the missing bytes, or the free memory is in pieces.
fn remedy(bytes: u64, held: u64, cached: u64, stop: &Stop, capacity: Option<u64>) -> String {
    let capacity = capacity.unwrap_or(u64::MAX);
    let wanted = held.saturating_add(bytes);
    let (hole, left) = (stop.largest_hole, stop.device_free);
    if wanted > capacity {
        return format!(
            "no allocator can serve this: the program itself holds {} and asks for {}, {} more than the device has; free that much first or use a larger device",
            display_size(held),
            display_size(bytes),
            display_size(wanted - capacity)
        );
    }
    if left >= bytes {
        return format!(
            "the device still has {}, enough for the request itself: this policy asks for more at a time than that, or has a limit of its own; another policy would serve it",
            display_size(left)
        );
    }
    if hole >= bytes {
        return format!(
            "a free block of {} exists, but this policy does not hand it to this request (another stream, size class or private pool)",
            display_size(hole)
        );
    }
    if left.saturating_add(cached) < bytes {
        let rounding = capacity
            .saturating_sub(left)
            .saturating_sub(cached)
            .saturating_sub(held);
        return format!(
            "only {} are free in all: this policy's rounding takes {} beyond what the program holds; one that rounds less would serve it",
            display_size(left.saturating_add(cached)),
            display_size(rounding)
        );
    }
    format!(
        "{} are free in pieces of at most {} and {} left on the device: the request would fit if free pages could be joined, as paged policies do",
        display_size(cached),
        display_size(hole),
        display_size(left)
    )
}
