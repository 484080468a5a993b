//! Converts recordings of other formats to rows.

use super::{Definitions, History, RowSource};
use crate::hash::Map;
use crate::model::NO_ALLOCATION;
use crate::recording::{Kind, Row, bytes_per_stack, set_start, start_of};
use crate::{Action, Format, Interrupt, Recording, Trace};

/// The earliest time of a PyTorch snapshot that counts from 1970, in microseconds. The times of other snapshots count from their start.
const EARLIEST: u64 = 1_000_000_000_000_000;

/// Returns the rows of every device's trace, in order of time. The tags and streams of each device have separate
/// numbers, and each private pool becomes a pool.
pub(super) fn history(recording: &Recording) -> History {
    let mut definitions = Definitions::default();
    let mut rows = Vec::new();
    let mut base = Base::default();
    let mut older = Vec::new();
    // The times of all devices count from the same moment, which is the first event of any device.
    let first = recording.traces.iter().filter_map(|trace| trace.events.first());
    let begun = first.map(|event| event.time_us).min().unwrap_or(0);
    // A device without a history is treated as if it had always held the blocks of the snapshot.
    for trace in recording.traces.iter().chain(&recording.standing) {
        let first = base.id + 1;
        older.push(first..first + trace.initial_blocks.len() as u64);
        base = add(trace, base, begun, &mut rows, &mut definitions);
    }
    // The sort is stable, so each device's rows keep their order.
    rows.sort_by_key(|row: &Row| row.time);
    let mut cautions = recording.cautions.clone();
    let traces = recording.traces.iter().chain(&recording.standing);
    cautions.extend(traces.flat_map(|trace| trace.cautions.clone()));
    let mut facts = vec![("program".to_owned(), recording.name.clone())];
    if let Some(trace) = recording.traces.first() {
        facts.extend_from_slice(&trace.origin.header);
    }
    let start = match recording.format {
        Format::TorchSnapshot => (begun >= EARLIEST).then_some(0),
        _ => start_of(&facts),
    };
    if let Some(start) = start.and_then(|start| start.checked_add(begun.checked_mul(1_000)?)) {
        set_start(&mut facts, start);
    }
    History {
        duration: rows.last().map_or(0, |row| row.time),
        len: rows.len() as u64,
        rows: RowSource::Rows(rows),
        interrupt: Interrupt::default(),
        definitions,
        bytes_per_stack: bytes_per_stack(&facts),
        pools: Map::default(),
        has_blocks: false,
        lists_older: false,
        facts,
        lost: 0,
        end: None,
        cautions,
        older,
        state_only: recording.traces.is_empty() && !recording.standing.is_empty(),
        standing: Vec::new(),
    }
}

/// The numbers used by earlier devices.
#[derive(Clone, Copy, Default)]
struct Base {
    tag: u32,
    pool: u32,
    stream: u32,
    id: u64,
}

/// Adds the rows of one device. Its times count from `begun`, in microseconds.
fn add(trace: &Trace, base: Base, begun: u64, rows: &mut Vec<Row>, definitions: &mut Definitions) -> Base {
    let device = trace.origin.device;
    let memory = if device < 0 { "host" } else { "cuda" };
    let policy = match (&trace.settings.policy, trace.origin.format) {
        (Some(policy), _) => policy,
        (None, Format::TorchSnapshot) if trace.settings.expandable_segments == Some(true) => {
            "torch-expandable"
        }
        (None, Format::TorchSnapshot) => "torch-native",
        (None, _) => "",
    };
    for (index, (of, number)) in trace.pools.iter().enumerate() {
        let row = Row::define(Kind::DefinePool, base.pool + 1 + index as u32, 0);
        let name = if index == 0 {
            String::new()
        } else {
            format!("{of}.{number}")
        };
        definitions.note(
            &row,
            Some(&format!("{memory}\n{name}\n{policy}")),
            Some(vec![device as u64]),
        );
    }
    for (index, tag) in trace.tags.iter().enumerate().skip(1) {
        let row = Row::define(Kind::DefineTag, base.tag + index as u32, 0);
        definitions.note(&row, Some(tag), None);
    }
    // A free has the tag of its allocation. Frees of blocks that are older than the recording may have none.
    let tag = |tag: u32, allocation: u32| match tag {
        0 => match trace.initial_blocks.get(allocation as usize) {
            Some(block) if block.tag > 0 => base.tag + block.tag,
            _ => 0,
        },
        tag => base.tag + tag,
    };
    for segment in &trace.initial_segments {
        rows.push(Row {
            address: segment.address,
            bytes: segment.bytes,
            pool: base.pool + 1 + u32::from(segment.pool),
            stream: base.stream + u32::from(segment.stream),
            ..Row::new(Kind::Reserve, 0)
        });
    }
    // Blocks that wait for a stream are allocated and freed first, so that they never add to the other blocks.
    let mut initial: Vec<_> = trace.initial_blocks.iter().collect();
    initial.sort_by_key(|block| !block.pending);
    for block in initial {
        let row = Row {
            id: base.id + 1 + u64::from(block.allocation),
            address: block.address,
            requested: block.requested,
            bytes: block.bytes.unwrap_or(block.requested),
            pool: base.pool + 1 + u32::from(block.pool),
            stream: base.stream + u32::from(block.stream),
            tag: tag(block.tag, block.allocation),
            ..Row::new(Kind::Alloc, 0)
        };
        rows.push(row);
        if block.pending {
            rows.push(row.at(Kind::FreeRequested, 0));
        }
    }
    for event in &trace.events {
        let Some(kind) = kind_of(event.action) else {
            continue;
        };
        let id = match event.allocation {
            NO_ALLOCATION => 0,
            allocation => base.id + 1 + u64::from(allocation),
        };
        let time = event.time_us.saturating_sub(begun).saturating_mul(1_000);
        rows.push(Row {
            id,
            address: event.address,
            requested: event.bytes,
            bytes: event.bytes,
            pool: base.pool + 1 + u32::from(event.pool),
            stream: base.stream + u32::from(event.stream),
            tag: tag(event.tag, event.allocation),
            ..Row::new(kind, time)
        });
    }
    Base {
        tag: base.tag + trace.tags.len() as u32,
        pool: base.pool + trace.pools.len() as u32,
        stream: base.stream + trace.streams.len() as u32,
        id: base.id + u64::from(trace.allocations),
    }
}

fn kind_of(action: Action) -> Option<Kind> {
    Some(match action {
        Action::Alloc => Kind::Alloc,
        Action::Free => Kind::Free,
        Action::FreeRequested => Kind::FreeRequested,
        Action::FreeCompleted => Kind::FreeCompleted,
        Action::SegmentAlloc | Action::SegmentMap => Kind::Reserve,
        Action::SegmentFree | Action::SegmentUnmap => Kind::Release,
        Action::OutOfMemory => Kind::Refused,
    })
}
