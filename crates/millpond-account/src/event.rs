//! The values that describe an event: its kind, the pool, and the block or the request.

use crate::memory::MemoryKind;
use millpond_os::device::Device;
use std::fmt;
use std::sync::Arc;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was allocated.
    Allocated,
    /// A block is freed. The event precedes any reuse of the block.
    Freed,
    /// A pool has taken `bytes` of memory from its source.
    Refilled,
    /// A pool has returned `bytes` of memory to its source.
    Trimmed,
    /// A request of `requested` bytes was refused.
    Refused,
}

impl EventKind {
    /// Returns the name in one word, as used in logs.
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

/// The identity of a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolLabel {
    /// A number that no other pool of this process ever has.
    pub id: u64,
    /// The name, which may be empty.
    pub name: Arc<str>,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device whose memory it is.
    pub device: Device,
    /// The policy that places its blocks, or an empty string if there is none.
    pub policy: Arc<str>,
}

impl PoolLabel {
    /// Makes a label.
    #[must_use]
    pub fn new(id: u64, name: &str, kind: MemoryKind, device: Device) -> Self {
        Self {
            id,
            name: name.into(),
            kind,
            device,
            policy: "".into(),
        }
    }

    /// Sets the policy.
    #[must_use]
    pub fn under(mut self, policy: &str) -> Self {
        self.policy = policy.into();
        self
    }
}

/// A block or a request in an event. Fields that do not apply are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockInfo {
    /// The address of the block.
    pub address: usize,
    /// The requested bytes. For a free, these are the bytes that the caller names.
    pub requested: usize,
    /// The bytes of the block.
    pub bytes: usize,
    /// The requested alignment. For a free, 0 means that the caller named only the address.
    pub align: usize,
    /// The number of the stream on a device.
    pub stream: u32,
}
