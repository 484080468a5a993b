//! Rows as values.

/// What a row is. Numbers are part of the file format and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Begins a batch: time, newest serial number and number of rows so far (in `address`) as they are.
    Batch = 0,
    /// A block was handed out.
    Alloc = 1,
    /// A block came back and can be handed out again at once.
    Free = 2,
    /// A block came back, and streams still use it.
    FreeRequested = 3,
    /// The streams that used a block that came back have passed its last use.
    FreeCompleted = 4,
    /// A pool took `bytes` from its source.
    Reserve = 5,
    /// A pool gave `bytes` back to its source.
    Release = 6,
    /// A request of `requested` bytes was refused.
    Refused = 7,
    /// A moment that somebody has named, in `text`.
    Mark = 8,
    /// Events that are missing here, `id` of them (as it is), of `thread` or of all: their allocations had `requested` bytes and their frees
    /// `bytes`.
    Lost = 9,
    /// `bytes` of what the [`Gauge`] in `tag` measures, of `pool`, or of device `stream` where no pool is named.
    Gauge = 10,
    /// A step of a repeating program begins; its number is in `bytes`.
    Step = 11,
    /// What follows, as many live rows as `bytes` says, is all that callers hold.
    Keyframe = 12,
    /// A block in callers' hands at a keyframe.
    Live = 13,
    /// `tag` is called `text`.
    DefineTag = 16,
    /// `pool` is of the kind of memory, has the name and places blocks by the policy in `text`, one a line, of which the last may be missing;
    /// `list` has its device.
    DefinePool = 17,
    /// `thread` is called `text`.
    DefineThread = 18,
    /// `stack` is the addresses in `list`.
    DefineStack = 19,
    /// Code at `address`, `bytes` long: `text` is its build id and its file, one a line, `list` where in memory the file's first byte would be.
    DefineModule = 20,
    /// The addresses in `list` are the function, file and line in `text`, one a line; three more for each function it was inlined into. For
    /// stacks that came with names.
    DefineFrame = 21,
    /// The recording was closed: nothing is missing at its end.
    End = 31,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 21] = [
        Self::Batch,
        Self::Alloc,
        Self::Free,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::Reserve,
        Self::Release,
        Self::Refused,
        Self::Mark,
        Self::Lost,
        Self::Gauge,
        Self::Step,
        Self::Keyframe,
        Self::Live,
        Self::DefineTag,
        Self::DefinePool,
        Self::DefineThread,
        Self::DefineStack,
        Self::DefineModule,
        Self::DefineFrame,
        Self::End,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether `id` is a serial number, which a row of this kind counts back from the newest.
    #[must_use]
    pub const fn has_serial(self) -> bool {
        matches!(
            self,
            Self::Alloc | Self::Free | Self::FreeRequested | Self::FreeCompleted | Self::Live
        )
    }
}

/// What a gauge measures. Numbers are part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Gauge {
    /// Bytes that callers of a pool have asked for.
    Requested = 1,
    /// Bytes of the blocks in their hands.
    Allocated = 2,
    /// The same and those that wait for streams.
    Active = 3,
    /// Bytes a pool has taken from its source.
    Reserved = 4,
    /// Bytes of a device in anybody's use, as its driver says.
    DeviceUsed = 5,
    /// All bytes of a device.
    DeviceTotal = 6,
    /// Bytes of the process in main memory.
    Resident = 7,
    /// Allocations of a pool that its source was not called for.
    Hits = 8,
    /// Allocations of a pool.
    Allocations = 9,
}

impl Gauge {
    /// All gauges.
    pub const ALL: [Self; 9] = [
        Self::Requested,
        Self::Allocated,
        Self::Active,
        Self::Reserved,
        Self::DeviceUsed,
        Self::DeviceTotal,
        Self::Resident,
        Self::Hits,
        Self::Allocations,
    ];

    /// The gauge with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|gauge| *gauge as u32 == number)
    }
}

/// One row: an event, or what a number means. What does not apply is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub kind: Kind,
    /// Nanoseconds since the recording began.
    pub time: u64,
    /// The allocation's serial number, from 1; 0 where it is not known.
    pub id: u64,
    /// Where the block is.
    pub address: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// The pool's number.
    pub pool: u32,
    /// The stream's number; in a free, of the stream it happened on.
    pub stream: u32,
    /// The thread's number; in a free, of the thread that freed.
    pub thread: u32,
    /// The tag's number; in a free, of the block's tag.
    pub tag: u32,
    /// The stack's number.
    pub stack: u32,
}

impl Row {
    /// A row of a kind at a time, and nothing else.
    #[must_use]
    pub const fn new(kind: Kind, time: u64) -> Self {
        Self {
            kind,
            time,
            id: 0,
            address: 0,
            requested: 0,
            bytes: 0,
            pool: 0,
            stream: 0,
            thread: 0,
            tag: 0,
            stack: 0,
        }
    }
}
