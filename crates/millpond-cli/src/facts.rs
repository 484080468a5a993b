//! The contents of a recording, in the shape of the JSON of `millpond info`.

use crate::state::State;
use millpond_replay::{Program, RefusedRequest, Selection, holders, refused_requests, tag_group};
use millpond_trace::{Action, Caution, Format, PoolState, Recording, Settings, Trace};
use serde::Serialize;
use std::collections::HashSet;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// The number of tag groups that are listed at the peak.
const HOLDERS: usize = 5;

/// The number of refused requests that are listed before the last one.
const REFUSED: usize = 4;

/// One file.
#[derive(Debug, Serialize)]
pub(crate) struct FileFacts {
    pub(crate) schema: u32,
    pub(crate) name: String,
    pub(crate) format: &'static str,
    pub(crate) file_bytes: Option<u64>,
    pub(crate) replayable: bool,
    pub(crate) header: Vec<(String, String)>,
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) missing: Vec<String>,
}

/// One device of a file.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceFacts {
    pub(crate) device: i32,
    pub(crate) history: Option<History>,
    pub(crate) state: Vec<PoolFacts>,
    /// The segments, if the device has no history.
    pub(crate) segments: Option<State>,
    pub(crate) missing: Vec<String>,
}

/// The events of a device.
#[derive(Debug, Serialize)]
pub(crate) struct History {
    pub(crate) events: u64,
    pub(crate) allocations: u64,
    pub(crate) events_by_kind: Vec<(&'static str, u64)>,
    pub(crate) time_span_us: Option<u64>,
    pub(crate) streams: Vec<u64>,
    pub(crate) private_pools: u64,
    /// The number of different tags of blocks. A tag with a stack is a call site.
    pub(crate) tags: u64,
    /// The number of groups that reports and views show: tags of blocks, where tags that differ only in numbers are one group.
    pub(crate) tag_groups: u64,
    pub(crate) initial_segments: u64,
    pub(crate) initial_segment_bytes: u64,
    pub(crate) initial_blocks: u64,
    pub(crate) initial_block_bytes: u64,
    pub(crate) peak_requested_bytes: u64,
    pub(crate) peak_event: Option<u64>,
    pub(crate) peak_time_us: Option<u64>,
    pub(crate) peak_holders: Vec<(String, u64)>,
    pub(crate) held_at_end_bytes: u64,
    pub(crate) held_at_end_blocks: u64,
    pub(crate) recorded_peak_reserved_bytes: Option<u64>,
    /// The first requests that were refused, and the last one.
    pub(crate) out_of_memory: Vec<RefusedRequest>,
}

/// The state of a pool when the snapshot was written.
#[derive(Debug, Serialize)]
pub(crate) struct PoolFacts {
    pub(crate) pool: String,
    pub(crate) segments: u64,
    pub(crate) blocks: u64,
    pub(crate) pending_blocks: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) active_bytes: u64,
    pub(crate) reserved_bytes: u64,
}

/// Collects the contents of a recording.
pub(crate) fn gather(recording: &Recording, file_bytes: Option<u64>) -> FileFacts {
    let mut ordinals: Vec<i32> = recording.traces.iter().map(|trace| trace.origin.device).collect();
    ordinals.extend(recording.states.iter().map(|state| state.device));
    ordinals.sort_unstable();
    ordinals.dedup();
    let devices = ordinals.into_iter().map(|device| {
        let trace = recording
            .traces
            .iter()
            .find(|trace| trace.origin.device == device);
        let state = recording.states.iter().find(|state| state.device == device);
        let standing = recording.standing.iter().find(|of| of.origin.device == device);
        let missing = match trace {
            Some(trace) => trace.cautions.iter().flat_map(Caution::sentences).collect(),
            None => {
                vec!["no history was recorded: only the state can be shown".to_owned()]
            }
        };
        let pools = state.map(|state| state.pools.iter().map(pool_facts).collect());
        DeviceFacts {
            device,
            history: trace.map(history),
            state: pools.unwrap_or_default(),
            segments: standing.map(|of| State::new(of, None)),
            missing,
        }
    });
    FileFacts {
        schema: SCHEMA,
        name: recording.name.clone(),
        format: format_name(recording.format),
        file_bytes,
        replayable: !recording.traces.is_empty(),
        header: recording
            .traces
            .first()
            .map(|trace| trace.origin.header.clone())
            .unwrap_or_default(),
        settings: settings(&recording.settings),
        devices: devices.collect(),
        missing: recording.cautions.iter().map(ToString::to_string).collect(),
    }
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::TorchSnapshot => "PyTorch snapshot",
        Format::RmmCsv => "RMM log",
        Format::MillpondCsv => "Millpond CSV",
        Format::ChromeTrace => "chrome trace",
        Format::MillpondRecording => "Millpond recording",
    }
}

/// Returns the recorded settings in the form of environment variables.
fn settings(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if let Some(conf) = settings.conf.as_ref().filter(|conf| !conf.is_empty()) {
        found.push(("PYTORCH_CUDA_ALLOC_CONF", conf.clone()));
    }
    if let Some(on) = settings.expandable_segments {
        found.push((
            "expandable_segments",
            if on { "True" } else { "False" }.to_owned(),
        ));
    }
    if let Some(bytes) = settings.max_split_size {
        found.push(("max_split_size_mb", (bytes >> 20).to_string()));
    }
    if let Some(share) = settings.garbage_collection_threshold {
        found.push(("garbage_collection_threshold", share.to_string()));
    }
    let rounded = settings
        .roundup_power2_divisions
        .iter()
        .filter(|(_, steps)| *steps > 1);
    let rounded: Vec<String> = rounded
        .map(|(bytes, steps)| format!("{}:{steps}", bytes >> 20))
        .collect();
    if !rounded.is_empty() {
        found.push(("roundup_power2_divisions", format!("[{}]", rounded.join(","))));
    }
    found
}

