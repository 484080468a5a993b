//! A model of PyTorch's allocator without expandable segments, from the rules in its notes.

use super::Naive;
use super::device::Device;
use millpond_engine::TorchConf;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Block {
    segment: u32,
    address: u64,
    bytes: u64,
    free: bool,
    pool: (u32, u32, bool),
}

pub(crate) struct NaiveTorch {
    conf: TorchConf,
    device: Device,
    segments: u32,
    /// Unordered.
    blocks: Vec<Block>,
}

impl NaiveTorch {
    pub(crate) fn new(conf: &TorchConf, device: Device) -> Self {
        Self {
            conf: conf.clone(),
            device,
            segments: 0,
            blocks: Vec::new(),
        }
    }

    fn rounded(&self, bytes: u64) -> u64 {
        rounded(&self.conf, bytes)
    }

    fn neighbours(&self, at: usize) -> usize {
        let segment = self.blocks[at].segment;
        self.blocks.iter().filter(|b| b.segment == segment).count() - 1
    }

    fn release_at(&mut self, at: usize) {
        assert_eq!(self.neighbours(at), 0);
        self.device.used -= self.blocks[at].bytes;
        self.blocks.remove(at);
    }

    /// Returns the index of the best fit among the free blocks of one pool.
    fn best_fit(&self, pool: (u32, u32, bool), bytes: u64) -> Option<usize> {
        (0..self.blocks.len())
            .filter(|at| {
                self.blocks[*at].free && self.blocks[*at].pool == pool && self.blocks[*at].bytes >= bytes
            })
            .min_by_key(|at| (self.blocks[*at].bytes, self.blocks[*at].address))
    }

    fn release_oversize(&mut self, pool: (u32, u32, bool), bytes: u64) -> bool {
        let Some(max_split) = self.conf.max_split_size else {
            return false;
        };
        let wanted = bytes.max(max_split);
        if let Some(at) = self.best_fit(pool, wanted) {
            self.release_at(at);
            return true;
        }
        let mut released = 0;
        while released < wanted {
            let largest = (0..self.blocks.len())
                .filter(|at| {
                    let block = &self.blocks[*at];
                    block.free && block.pool == pool && block.bytes >= max_split
                })
                .max_by_key(|at| (self.blocks[*at].bytes, self.blocks[*at].address));
            let Some(at) = largest else { return false };
            released += self.blocks[at].bytes;
            self.release_at(at);
        }
        true
    }
}

/// Returns the block size for a request, for both of PyTorch's modes.
pub(crate) fn rounded(conf: &TorchConf, bytes: u64) -> u64 {
    if bytes < 512 {
        return 512;
    }
    let divisions = conf.roundup_power2_divisions.of(bytes);
    if divisions > 1 && bytes > 512 * divisions {
        let mut power = 1;
        while power * 2 <= bytes {
            power *= 2;
        }
        let step = (power / divisions).max(1);
        let mut size = power;
        while size < bytes {
            size += step;
        }
        return size;
    }
    bytes.div_ceil(512) * 512
}

impl Naive for NaiveTorch {
    fn allocate(&mut self, bytes: u64, stream: u32, group: u32) -> Option<u64> {
        let size = self.rounded(bytes);
        let small = size <= MIB;
        let pool = (group, stream, small);
        let max_split = self.conf.max_split_size.unwrap_or(u64::MAX);
        let fit = self.best_fit(pool, size).filter(|at| {
            let found = self.blocks[*at].bytes;
            let wasted = size < max_split && found >= max_split;
            let rounded = size >= max_split && found >= size + self.conf.max_non_split_rounding;
            !wasted && !rounded
        });
        let at = match fit {
            Some(at) => at,
            None => {
                let segment = if small {
                    2 * MIB
                } else if size < 10 * MIB {
                    20 * MIB
                } else {
                    size.div_ceil(2 * MIB) * 2 * MIB
                };
                let mut address = self.device.take(segment);
                if address.is_none() && self.release_oversize(pool, size) {
                    address = self.device.take(segment);
                }
                if address.is_none() {
                    self.release();
                    address = self.device.take(segment);
                }
                self.segments += 1;
                self.blocks.push(Block {
                    segment: self.segments,
                    address: address?,
                    bytes: segment,
                    free: true,
                    pool,
                });
                self.blocks.len() - 1
            }
        };
        let rest = self.blocks[at].bytes - size;
        let split = if small {
            rest >= 512
        } else {
            size < max_split && rest > MIB
        };
        if split {
            let mut tail = self.blocks[at].clone();
            tail.address += size;
            tail.bytes = rest;
            self.blocks[at].bytes = size;
            self.blocks.push(tail);
        }
        self.blocks[at].free = false;
        Some(self.blocks[at].address)
    }

    fn free(&mut self, address: u64) {
        let at = self.blocks.iter().position(|b| b.address == address && !b.free);
        let mut block = self.blocks.remove(at.expect("a live block"));
        block.free = true;
        // Two passes, for one neighbour on each side.
        for _ in 0..2 {
            let touching = self.blocks.iter().position(|b| {
                let joins = b.address + b.bytes == block.address || block.address + block.bytes == b.address;
                b.free && b.segment == block.segment && joins
            });
            if let Some(at) = touching {
                let other = self.blocks.remove(at);
                block.address = block.address.min(other.address);
                block.bytes += other.bytes;
            }
        }
        self.blocks.push(block);
    }

    fn release(&mut self) {
        for at in (0..self.blocks.len()).rev() {
            let block = &self.blocks[at];
            if block.free && block.pool.0 == 0 && self.neighbours(at) == 0 {
                self.release_at(at);
            }
        }
    }
}
