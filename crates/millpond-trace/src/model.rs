//! The result type of every reader.
//!
//! Every reader guarantees the following. Allocation numbers are dense and below [`Trace::allocations`], and those of
//! [`Trace::initial_blocks`] come first. Each allocation begins once and ends at most once, in that order. Tags,
//! streams and pools are valid indices. Sizes are at most 2^62. Users of a trace therefore need no checks.

use crate::{Caution, Strings};

/// Serial number of an allocation within its [`Trace`]. The numbers are dense, in order of first appearance.
///
/// Blocks that were live before the recording began come first (see [`Trace::initial_blocks`]).
pub type Allocation = u32;

/// The allocation number of events that concern no allocation, such as [`Action::SegmentAlloc`].
pub const NO_ALLOCATION: Allocation = u32::MAX;

/// Maximum number of devices of a recording. No machine has more.
pub(crate) const MOST_DEVICES: usize = 1024;

/// The action of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// A block was allocated.
    Alloc,
    /// A block was freed and could be allocated again immediately.
    Free,
    /// A block was freed, but another stream may still use it.
    FreeRequested,
    /// The streams that used a freed block have finished with it.
    FreeCompleted,
    /// The recorded allocator took a segment from the driver.
    SegmentAlloc,
    /// The recorded allocator returned a segment to the driver.
    SegmentFree,
    /// The recorded allocator mapped pages into an expandable segment.
    SegmentMap,
    /// The recorded allocator unmapped pages of an expandable segment.
    SegmentUnmap,
    /// The recorded allocator could not serve a request of `bytes`. `address` contains the device's free bytes.
    OutOfMemory,
}

/// One recorded event, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds on the recording's own clock, or 0 if the recording has no times.
    pub time_us: u64,
    /// Requested bytes. A free repeats those of its allocation.
    pub bytes: u64,
    /// Address in the recorded program, or 0 if it was not recorded.
    pub address: u64,
    /// The allocation that this event begins or ends, or [`NO_ALLOCATION`].
    pub allocation: Allocation,
    /// Index into [`Trace::tags`]. 0 is the empty tag.
    pub tag: u32,
    /// Index into [`Trace::streams`].
    pub stream: u16,
    /// Index into [`Trace::pools`]. 0 is the default pool.
    pub pool: u16,
    /// The action.
    pub action: Action,
}

impl Event {
    /// Creates an event that concerns no allocation. All other fields are 0.
    pub(crate) const fn new(action: Action) -> Self {
        Self {
            time_us: 0,
            bytes: 0,
            address: 0,
            allocation: NO_ALLOCATION,
            tag: 0,
            stream: 0,
            pool: 0,
            action,
        }
    }
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A pickle written by `torch.cuda.memory._dump_snapshot` or its predecessors.
    TorchSnapshot,
    /// The CSV log of RMM's logging resource adaptor.
    RmmCsv,
    /// Millpond's own CSV.
    MillpondCsv,
    /// Memory events in a chrome trace of `torch.profiler`.
    ChromeTrace,
    /// A Millpond recording, which is an Arrow stream.
    MillpondRecording,
}

/// The origin of a trace.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Base name of the file, without the extensions `.csv`, `.pickle`, `.pkl`, `.json`, `.mpr`, `.gz` and `.zst`.
    pub name: String,
    /// The format of the file.
    pub format: Format,
    /// Device number in the recorded process. -1 is the host.
    pub device: i32,
    /// `key: value` pairs of the file's own header, in file order.
    pub header: Vec<(String, String)>,
}

/// Settings of the recorded allocator, as far as they were recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The setting string of the environment, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: Option<String>,
    /// Whether expandable segments were on, according to the settings or the segments themselves.
    pub expandable_segments: Option<bool>,
    /// `max_split_size` in bytes, or `None` if unlimited or not recorded.
    pub max_split_size: Option<u64>,
    /// `garbage_collection_threshold`, or `None` if off or not recorded.
    pub garbage_collection_threshold: Option<f64>,
    /// `roundup_power2_divisions` as (lower bound of the size range in bytes, divisions).
    pub roundup_power2_divisions: Vec<(u64, u64)>,
    /// The policy that placed the blocks, if a Millpond recording has the same policy for all of the device's pools.
    pub policy: Option<String>,
}

/// A segment that was reserved before the first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialSegment {
    /// First address.
    pub address: u64,
    /// Size in bytes.
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

