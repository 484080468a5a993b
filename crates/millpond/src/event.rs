//! The values that describe an event: its kind, the pool, and the block or the request.

use crate::memory::MemoryKind;
use std::fmt;
use std::sync::Arc;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out.
    Allocated,
    /// A block is given back. It is told before anyone else can have the block.
    Freed,
    /// A pool has taken memory from its source: `bytes` of it.
    Refilled,
    /// A pool has given memory back to its source: `bytes` of it.
    Trimmed,
    /// A request of `requested` bytes was refused.
    Refused,
}

impl EventKind {
    /// In one word, as in a log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Freed => "freed",
            Self::Refilled => "refilled",
            Self::Trimmed => "trimmed",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which pool it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolLabel {
    /// A number that no other pool of this process ever has.
    pub id: u64,
    /// Its name, which may be empty.
    pub name: Arc<str>,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device it is on; 0 for the host's memory.
    pub device: u32,
    /// The policy that places its blocks; empty where there is none.
    pub policy: Arc<str>,
}

impl PoolLabel {
    /// A pool's label.
    #[must_use]
    pub fn new(id: u64, name: &str, kind: MemoryKind, device: u32) -> Self {
        Self {
            id,
            name: name.into(),
            kind,
            device,
            policy: "".into(),
        }
    }

    /// The same of a pool under this policy.
    #[must_use]
    pub fn under(mut self, policy: &str) -> Self {
        self.policy = policy.into();
        self
    }
}

/// A block or a request, as a pool tells of it. What does not apply is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Where the block is.
    pub address: usize,
    /// Bytes asked for; with a free, those that the caller names.
    pub requested: usize,
    /// Bytes of the block.
    pub bytes: usize,
    /// The alignment asked for. With a free, 0 says that the caller named the address only.
    pub align: usize,
    /// The number of the stream it happens on, on a device.
    pub stream: u32,
}
