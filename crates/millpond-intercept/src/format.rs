//! The log that the preloaded library writes and this crate reads.
//!
//! A log belongs to one process. It is a file of 64-bit words in the machine's byte order, in chunks of [`CHUNK`] bytes. It begins with a
//! header of [`HEADER`] words. Records follow. A record lies in one chunk. Its first word has its kind in the lowest byte, and its number of
//! words in the upper half. The word is written last, so a record whose first word is zero is not complete. The words of a file that were
//! never written are zero.

/// The first word of a log.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"mpdrvlog");
/// The version of the format.
pub const VERSION: u64 = 1;
/// The words of the header: [`MAGIC`], [`VERSION`], the process, its parent, the wall clock and the steady clock at the start in
/// nanoseconds, the limit of each device in bytes or 0, and the number of events that could not be written.
pub const HEADER: usize = 8;
/// The index of the number of lost events in the header.
pub const LOST: usize = 7;
/// The bytes of a chunk.
pub const CHUNK: usize = 1 << 20;

/// The kinds of records. An event has [`EVENT`] words.
pub mod kind {
    /// Memory was allocated.
    pub const ALLOC: u8 = 1;
    /// Memory was freed.
    pub const FREE: u8 = 2;
    /// A request was refused for lack of memory. The address is the driver's code, or [`LIMIT`](super::LIMIT).
    pub const REFUSED: u8 = 3;
    /// The driver took memory for a pool or for graphs.
    pub const RESERVE: u8 = 4;
    /// The driver gave up memory of a pool or of graphs.
    pub const RELEASE: u8 = 5;
    /// A captured or explicit node of a graph allocates memory when the graph runs.
    pub const NODE: u8 = 6;
    /// The driver's own figures of a device: its number, the bytes in use by any process, and all bytes.
    pub const MEASURED: u8 = 7;
    /// The number of a stack, and its return addresses, innermost first.
    pub const STACK: u8 = 16;
    /// A code module: address, bytes, base, the bytes of its build id and of its path, then both.
    pub const MODULE: u8 = 17;
    /// A thread: its number, then its name in two words.
    pub const THREAD: u8 = 18;
    /// The bytes of the program's path, then the path.
    pub const PROGRAM: u8 = 19;
    /// The process exited normally: it returned from `main` or called `exit`.
    pub const END: u8 = 20;
    /// The rest of the chunk is empty.
    pub const SKIP: u8 = 254;
    /// An event that was withdrawn: a free that the driver refused.
    pub const WITHDRAWN: u8 = 255;
}

/// The code of a refusal that the limit caused.
pub const LIMIT: u64 = u64::MAX;

/// The words of an event: the first word, the time on the steady clock, the address or handle, the bytes that the driver takes, the
/// requested bytes, the stream, the device and the thread, the pool, and the number of the stack or 0.
pub const EVENT: usize = 9;

/// The kinds of memory, in the second byte of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Memory {
    /// Plain memory of a device.
    Device = 1,
    /// Managed memory.
    Managed = 2,
    /// Pinned memory of the host.
    Pinned = 3,
    /// The program's memory that the driver has pinned.
    Registered = 4,
    /// Physical memory for virtual addresses.
    Pages = 5,
    /// Memory of a stream-ordered pool.
    Pool = 6,
    /// An array or a mipmapped array.
    Array = 7,
    /// Memory of graphs.
    Graph = 8,
    /// Physical memory of the host for virtual addresses.
    HostPages = 9,
}

impl Memory {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Device,
        Self::Managed,
        Self::Pinned,
        Self::Registered,
        Self::Pages,
        Self::Pool,
        Self::Array,
        Self::Graph,
        Self::HostPages,
    ];

    /// Returns the kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|memory| *memory as u8 == number)
    }

    /// Returns whether the memory is the host's.
    pub fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Registered | Self::HostPages)
    }
}

/// Returns the first word of a record.
pub const fn first_word(kind: u8, memory: u8, words: usize) -> u64 {
    kind as u64 | (memory as u64) << 8 | (words as u64) << 32
}
