//! Host memory that CUDA knows: pinned by the driver, or registered by the client.
#![forbid(unsafe_code)]

use super::{Block, GRANULE, Kind, Memory};
use crate::access::Origin;
use crate::error::{Answer, Code};

impl Memory {
    /// Allocates pinned host memory. `device` is the device of the current context, which clients can query.
    pub(crate) fn host_allocate(
        &mut self,
        device: u32,
        bytes: u64,
        flags: u32,
        origin: Origin,
    ) -> Answer<u64> {
        let at = self.host_chunk(bytes)?;
        self.enter(at, bytes, Kind::Host(flags), device, origin);
        Ok(at)
    }

    /// Allocates host memory at addresses of the emulator.
    pub(super) fn host_chunk(&mut self, bytes: u64) -> Answer<u64> {
        let len = bytes
            .checked_next_multiple_of(GRANULE)
            .filter(|len| *len > 0)
            .ok_or(Code::OUT_OF_MEMORY)?;
        let at = self.space.take(len, GRANULE).ok_or(Code::OUT_OF_MEMORY)?;
        if self.arena.host(at, len).is_err() {
            self.space.give(at, len);
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(at)
    }

    pub(crate) fn host_free(&mut self, at: u64) -> Answer<Block> {
        let block = self.block_at(at)?.clone();
        Code::INVALID_VALUE.when(!matches!(block.kind, Kind::Host(_)))?;
        self.blocks.remove(&at);
        self.drop_host_chunk(at, block.len.next_multiple_of(GRANULE));
        Ok(block)
    }

    pub(super) fn drop_host_chunk(&mut self, at: u64, len: u64) {
        let _ = self.arena.clear(at, len);
        self.space.give(at, len);
    }

    pub(crate) fn register(
        &mut self,
        device: u32,
        at: u64,
        bytes: u64,
        flags: u32,
        origin: Origin,
    ) -> Answer {
        let end = at
            .checked_add(bytes)
            .filter(|_| at != 0 && bytes != 0)
            .ok_or(Code::INVALID_VALUE)?;
        let before = self.blocks.range(..end).next_back();
        Code::HOST_MEMORY_ALREADY_REGISTERED
            .when(before.is_some_and(|(base, block)| base + block.len > at))?;
        self.enter(at, bytes, Kind::Registered(flags), device, origin);
        Ok(())
    }

    pub(crate) fn unregister(&mut self, at: u64) -> Answer<Block> {
        match self.block_at(at).map(|block| &block.kind) {
            Ok(Kind::Registered(_)) => self.blocks.remove(&at).ok_or(Code::UNKNOWN),
            Ok(Kind::Host(_)) => Err(Code::INVALID_VALUE),
            // The address must be the one that was registered.
            _ if matches!(self.block(at), Some((_, block)) if matches!(block.kind, Kind::Registered(_))) => {
                Err(Code::INVALID_VALUE)
            }
            _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
    }
}
