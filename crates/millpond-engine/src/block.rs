//! Requests for blocks, and the blocks that callers hold.

use crate::space::BlockId;
use std::num::NonZeroU32;

/// The order in which work happens on a device; a small number given by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u32);

impl Stream {
    /// The device's default stream.
    pub const DEFAULT: Self = Self(0);
}

/// A caller's private pool: memory of one group never serves another. An explicit mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u32);

/// One request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes asked for.
    pub bytes: u64,
    /// Alignment asked for, a power of two; every policy gives at least 256 without being asked.
    pub align: u64,
    /// The stream whose work will use the block.
    pub stream: Stream,
    /// The private pool to draw from.
    pub group: Group,
}

impl Request {
    /// A request on a stream, in the default group, at the policy's own alignment.
    #[must_use]
    pub fn new(bytes: u64, stream: Stream) -> Self {
        Self {
            bytes,
            align: 1,
            stream,
            group: Group::default(),
        }
    }
}

/// A piece of memory in a caller's hand. Cannot be copied; consumed when given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a block that is dropped is never given back"]
pub struct Block {
    address: u64,
    bytes: u64,
    requested: u64,
    stream: Stream,
    /// One more than the key's position, so that an absent block takes no more room than one.
    key: NonZeroU32,
}

impl Block {
    /// Made by a policy for a block it hands out; `key` is its own name for it.
    pub fn new(address: u64, bytes: u64, request: &Request, key: BlockId) -> Self {
        let key = NonZeroU32::MIN.saturating_add(key.index() as u32);
        Self {
            address,
            bytes,
            requested: request.bytes,
            stream: request.stream,
            key,
        }
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the block, at least those requested.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that were asked for.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// The stream it was allocated for.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// The policy's own name for it.
    #[must_use]
    pub fn key(&self) -> BlockId {
        BlockId::from_index(self.key.get() - 1)
    }
}
