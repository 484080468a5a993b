//! Requests for blocks, and the blocks that callers hold.

use crate::space::{BlockId, Space};
use std::num::NonZeroU64;

/// The order in which work runs on a device. The caller chooses a small number for each stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u32);

impl Stream {
    /// The device's default stream.
    pub const DEFAULT: Self = Self(0);
}

/// A caller's private pool. Memory of one group never serves another group. The caller sets it explicitly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u32);

/// One request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes requested.
    pub bytes: u64,
    /// Alignment requested, a power of two. Every policy aligns to at least 256 by default.
    pub align: u64,
    /// The stream whose work will use the block.
    pub stream: Stream,
    /// The private pool that serves the request.
    pub group: Group,
}

impl Request {
    /// Creates a request in the default group with the policy's own alignment.
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

/// A piece of memory that a caller holds. It cannot be copied, and freeing it consumes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a block that is dropped is never given back"]
pub struct Block {
    address: u64,
    /// The bytes plus one. A value that is never zero makes `Option<Block>` as small as `Block`. The field has 64 bits,
    /// because blocks are copied faster if it fills a whole word.
    bytes: NonZeroU64,
    requested: u64,
    stream: Stream,
    key: BlockId,
}

impl Block {
    /// Creates a block for a policy that allocates it. `key` is the policy's identifier of the block.
    pub fn new(address: u64, bytes: u64, request: &Request, key: BlockId) -> Self {
        Self {
            address,
            bytes: NonZeroU64::MIN.saturating_add(bytes),
            requested: request.bytes,
            stream: request.stream,
            key,
        }
    }

    /// Creates the block that a policy allocates in its space.
    #[inline]
    pub fn of(space: &Space, id: BlockId, request: &Request) -> Self {
        Self::new(space.address(id), space.bytes(id), request, id)
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes, which is at least the requested size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get() - 1
    }

    /// Returns the requested size in bytes.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Returns the stream for which the block was allocated.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the policy's identifier of the block.
    #[must_use]
    pub fn key(&self) -> BlockId {
        self.key
    }
}
