//! Reads the final state: segments and their blocks.

use super::rewind::Segment;
use super::schema::{Key, Walk};
use super::tags::{Origin, Tags};
use crate::hash::Map;
use crate::ledger::Ledger;
use crate::lines::MOST_BYTES;
use crate::model::{DeviceState, InitialBlock, NO_ALLOCATION, PoolState};
use crate::pickle::Value;
use crate::{Finding, ReadError};
use std::collections::BTreeMap;

/// The state of a device when the snapshot was written.
#[derive(Default)]
pub(super) struct Final {
    /// The segments by address, without overlaps.
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Blocks that the program holds or that wait for a stream, by address.
    pub(super) blocks: Map<u64, InitialBlock>,
    pub(super) reserved_bytes: u64,
}

/// Reads the segments of one device and sums up their contents for the state.
pub(super) fn read(
    walk: &Walk<'_>,
    segments: &[Value],
    tags: &mut Tags,
    ledger: &mut Ledger,
) -> Result<(Final, Vec<PoolState>), ReadError> {
    let mut state = Final::default();
    let mut pools: BTreeMap<((u64, u64), bool), PoolState> = BTreeMap::new();
    for &value in segments {
        let raw = RawSegment::read(walk, value)?;
        if raw.bytes > MOST_BYTES || raw.address.checked_add(raw.bytes).is_none() {
            ledger.findings.count(Finding::AbsurdBytes);
            continue;
        }
        let segment = Segment {
            bytes: raw.bytes,
            stream: ledger.stream(raw.stream),
            pool: ledger.pool(raw.pool),
            small: Some(raw.small),
            expandable: raw.expandable,
        };
        let sum = pools.entry((raw.pool, !raw.small)).or_insert_with(|| PoolState {
            pool: raw.pool,
            small: raw.small,
            ..PoolState::default()
        });
        sum.segments += 1;
        sum.expandable_segments += u64::from(raw.expandable);
        sum.reserved_bytes = sum.reserved_bytes.saturating_add(raw.bytes);
        state.reserved_bytes = state.reserved_bytes.saturating_add(raw.bytes);
        let mut at = raw.address;
        if let Some(blocks) = raw.blocks {
            walk.items(blocks, |value| {
                let block = RawBlock::read(walk, value)?;
                let address = block.address.unwrap_or(at);
                if block.bytes > MOST_BYTES || address.checked_add(block.bytes).is_none() {
                    ledger.findings.count(Finding::AbsurdBytes);
                    return Ok(());
                }
                if address != at {
                    ledger.findings.count(Finding::BlocksMisplaced);
                }
                at = address + block.bytes;
                let pending = match block.state {
                    BlockState::Allocated => false,
                    BlockState::Pending => true,
                    BlockState::Inactive => return Ok(()),
                };
                sum.count(&block, pending);
                let frames = block.frames.unwrap_or(Value::NONE);
                let origin = Origin {
                    forward: block.forward_frames,
                    ..Origin::of_frames(frames)
                };
                let block = InitialBlock {
                    address,
                    requested: block.requested.min(MOST_BYTES),
                    bytes: Some(block.bytes),
                    allocation: NO_ALLOCATION,
                    tag: tags.of(walk, origin, &mut ledger.tags),
                    stream: segment.stream,
                    pool: segment.pool,
                    pending,
                };
                if state.blocks.insert(address, block).is_some() {
                    ledger.findings.count(Finding::BlocksMisplaced);
                }
                Ok(())
            })?;
            if at != raw.address + raw.bytes {
                ledger.findings.count(Finding::SegmentsMisshapen);
            }
        }
        if super::rewind::overlaps(&state.segments, raw.address, raw.bytes) {
            ledger.findings.count(Finding::SegmentsMisshapen);
        } else if raw.bytes > 0 {
            state.segments.insert(raw.address, segment);
        }
    }
    Ok((state, pools.into_values().collect()))
}

/// Returns the state for display, or `None` if the device holds nothing.
pub(super) fn shown(device: i32, pools: Vec<PoolState>) -> Option<DeviceState> {
    (!pools.is_empty()).then_some(DeviceState { device, pools })
}

impl PoolState {
    fn count(&mut self, block: &RawBlock, pending: bool) {
        self.active_bytes = self.active_bytes.saturating_add(block.bytes);
        if pending {
            self.pending_blocks += 1;
            return;
        }
        self.blocks += 1;
        self.allocated_bytes = self.allocated_bytes.saturating_add(block.bytes);
        self.requested_bytes = self
            .requested_bytes
            .saturating_add(block.requested.min(block.bytes));
    }
}

#[derive(Default)]
struct RawSegment {
    address: u64,
    bytes: u64,
    stream: u64,
    pool: (u64, u64),
    small: bool,
    expandable: bool,
    blocks: Option<Value>,
}

impl RawSegment {
    fn read(walk: &Walk<'_>, value: Value) -> Result<Self, ReadError> {
        let mut raw = Self::default();
        walk.fields(value, |key, value| match key {
            Key::Address => raw.address = walk.handle(value).unwrap_or(0),
            Key::TotalSize => raw.bytes = walk.unsigned(value).unwrap_or(u64::MAX),
            Key::Stream => raw.stream = walk.handle(value).unwrap_or(0),
            Key::SegmentType => raw.small = walk.arena.as_text(value) == Some("small"),
            Key::SegmentPoolId | Key::PoolId => raw.pool = walk.pair(value).unwrap_or((0, 0)),
            Key::IsExpandable => raw.expandable = value.boolean() == Some(true),
            Key::Blocks => raw.blocks = Some(value),
            _ => {}
        })?;
        Ok(raw)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum BlockState {
    Allocated,
    Pending,
    #[default]
    Inactive,
}

#[derive(Default)]
struct RawBlock {
    address: Option<u64>,
    bytes: u64,
    requested: u64,
    state: BlockState,
    frames: Option<Value>,
    forward_frames: Value,
}

impl RawBlock {
    fn read(walk: &Walk<'_>, value: Value) -> Result<Self, ReadError> {
        let mut raw = Self::default();
        let mut requested = None;
        let mut history = None;
        walk.fields(value, |key, value| match key {
            Key::Address => raw.address = walk.handle(value),
            Key::Size => raw.bytes = walk.unsigned(value).unwrap_or(u64::MAX),
            Key::RequestedSize => requested = walk.unsigned(value),
            Key::Frames => raw.frames = Some(value),
            Key::ForwardFrames => raw.forward_frames = value,
            Key::History => history = Some(value),
            Key::State => {
                raw.state = match walk.arena.as_text(value) {
                    Some("active_allocated") => BlockState::Allocated,
                    // PyTorch's code writes the first value, its documentation specifies the second.
                    Some("active_pending_free" | "active_awaiting_free") => BlockState::Pending,
                    _ => BlockState::Inactive,
                };
            }
            _ => {}
        })?;
        // The newest entry of a block's history comes first.
        if let Some(newest) = history.and_then(|history| walk.arena.items(history)?.next()) {
            walk.fields(newest, |key, value| match key {
                Key::RealSize => requested = requested.or(walk.unsigned(value)),
                Key::Addr => raw.address = raw.address.or(walk.handle(value)),
                Key::Frames => raw.frames = raw.frames.or(Some(value)),
                _ => {}
            })?;
        }
        raw.requested = requested.unwrap_or(raw.bytes);
        Ok(raw)
    }
}