fn pool_facts(pool: &PoolState) -> PoolFacts {
    let owner = match pool.pool {
        (0, 0) => "default".to_owned(),
        (a, b) => format!("private ({a}, {b})"),
    };
    PoolFacts {
        pool: format!("{owner}, {}", if pool.small { "small" } else { "large" }),
        segments: pool.segments,
        blocks: pool.blocks,
        pending_blocks: pool.pending_blocks,
        requested_bytes: pool.requested_bytes,
        allocated_bytes: pool.allocated_bytes,
        active_bytes: pool.active_bytes,
        reserved_bytes: pool.reserved_bytes,
    }
}

fn history(trace: &Trace) -> History {
    let timed = !trace
        .cautions
        .iter()
        .any(|caution| matches!(caution, Caution::NoTimes));
    let first = trace.events.first().map_or(0, |event| event.time_us);
    let last = trace
        .events
        .iter()
        .map(|event| event.time_us)
        .max()
        .unwrap_or(first);
    let program = Program::as_recorded(trace, Selection::default()).ok();
    let tags = tags(trace);
    let peak_event = program
        .as_ref()
        .and_then(|p| p.ops.get(p.peak_op))
        .and_then(millpond_replay::Op::event);
    let at = peak_event.and_then(|event| trace.events.get(event as usize));
    let held = program
        .as_ref()
        .map(|p| p.held_after(p.ops.len()))
        .unwrap_or_default();
    History {
        events: trace.events.len() as u64,
        allocations: trace
            .events
            .iter()
            .filter(|event| event.action == Action::Alloc)
            .count() as u64,
        events_by_kind: by_kind(trace),
        time_span_us: timed.then(|| last.saturating_sub(first)),
        streams: trace.streams.clone(),
        private_pools: trace.pools.len().saturating_sub(1) as u64,
        tags: tags.iter().filter(|tag| **tag > 0).count() as u64,
        tag_groups: tag_groups(trace, &tags),
        initial_segments: trace.initial_segments.len() as u64,
        initial_segment_bytes: total(trace.initial_segments.iter().map(|s| s.bytes)),
        initial_blocks: trace.initial_blocks.len() as u64,
        initial_block_bytes: total(trace.initial_blocks.iter().map(|b| b.requested)),
        peak_requested_bytes: program.as_ref().map_or(0, |p| p.peak_requested),
        peak_event: peak_event.map(u64::from),
        peak_time_us: at
            .filter(|_| timed)
            .map(|event| event.time_us.saturating_sub(first)),
        peak_holders: program.as_ref().map_or_else(Vec::new, |p| {
            let held = holders(trace, p, p.peak_op + 1, HOLDERS);
            held.into_iter()
                .map(|holder| (holder.tag, holder.bytes))
                .collect()
        }),
        held_at_end_bytes: total(held.iter().map(|op| op.bytes)),
        held_at_end_blocks: held.len() as u64,
        recorded_peak_reserved_bytes: trace.recorded_peak_reserved,
        out_of_memory: out_of_memory(trace),
    }
}

/// Returns the first refused requests and the last one.
fn out_of_memory(trace: &Trace) -> Vec<RefusedRequest> {
    let mut refused = refused_requests(trace);
    let mut listed: Vec<RefusedRequest> = refused.by_ref().take(REFUSED).collect();
    listed.extend(refused.last());
    listed
}

/// Returns the tags of the blocks that were allocated.
fn tags(trace: &Trace) -> HashSet<u32> {
    let older = trace.initial_blocks.iter().map(|block| block.tag);
    let allocated = trace.events.iter().filter(|event| event.action == Action::Alloc);
    older.chain(allocated.map(|event| event.tag)).collect()
}

/// Counts the groups of tags.
fn tag_groups(trace: &Trace, tags: &HashSet<u32>) -> u64 {
    let groups: HashSet<String> = tags.iter().map(|tag| tag_group(trace.tags.get(*tag))).collect();
    groups.len() as u64
}

/// Returns a saturating sum, because the numbers of a damaged file may overflow.
pub(crate) fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

fn by_kind(trace: &Trace) -> Vec<(&'static str, u64)> {
    let kinds = [
        (Action::Alloc, "allocations"),
        (Action::Free, "frees"),
        (Action::FreeRequested, "frees requested"),
        (Action::FreeCompleted, "frees completed"),
        (Action::SegmentAlloc, "segments taken"),
        (Action::SegmentFree, "segments given back"),
        (Action::SegmentMap, "pages mapped"),
        (Action::SegmentUnmap, "pages unmapped"),
        (Action::OutOfMemory, "out of memory"),
    ];
    let counted = kinds.map(|(kind, name)| {
        (
            name,
            trace.events.iter().filter(|event| event.action == kind).count() as u64,
        )
    });
    counted.into_iter().filter(|(_, count)| *count > 0).collect()
}
