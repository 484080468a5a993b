//! Blocks inside chunks of device memory, for plain allocation and for pools.
#![forbid(unsafe_code)]

use crate::clock::Stamp;
use std::collections::{BTreeMap, BTreeSet};

/// The alignment of every block, as in the driver.
pub(crate) const ALIGN: u64 = 512;

/// A block that was freed on a stream and may still be in use by work that was queued there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The work that frees it.
    pub(crate) task: u64,
    /// The position of that work in the order of its stream.
    pub(crate) stamp: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
    Pending(Pending),
}

#[derive(Clone, Copy, Debug)]
struct Block {
    len: u64,
    state: State,
}

/// Chunks and the blocks that fill them completely.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    chunks: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Block>,
    /// Free blocks by length, so that the smallest fitting one is found first.
    free: BTreeSet<(u64, u64)>,
    pending: BTreeSet<u64>,
    reserved: u64,
    used: u64,
}

impl Heap {
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn add_chunk(&mut self, base: u64, len: u64) {
        self.chunks.insert(base, len);
        self.reserved += len;
        self.put(base, len, State::Free);
    }

    /// Returns chunks without live or pending blocks, the highest first.
    pub(crate) fn empty_chunks(&self) -> Vec<(u64, u64)> {
        let whole = |(base, len): &(&u64, &u64)| self.free.contains(&(**len, **base));
        self.chunks
            .iter()
            .rev()
            .filter(whole)
            .map(|(base, len)| (*base, *len))
            .collect()
    }

    pub(crate) fn remove_chunk(&mut self, base: u64) {
        if let Some(len) = self.chunks.remove(&base) {
            self.blocks.remove(&base);
            self.free.remove(&(len, base));
            self.reserved -= len;
        }
    }

    /// Allocates a block of at least `len`. Uses the smallest fitting block that is free, or pending and usable.
    pub(crate) fn take(
        &mut self,
        len: u64,
        usable: impl Fn(&Pending) -> bool,
    ) -> Option<(u64, Option<Pending>)> {
        let free = self
            .free
            .range((len, 0)..)
            .next()
            .map(|&(size, at)| (size, at, None));
        let pending = self.pending.iter().filter_map(|at| match self.blocks.get(at) {
            Some(Block {
                len: size,
                state: State::Pending(pending),
            }) if *size >= len && usable(pending) => Some((*size, *at, Some(*pending))),
            _ => None,
        });
        let (size, at, waits) = pending
            .chain(free)
            .min_by_key(|found| (found.0, found.2.is_none(), found.1))?;
        self.free.remove(&(size, at));
        self.pending.remove(&at);
        self.put(at, len, State::Live);
        if size > len {
            let state = waits.map_or(State::Free, State::Pending);
            self.put(at + len, size - len, state);
        }
        self.used += len;
        Some((at, waits))
    }

    /// Frees a block at once, or when the work of `pending` is complete.
    pub(crate) fn free(&mut self, at: u64, pending: Option<Pending>) -> Option<u64> {
        let block = self.blocks.get(&at).filter(|block| block.state == State::Live)?;
        let len = block.len;
        self.used -= len;
        match pending {
            Some(pending) => self.put(at, len, State::Pending(pending)),
            None => self.merge(at, len),
        }
        Some(len)
    }

    /// Frees pending blocks whose work is complete.
    pub(crate) fn settle(&mut self, done: impl Fn(&Pending) -> bool) {
        let ready = self.pending.iter().filter_map(|at| match self.blocks.get(at) {
            Some(Block {
                len,
                state: State::Pending(pending),
            }) if done(pending) => Some((*at, *len)),
            _ => None,
        });
        for (at, len) in ready.collect::<Vec<_>>() {
            self.pending.remove(&at);
            self.merge(at, len);
        }
    }

    fn put(&mut self, at: u64, len: u64, state: State) {
        self.blocks.insert(at, Block { len, state });
        match state {
            State::Free => drop(self.free.insert((len, at))),
            State::Pending(_) => drop(self.pending.insert(at)),
            State::Live => {}
        }
    }

    fn merge(&mut self, at: u64, len: u64) {
        let (mut from, mut to) = (at, at + len);
        if let Some((&before, block)) = self.blocks.range(..at).next_back()
            && block.state == State::Free
            && before + block.len == at
            && !self.chunks.contains_key(&at)
        {
            from = before;
            self.free.remove(&(block.len, before));
        }
        if let Some(after) = self.blocks.get(&to).copied()
            && after.state == State::Free
            && !self.chunks.contains_key(&to)
        {
            self.blocks.remove(&to);
            self.free.remove(&(after.len, to));
            to += after.len;
        }
        self.blocks.remove(&at);
        self.put(from, to - from, State::Free);
        self.check();
    }

    /// Checks that blocks fill their chunks, and that the counters are correct.
    fn check(&self) {
        if cfg!(debug_assertions) && self.blocks.len() < 64 {
            let held = self.blocks.values().filter(|block| block.state == State::Live);
            assert_eq!(held.map(|block| block.len).sum::<u64>(), self.used);
            for (base, len) in &self.chunks {
                let mut at = *base;
                for (start, block) in self.blocks.range(base..&(base + len)) {
                    assert_eq!(at, *start, "hole or overlap");
                    at += block.len;
                }
                assert_eq!(at, base + len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn(&Pending) -> bool = |_| false;

    #[test]
    fn blocks_are_split_and_merged_and_empty_chunks_are_found() {
        let mut heap = Heap::default();
        heap.add_chunk(0, 4096);
        heap.add_chunk(4096, 4096);
        let (a, _) = heap.take(1024, NEVER).unwrap();
        let (b, _) = heap.take(4096, NEVER).unwrap();
        assert_eq!((heap.take(4096, NEVER), heap.used()), (None, 5120));
        assert_eq!(heap.free(a + 512, None), None, "no block begins there");
        heap.free(a, None);
        heap.free(b, None);
        assert_eq!(heap.free(b, None), None, "a second time");
        assert_eq!(
            heap.empty_chunks(),
            [(4096, 4096), (0, 4096)],
            "chunks are not merged"
        );
    }

    #[test]
    fn pending_blocks_are_reused_only_by_permitted_requests() {
        let mut heap = Heap::default();
        heap.add_chunk(0, 2048);
        let (at, _) = heap.take(2048, NEVER).unwrap();
        let pending = Pending {
            task: 7,
            stamp: Stamp { stream: 1, place: 1 },
        };
        heap.free(at, Some(pending));
        assert_eq!(heap.take(512, NEVER), None);
        assert_eq!(heap.take(512, |p| p.stamp.stream == 1), Some((0, Some(pending))));
        assert_eq!(heap.empty_chunks(), []);
        heap.free(0, None);
        heap.settle(|p| p.task == 7);
        assert_eq!(heap.empty_chunks(), [(0, 2048)]);
    }
}
