//! `cuMemAlloc`: blocks aligned to 512 bytes. Small blocks share granules of 2 MiB, as in the driver.
#![forbid(unsafe_code)]

use super::heap::ALIGN;
use super::{Block, GRANULE, Kind, Memory};
use crate::access::Origin;
use crate::error::{Answer, Code};

impl Memory {
    pub(crate) fn allocate(&mut self, device: u32, bytes: u64, origin: Origin) -> Answer<u64> {
        let len = bytes.checked_next_multiple_of(ALIGN).ok_or(Code::OUT_OF_MEMORY)?;
        let chunk = len.checked_next_multiple_of(GRANULE).ok_or(Code::OUT_OF_MEMORY)?;
        let at = if len > GRANULE / 2 {
            // The block gets its own granules. Other blocks cannot use the rest of them.
            self.new_chunk(device, chunk)?
        } else if let Some((at, _)) = self.card_mut(device)?.plain.take(len, |_| false) {
            at
        } else {
            let at = self.new_chunk(device, chunk)?;
            let heap = &mut self.card_mut(device)?.plain;
            heap.add_chunk(at, chunk);
            heap.take(len, |_| false).ok_or(Code::UNKNOWN)?.0
        };
        self.enter(at, bytes, Kind::Plain, device, origin);
        Ok(at)
    }

    /// Frees a block from plain allocation, from a pool or of managed memory. Work that uses it must be complete.
    pub(crate) fn free(&mut self, at: u64) -> Answer<Block> {
        let block = self.block_at(at)?.clone();
        if let Some(pool) = block.pool() {
            let pool = self.pools.get_mut(&pool).ok_or(Code::INVALID_VALUE)?;
            pool.heap.free(at, None).ok_or(Code::INVALID_VALUE)?;
            self.blocks.remove(&at);
            self.unexport(at);
            return Ok(block);
        }
        match &block.kind {
            Kind::Plain => {
                let heap = &mut self.card_mut(block.device)?.plain;
                if heap.free(at, None).is_none() {
                    self.drop_chunk(at, block.len.next_multiple_of(GRANULE));
                } else {
                    let empty = heap.empty_chunks();
                    for (base, len) in empty {
                        self.card_mut(block.device)?.plain.remove_chunk(base);
                        self.drop_chunk(base, len);
                    }
                }
            }
            Kind::Managed(_) => {
                let len = block.len.next_multiple_of(GRANULE);
                self.arena.clear(at, len).map_err(|_| Code::OPERATING_SYSTEM)?;
                self.space.give(at, len);
            }
            Kind::Pool(_) | Kind::Host(_) | Kind::Registered(_) | Kind::Reserved | Kind::Opened(_) => {
                return Err(Code::INVALID_VALUE);
            }
        }
        self.blocks.remove(&at);
        self.unexport(at);
        Ok(block)
    }
}
