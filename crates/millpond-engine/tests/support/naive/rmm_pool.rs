//! A model of RMM's pool, from its rules, with linear scans of address-ordered lists.

use super::Naive;
use super::device::Device;

#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    bytes: u64,
    /// Whether the block starts an upstream block, so that it is never joined with the previous one.
    head: bool,
}

struct List {
    stream: u32,
    blocks: Vec<Block>,
}

impl List {
    fn insert(&mut self, block: Block) {
        let at = self
            .blocks
            .iter()
            .position(|b| b.address > block.address)
            .unwrap_or(self.blocks.len());
        self.blocks.insert(at, block);
        let mut at = 0;
        while at + 1 < self.blocks.len() {
            let (here, next) = (self.blocks[at], self.blocks[at + 1]);
            if here.address + here.bytes == next.address && !next.head {
                self.blocks[at].bytes += next.bytes;
                self.blocks.remove(at + 1);
            } else {
                at += 1;
            }
        }
    }

    fn take(&mut self, size: u64) -> Option<Block> {
        let mut best: Option<usize> = None;
        for (at, block) in self.blocks.iter().enumerate() {
            if block.bytes >= size && best.is_none_or(|b| block.bytes < self.blocks[b].bytes) {
                best = Some(at);
            }
        }
        best.map(|at| self.blocks.remove(at))
    }
}

#[derive(Default)]
struct Pool {
    lists: Vec<List>,
    bytes: u64,
}

pub(crate) struct NaiveRmm {
    device: Device,
    pools: Vec<Pool>,
    /// Live blocks with their group and stream.
    live: Vec<(Block, usize, u32)>,
}

impl NaiveRmm {
    pub(crate) fn new(device: Device) -> Self {
        Self {
            device,
            pools: Vec::new(),
            live: Vec::new(),
        }
    }

    /// Returns a block, and the list that gets the remainder.
    fn find(&mut self, group: usize, own: usize, size: u64) -> Option<(Block, usize)> {
        let pool = &mut self.pools[group];
        if let Some(block) = pool.lists[own].take(size) {
            return Some((block, own));
        }
        for other in 0..pool.lists.len() {
            if let Some(block) = pool.lists[other].take(size) {
                return Some((block, other));
            }
        }
        for other in (0..pool.lists.len()).filter(|o| *o != own) {
            for block in std::mem::take(&mut pool.lists[other].blocks) {
                pool.lists[own].insert(block);
            }
            if let Some(block) = pool.lists[own].take(size) {
                return Some((block, own));
            }
        }
        let mut wanted = size.max(pool.bytes);
        loop {
            if let Some(address) = self.device.take(wanted) {
                pool.bytes += wanted;
                let block = Block {
                    address,
                    bytes: wanted,
                    head: true,
                };
                return Some((block, own));
            }
            if wanted == size {
                return None;
            }
            wanted = size.max(wanted / 2);
        }
    }
}

impl Naive for NaiveRmm {
    fn allocate(&mut self, bytes: u64, stream: u32, group: u32) -> Option<u64> {
        let size = bytes.max(1).div_ceil(256) * 256;
        let group = group as usize;
        while self.pools.len() <= group {
            self.pools.push(Pool::default());
        }
        let lists = &mut self.pools[group].lists;
        let own = lists.iter().position(|l| l.stream == stream).unwrap_or_else(|| {
            lists.push(List {
                stream,
                blocks: Vec::new(),
            });
            lists.len() - 1
        });
        let (mut block, list) = self.find(group, own, size)?;
        if block.bytes > size {
            self.pools[group].lists[list].insert(Block {
                address: block.address + size,
                bytes: block.bytes - size,
                head: false,
            });
            block.bytes = size;
        }
        self.live.push((block, group, stream));
        Some(block.address)
    }

    fn free(&mut self, address: u64) {
        let at = self.live.iter().position(|l| l.0.address == address);
        let (block, group, stream) = self.live.remove(at.expect("a live block"));
        let lists = &mut self.pools[group].lists;
        if let Some(list) = lists.iter_mut().find(|l| l.stream == stream) {
            list.insert(block);
        }
    }

    fn release(&mut self) {}
}
