//! Decoded rows.

/// The kind of a row. The numbers are part of the file format and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Begins a batch. The time, the newest serial number and the number of rows so far (in `address`) are absolute.
    Batch = 0,
    /// A block was allocated.
    Alloc = 1,
    /// A block was freed and can be allocated again immediately.
    Free = 2,
    /// A block was freed, but streams still use it.
    FreeRequested = 3,
    /// The streams that used a freed block have finished with it.
    FreeCompleted = 4,
    /// A pool took `bytes` from its source.
    Reserve = 5,
    /// A pool returned `bytes` to its source.
    Release = 6,
    /// A request of `requested` bytes was refused.
    Refused = 7,
    /// A named point in time. The name is in `text`.
    Mark = 8,
    /// Events are missing here: `id` of them (absolute), of `thread` or of all threads. Their allocations had
    /// `requested` bytes and their frees had `bytes`.
    Lost = 9,
    /// A measured value: `bytes` of the [`Gauge`] in `tag`, for `pool`, or for device `stream` if there is no pool.
    Gauge = 10,
    /// A step of a repeating program begins. Its number is in `bytes`.
    Step = 11,
    /// The following live rows list all blocks that callers hold. Their number is in `bytes`.
    Keyframe = 12,
    /// A block that callers hold at a keyframe.
    Live = 13,
    /// Defines `tag` with the name in `text`.
    DefineTag = 16,
    /// Defines `pool`. `text` has the kind of memory, the name and the placement policy, each on its own line. The last
    /// may be missing. `list` has the device.
    DefinePool = 17,
    /// Defines `thread` with the name in `text`.
    DefineThread = 18,
    /// Defines `stack` with the addresses in `list`.
    DefineStack = 19,
    /// Defines a code module of `bytes` bytes at `address`. `text` has its build id and its file, each on its own line.
    /// `list` has the address at which the file's first byte would be mapped.
    DefineModule = 20,
    /// Defines the function, file and line of the addresses in `list`. They are in `text`, each on its own line,
    /// followed by three lines for each function into which it was inlined. It is used for stacks that were recorded
    /// with names.
    DefineFrame = 21,
    /// The recording was closed. Nothing is missing at its end.
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

    /// Returns the kind with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Returns whether `id` is a serial number. Rows with one store it relative to the newest.
    #[must_use]
    pub const fn has_serial(self) -> bool {
        matches!(
            self,
            Self::Alloc | Self::Free | Self::FreeRequested | Self::FreeCompleted | Self::Live
        )
    }
}

/// The quantity of a gauge. The numbers are part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Gauge {
    /// Bytes requested from a pool.
    Requested = 1,
    /// Bytes of the pool's blocks that callers hold.
    Allocated = 2,
    /// Allocated bytes and the bytes of blocks that wait for streams.
    Active = 3,
    /// Bytes that a pool has reserved from its source.
    Reserved = 4,
    /// Bytes of a device in use by any process, as reported by its driver.
    DeviceUsed = 5,
    /// Total bytes of a device.
    DeviceTotal = 6,
    /// Bytes of the process in main memory.
    Resident = 7,
    /// Allocations of a pool that did not call its source.
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

    /// Returns the gauge with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|gauge| *gauge as u32 == number)
    }
}

/// One row: an event or a definition. Fields that do not apply are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The kind of the row.
    pub kind: Kind,
    /// Nanoseconds since the recording began.
    pub time: u64,
    /// The allocation's serial number, counted from 1, or 0 if unknown.
    pub id: u64,
    /// The address of the block.
    pub address: u64,
    /// Requested bytes.
    pub requested: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// The pool's number.
    pub pool: u32,
    /// The stream's number. In a free, the stream on which it happened.
    pub stream: u32,
    /// The thread's number. In a free, the thread that freed the block.
    pub thread: u32,
    /// The tag's number. In a free, the tag of the block.
    pub tag: u32,
    /// The stack's number.
    pub stack: u32,
}

impl Row {
    /// Creates a row with a kind and a time. All other fields are 0.
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

    /// Creates the row that defines the tag, pool, thread or stack with a number. `kind` is the kind of the definition.
    #[must_use]
    pub const fn define(kind: Kind, number: u32, time: u64) -> Self {
        let mut row = Self::new(kind, time);
        match kind {
            Kind::DefineTag => row.tag = number,
            Kind::DefinePool => row.pool = number,
            Kind::DefineThread => row.thread = number,
            Kind::DefineStack => row.stack = number,
            _ => {}
        }
        row
    }

    /// Returns this row with another kind and time.
    pub(crate) const fn at(self, kind: Kind, time: u64) -> Self {
        Self { kind, time, ..self }
    }
}
