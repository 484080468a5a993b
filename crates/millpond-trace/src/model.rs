//! The one shape every reader produces.
//!
//! Guaranteed by every reader: allocation numbers are dense and below [`Trace::allocations`], those of
//! [`Trace::initial_blocks`] come first; each allocation begins once and ends at most once, in that order;
//! tags, streams and pools are valid indices; sizes are at most 2^62. So whoever walks a trace checks nothing.

use crate::{Caution, Strings};

/// Serial number of an allocation within its [`Trace`]: dense, in order of first appearance.
///
/// Blocks that already lived when the recording began come first (see [`Trace::initial_blocks`]).
pub type Allocation = u32;

/// The allocation of events that concern none, such as [`Action::SegmentAlloc`].
pub const NO_ALLOCATION: Allocation = u32::MAX;

/// What an [`Event`] records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// A block was handed to the program.
    Alloc,
    /// The program gave a block back and it could be handed out again at once.
    Free,
    /// The program gave a block back, but another stream may still use it.
    FreeRequested,
    /// The streams that used a block given back earlier have passed their last use.
    FreeCompleted,
    /// The recorded allocator took a segment from the driver.
    SegmentAlloc,
    /// The recorded allocator gave a segment back to the driver.
    SegmentFree,
    /// The recorded allocator mapped pages into an expandable segment.
    SegmentMap,
    /// The recorded allocator unmapped pages of an expandable segment.
    SegmentUnmap,
    /// The recorded allocator could not serve a request of `bytes`; `address` holds the device's free bytes.
    OutOfMemory,
}

/// One recorded event, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds on the recording's own clock; 0 where the recording has no times.
    pub time_us: u64,
    /// Bytes the program asked for; a free repeats its allocation's.
    pub bytes: u64,
    /// Address in the recorded program; 0 where it was not recorded.
    pub address: u64,
    /// Which allocation this event begins or ends, or [`NO_ALLOCATION`].
    pub allocation: Allocation,
    /// Index into [`Trace::tags`]; 0 is the empty tag.
    pub tag: u32,
    /// Index into [`Trace::streams`].
    pub stream: u16,
    /// Index into [`Trace::pools`]; 0 is the default pool.
    pub pool: u16,
    /// What happened.
    pub action: Action,
}

/// Which reader understood the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A pickle written by `torch.cuda.memory._dump_snapshot` or its ancestors.
    TorchSnapshot,
    /// The CSV log of RMM's logging resource adaptor.
    RmmCsv,
    /// Millpond's own CSV.
    MillpondCsv,
    /// Memory events in a chrome trace of `torch.profiler`.
    ChromeTrace,
    /// A recording of Millpond's: an Arrow stream.
    MillpondRecording,
}

/// Where a trace came from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Base name of the file, without `.csv`, `.pickle`, `.json`, `.gz` and `.zst`.
    pub name: String,
    /// The format it was read from.
    pub format: Format,
    /// Device ordinal in the recorded process; -1 for the host.
    pub device: i32,
    /// `key: value` pairs of the file's own header, in file order.
    pub header: Vec<(String, String)>,
}

/// Settings of the recorded allocator, as far as the recording names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The environment's setting string, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: Option<String>,
    /// Whether expandable segments were on (from settings or from the segments themselves).
    pub expandable_segments: Option<bool>,
    /// `max_split_size` in bytes; none where unlimited or not recorded.
    pub max_split_size: Option<u64>,
    /// `garbage_collection_threshold`; none where off or not recorded.
    pub garbage_collection_threshold: Option<f64>,
    /// `roundup_power2_divisions` as (lower bound of the size range in bytes, divisions).
    pub roundup_power2_divisions: Vec<(u64, u64)>,
    /// The policy that placed the blocks, where a recording of Millpond's names one for all of the device's pools.
    pub policy: Option<String>,
}

/// A segment that was reserved before the first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialSegment {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Index into [`Trace::streams`].
    pub stream: u16,
    /// Index into [`Trace::pools`].
    pub pool: u16,
    /// Whether it belongs to the allocator's small pool.
    pub small: bool,
    /// Whether it is an expandable segment.
    pub expandable: bool,
}

/// The tag of blocks that are older than the recording and have no tag of their own.
pub const OLDER: &str = "(older than the recording)";

