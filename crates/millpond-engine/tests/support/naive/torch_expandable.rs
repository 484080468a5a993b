//! A model of PyTorch's allocator with expandable segments, from the rules in its notes.
//!
//! A range is a set of mapped handles and a list of live blocks. Everything else is computed each time it is needed.

use super::Naive;
use super::device::Device;
use super::torch_native::rounded;
use millpond_engine::TorchConf;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

struct Range {
    pool: (u32, u32, bool),
    base: u64,
    bytes: u64,
    handle: u64,
    mapped: BTreeSet<u64>,
    /// Start and end address of each live block.
    live: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Live,
    Free,
    Unmapped,
}

impl Range {
    /// Returns its blocks in address order: state, start, end.
    fn blocks(&self) -> Vec<(State, u64, u64)> {
        let mut cuts = BTreeSet::from([self.base, self.base + self.bytes]);
        for (start, end) in &self.live {
            cuts.extend([*start, *end]);
        }
        for handle in &self.mapped {
            cuts.extend([
                self.base + handle * self.handle,
                self.base + (handle + 1) * self.handle,
            ]);
        }
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let mut blocks: Vec<(State, u64, u64)> = Vec::new();
        for pair in cuts.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            let of = self.live.iter().find(|l| l.0 <= start && end <= l.1);
            let state = match of {
                Some(_) => State::Live,
                None if self.mapped.contains(&((start - self.base) / self.handle)) => State::Free,
                None => State::Unmapped,
            };
            match blocks.last_mut() {
                Some(last)
                    if last.0 == state && (state != State::Live || of.is_some_and(|l| l.0 < start)) =>
                {
                    last.2 = end;
                }
                _ => blocks.push((state, start, end)),
            }
        }
        blocks
    }
}

pub(crate) struct NaiveExpandable {
    conf: TorchConf,
    device: Device,
    /// Bytes of the whole device, if they are known.
    device_bytes: Option<u64>,
    ranges: Vec<Range>,
}

impl NaiveExpandable {
    pub(crate) fn new(conf: &TorchConf, device: Device, device_bytes: Option<u64>) -> Self {
        Self {
            conf: conf.clone(),
            device,
            device_bytes,
            ranges: Vec::new(),
        }
    }

    /// Returns the free blocks of a pool as (bytes, address, bytes after possible growth), smallest first.
    fn free_blocks(&self, pool: (u32, u32, bool)) -> Vec<(u64, u64, u64)> {
        let mut found = Vec::new();
        for range in self.ranges.iter().filter(|r| r.pool == pool) {
            let blocks = range.blocks();
            for (at, (state, start, end)) in blocks.iter().enumerate() {
                if *state == State::Free {
                    let next = blocks.get(at + 1).filter(|n| n.0 == State::Unmapped);
                    found.push((end - start, *start, end - start + next.map_or(0, |n| n.2 - n.1)));
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn best_fit(&self, pool: (u32, u32, bool), size: u64) -> Option<u64> {
        let fits: Vec<_> = self
            .free_blocks(pool)
            .into_iter()
            .filter(|b| b.0 >= size)
            .collect();
        let mut chosen = *fits.first()?;
        for other in &fits[1..] {
            if other.2 >= chosen.2 {
                break;
            }
            chosen = *other;
        }
        Some(chosen.1)
    }

    /// Maps the missing part at the lowest place with room. Returns `None` if memory runs out.
    fn expand(&mut self, pool: (u32, u32, bool), size: u64) -> Option<u64> {
        let mut place = None;
        for (number, range) in self.ranges.iter().enumerate().filter(|(_, r)| r.pool == pool) {
            // The place starts at an unmapped block or at the free block before it.
            let blocks = range.blocks();
            for at in 0..blocks.len() {
                let starts = blocks[at].0 == State::Unmapped
                    || blocks[at].0 == State::Free
                        && blocks.get(at + 1).is_some_and(|n| n.0 == State::Unmapped);
                let run = blocks[at..].iter().take_while(|b| b.0 != State::Live);
                let room: u64 = run.map(|b| b.2 - b.1).sum();
                if starts && room >= size && place.is_none_or(|(_, address)| blocks[at].1 < address) {
                    place = Some((number, blocks[at].1));
                }
            }
        }
        let (number, start) = place.unwrap_or_else(|| {
            let handle = if pool.2 { 2 * MIB } else { 20 * MIB };
            let wanted = self.device_bytes.map_or(1 << 50, |c| c + c / 8).max(size);
            let bytes = wanted.div_ceil(handle) * handle;
            let base = self.device.addresses(bytes);
            self.ranges.push(Range {
                pool,
                base,
                bytes,
                handle,
                mapped: BTreeSet::new(),
                live: Vec::new(),
            });
            (self.ranges.len() - 1, base)
        });
        loop {
            let range = &mut self.ranges[number];
            let blocks = range.blocks();
            let at = blocks.iter().position(|b| b.1 <= start && start < b.2)?;
            let have = if blocks[at].0 == State::Free {
                blocks[at].2 - start
            } else {
                0
            };
            if have >= size {
                return Some(blocks[at].1);
            }
            let (_, from, to) = *blocks[at..].iter().find(|b| b.0 == State::Unmapped)?;
            let part = (size - have).min(to - from).div_ceil(range.handle);
            if !self.device.charge(part * range.handle) {
                return None;
            }
            let first = (from - range.base) / range.handle;
            range.mapped.extend(first..first + part);
        }
    }
}

impl Naive for NaiveExpandable {
    fn allocate(&mut self, bytes: u64, stream: u32, group: u32) -> Option<u64> {
        let size = rounded(&self.conf, bytes);
        let pool = (group, stream, size <= MIB);
        let fit = self.best_fit(pool, size).or_else(|| self.expand(pool, size));
        let address = fit.or_else(|| {
            self.release();
            self.expand(pool, size)
        })?;
        let holds = |r: &&mut Range| (r.base..r.base + r.bytes).contains(&address);
        let range = self.ranges.iter_mut().find(holds).expect("its range");
        range.live.push((address, address + size));
        Some(address)
    }

    fn free(&mut self, address: u64) {
        for range in &mut self.ranges {
            range.live.retain(|l| l.0 != address);
        }
    }

    fn release(&mut self) {
        let used = &mut self.device.used;
        self.ranges.retain_mut(|range| {
            if range.pool.0 != 0 {
                return true;
            }
            let (base, handle, live) = (range.base, range.handle, &range.live);
            let before = range.mapped.len() as u64;
            range.mapped.retain(|h| {
                let start = base + h * handle;
                live.iter().any(|l| l.0 < start + handle && start < l.1)
            });
            let unmapped = before - range.mapped.len() as u64;
            *used -= unmapped * handle;
            // A range that never had memory is kept for the next attempt.
            unmapped == 0 || !range.mapped.is_empty()
        });
    }
}