/// A block that was live, or waited for a stream, before the first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialBlock {
    /// First address.
    pub address: u64,
    /// Requested bytes.
    pub requested: u64,
    /// Bytes that the allocator gave it, if they were recorded.
    pub bytes: Option<u64>,
    /// Its serial number: `0..initial_blocks.len()`.
    pub allocation: Allocation,
    /// Index into [`Trace::tags`].
    pub tag: u32,
    /// Index into [`Trace::streams`].
    pub stream: u16,
    /// Index into [`Trace::pools`].
    pub pool: u16,
    /// Whether the program had already freed it. A [`Action::FreeCompleted`] ends it.
    pub pending: bool,
}

/// One device's recording.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The origin of the recording.
    pub origin: Origin,
    /// Events in recorded order.
    pub events: Vec<Event>,
    /// Number of distinct allocations, including initial blocks. Every `Event::allocation` is below it, except
    /// [`NO_ALLOCATION`].
    pub allocations: u32,
    /// Tags. Index 0 is empty.
    pub tags: Strings,
    /// Stream handles as recorded. An event's stream is an index. Index 0 is always the default stream (0).
    pub streams: Vec<u64>,
    /// Private pool ids as recorded. Index 0 is `(0, 0)`, the default pool.
    pub pools: Vec<(u64, u64)>,
    /// Segments held before the first event. Empty if the recording starts with the program.
    pub initial_segments: Vec<InitialSegment>,
    /// Blocks held before the first event, in address order.
    pub initial_blocks: Vec<InitialBlock>,
    /// Settings of the recorded allocator.
    pub settings: Settings,
    /// Bytes of all segments when the recording was written, if they were recorded.
    pub final_reserved_bytes: Option<u64>,
    /// The most bytes that the recorded allocator reserved at once during the recording, from the initial segments and
    /// the segment events. `None` if no segment was recorded.
    pub recorded_peak_reserved: Option<u64>,
    /// Bytes of blocks from before the recording that are not in it and stay until its end. The child of a fork inherits such blocks.
    pub unlisted_bytes: u64,
    /// Findings that limit the conclusions.
    pub cautions: Vec<Caution>,
}

/// The state of one pool of one device when a snapshot was written.
///
/// The invariant is `requested_bytes <= allocated_bytes <= active_bytes <= reserved_bytes`, unless the file contradicts
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// Private pool id as recorded. `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Whether these are the pool's small segments.
    pub small: bool,
    /// Number of segments.
    pub segments: u64,
    /// Number of expandable segments.
    pub expandable_segments: u64,
    /// Number of blocks that the program holds.
    pub blocks: u64,
    /// Number of freed blocks that still wait for a stream.
    pub pending_blocks: u64,
    /// Bytes of the segments.
    pub reserved_bytes: u64,
    /// Bytes of the blocks that the program holds, as rounded by the allocator.
    pub allocated_bytes: u64,
    /// Allocated bytes and the bytes of blocks that wait for a stream.
    pub active_bytes: u64,
    /// Requested bytes of the blocks that the program holds.
    pub requested_bytes: u64,
}

/// The state of one device when a snapshot was written. It is known even if no history was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Device number in the recorded process. -1 is the host.
    pub device: i32,
    /// The pools that hold memory, ordered by id, small before large.
    pub pools: Vec<PoolState>,
}

impl DeviceState {
    /// Returns the sum of all pools. Its `pool` and `small` have no meaning.
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

/// The contents of one file.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Base name of the file, as in [`Origin::name`].
    pub name: String,
    /// The format of the file.
    pub format: Format,
    /// One trace for each device with at least one event, ordered by device.
    pub traces: Vec<Trace>,
    /// The final state of each device, if the format contains one. A device that is listed here and not in `traces` was
    /// recorded without a history. It can be displayed, but not replayed.
    pub states: Vec<DeviceState>,
    /// The blocks and segments that each device without a history held when the snapshot was written. They are the
    /// initial state of a trace without events.
    pub standing: Vec<Trace>,
    /// Settings of the recorded allocator, as in each trace.
    pub settings: Settings,
    /// Findings of a file without a trace.
    pub cautions: Vec<Caution>,
}

impl Recording {
    /// Creates a recording that contains only traces.
    pub(crate) fn of_traces(name: &str, format: Format, traces: Vec<Trace>) -> Self {
        Self {
            name: name.to_owned(),
            format,
            traces,
            states: Vec::new(),
            standing: Vec::new(),
            settings: Settings::default(),
            cautions: Vec::new(),
        }
    }
}