/// A block that lived, or waited for a stream, before the first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialBlock {
    /// First address.
    pub address: u64,
    /// Bytes the program had asked for.
    pub requested: u64,
    /// Bytes the allocator gave it, where the recording tells.
    pub bytes: Option<u64>,
    /// Its serial number: `0..initial_blocks.len()`.
    pub allocation: Allocation,
    /// Index into [`Trace::tags`].
    pub tag: u32,
    /// Index into [`Trace::streams`].
    pub stream: u16,
    /// Index into [`Trace::pools`].
    pub pool: u16,
    /// The program had already given it back; a [`Action::FreeCompleted`] ends it.
    pub pending: bool,
}

/// One device's recording.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Where it came from.
    pub origin: Origin,
    /// Events in recorded order.
    pub events: Vec<Event>,
    /// Number of distinct allocations, initial blocks included; every `Event::allocation` is below it.
    pub allocations: u32,
    /// Tags; index 0 is empty.
    pub tags: Strings,
    /// Stream handles as recorded; an event's stream is an index. Index 0 is always the default stream (0).
    pub streams: Vec<u64>,
    /// Private pool ids as recorded; index 0 is `(0, 0)`, the default pool.
    pub pools: Vec<(u64, u64)>,
    /// Segments held before the first event; empty where the recording starts with the program.
    pub initial_segments: Vec<InitialSegment>,
    /// Blocks held before the first event, address-ordered.
    pub initial_blocks: Vec<InitialBlock>,
    /// Settings of the recorded allocator.
    pub settings: Settings,
    /// Bytes of all segments when the recording was written, where it tells.
    pub final_reserved_bytes: Option<u64>,
    /// The most the recorded allocator held at once during the recording: initial segments plus the
    /// segment events walked forward. None where no segment is recorded.
    pub recorded_peak_reserved: Option<u64>,
    /// What limits the conclusions.
    pub cautions: Vec<Caution>,
}

/// What one pool of one device held when a snapshot was written.
///
/// Always `requested_bytes <= allocated_bytes <= active_bytes <= reserved_bytes`, unless the file itself disagrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// Private pool id as recorded; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Whether these are the pool's small segments.
    pub small: bool,
    /// Segments.
    pub segments: u64,
    /// Segments that are expandable.
    pub expandable_segments: u64,
    /// Blocks in the program's hands.
    pub blocks: u64,
    /// Blocks given back that still wait for a stream.
    pub pending_blocks: u64,
    /// Bytes of the segments.
    pub reserved_bytes: u64,
    /// Bytes of the blocks in the program's hands, as rounded by the allocator.
    pub allocated_bytes: u64,
    /// Allocated bytes plus those that wait for a stream.
    pub active_bytes: u64,
    /// Bytes the program asked for.
    pub requested_bytes: u64,
}

/// What one device held when a snapshot was written; known even where no history was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Device ordinal in the recorded process; -1 for the host.
    pub device: i32,
    /// Its pools that hold anything, ordered by id, small before large.
    pub pools: Vec<PoolState>,
}

impl DeviceState {
    /// All pools together; its `pool` and `small` mean nothing.
    pub fn total(&self) -> PoolState {
        let mut sum = PoolState::default();
        for pool in &self.pools {
            sum.segments += pool.segments;
            sum.expandable_segments += pool.expandable_segments;
            sum.blocks += pool.blocks;
            sum.pending_blocks += pool.pending_blocks;
            sum.reserved_bytes = sum.reserved_bytes.saturating_add(pool.reserved_bytes);
            sum.allocated_bytes = sum.allocated_bytes.saturating_add(pool.allocated_bytes);
            sum.active_bytes = sum.active_bytes.saturating_add(pool.active_bytes);
            sum.requested_bytes = sum.requested_bytes.saturating_add(pool.requested_bytes);
        }
        sum
    }
}

/// Everything one file holds.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Base name of the file, as in [`Origin::name`].
    pub name: String,
    /// The format it was read from.
    pub format: Format,
    /// One for each device with at least one event, ordered by device.
    pub traces: Vec<Trace>,
    /// The final state of each device, where the format has one. A device listed here and not in `traces`
    /// was recorded without history: it can be looked at, and not replayed.
    pub states: Vec<DeviceState>,
    /// The blocks and segments that each device without a history held when the snapshot was written. They are the initial state of a trace
    /// without events.
    pub standing: Vec<Trace>,
    /// Settings of the recorded allocator, as in each trace.
    pub settings: Settings,
    /// Findings where there is no trace to carry them.
    pub cautions: Vec<Caution>,
}
