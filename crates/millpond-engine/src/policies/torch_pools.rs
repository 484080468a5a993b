//! The free lists of both torch policies: one for each stream, size class and private pool.

use super::free_lists::FreeLists;
use crate::block::{Block, Group, Request, Stream};
use crate::index::SizeIndex;
use crate::space::BlockId;
use std::collections::BTreeMap;

/// The pool of a block. PyTorch has one for each stream, size class and private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolKey {
    pub(super) group: Group,
    pub(super) small: bool,
    pub(super) stream: Stream,
}

/// All blocks, and the free ones by pool. The number of a pool is that of its free list.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) lists: FreeLists,
    /// The pools in order of first use.
    keys: Vec<PoolKey>,
    numbers: BTreeMap<PoolKey, u32>,
    /// The most recently used small and large pool. Programs rarely change their stream.
    recent: [Option<(PoolKey, u32)>; 2],
    /// For each block, the number of searches in its class when it was freed. `None` if ages are not needed.
    ages: Option<Vec<u64>>,
    /// Searches so far in the large and in the small class of the default group.
    searches: [u64; 2],
}

impl Pools {
    /// Creates empty pools. With `with_ages`, they record how many searches have passed over each free block.
    pub(super) fn new(with_ages: bool) -> Self {
        Self {
            ages: with_ages.then(Vec::new),
            ..Self::default()
        }
    }

    /// Returns the number of a pool. The first use creates the pool.
    #[inline]
    pub(super) fn number(&mut self, key: PoolKey) -> u32 {
        let recent = &mut self.recent[usize::from(key.small)];
        if let Some((known, number)) = *recent
            && known == key
        {
            return number;
        }
        let number = *self.numbers.entry(key).or_insert_with(|| {
            self.keys.push(key);
            self.lists.add_list()
        });
        *recent = Some((key, number));
        number
    }

    /// Returns the key of a pool.
    pub(super) fn key(&self, number: u32) -> PoolKey {
        self.keys[number as usize]
    }

    /// Returns the free blocks of a pool.
    pub(super) fn free(&self, number: u32) -> &SizeIndex {
        self.lists.free(number)
    }

    /// Returns every pool with its free blocks, in order of first use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PoolKey, &SizeIndex)> {
        let pools = (0u32..).zip(&self.keys);
        pools.map(|(number, key)| (*key, self.free(number)))
    }

    /// Returns the numbers of the pools of the default group, in the order in which PyTorch visits them: large before
    /// small, then by stream. Private pools keep their memory until their owner ends them.
    pub(super) fn default_group(&self) -> Vec<u32> {
        let pools = self.numbers.iter();
        pools
            .filter(|(key, _)| key.group == Group::default())
            .map(|(_, number)| *number)
            .collect()
    }

    /// Counts a search, for the ages.
    #[inline]
    pub(super) fn searched(&mut self, key: PoolKey) {
        if self.ages.is_some() && key.group == Group::default() {
            self.searches[usize::from(key.small)] += 1;
        }
    }

    /// Returns the number of searches that have passed over a free block of the large class.
    pub(super) fn age(&self, id: BlockId) -> u64 {
        let freed_at = self.ages.as_ref().and_then(|ages| ages.get(id.index())).copied();
        self.searches[0] - freed_at.unwrap_or(self.searches[0])
    }

    /// Records that a block is free from now on.
    #[inline]
    fn record_age(&mut self, id: BlockId) {
        if let Some(ages) = &mut self.ages {
            if ages.len() <= id.index() {
                ages.resize(id.index() + 1, 0);
            }
            let key = self.keys[self.lists.space.owner(id) as usize];
            ages[id.index()] = self.searches[usize::from(key.small)];
        }
    }

    /// Marks a block free and lists it.
    pub(super) fn list(&mut self, id: BlockId) {
        self.lists.relist(id);
        self.record_age(id);
    }

    /// Joins a block with its free neighbours and lists it. Returns the resulting block.
    #[inline]
    pub(super) fn put_back(&mut self, id: BlockId) -> BlockId {
        let id = self.lists.put_back(id);
        self.record_age(id);
        id
    }

    /// Allocates an unlisted block. If it has more than `keep` bytes, the remainder is listed.
    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: &Request, keep: u64) -> Block {
        let (block, rest) = self.lists.hand_out(id, request, keep);
        if let Some(rest) = rest {
            self.record_age(rest);
        }
        block
    }
}
