//! The free lists of both torch policies: one for each stream, size class and private pool.

use crate::block::{Block, Group, Request, Stream};
use crate::index::{Entry, SizeIndex};
use crate::space::{BlockId, Space, State};
use std::collections::BTreeMap;

/// The pool of a block. PyTorch has one for each stream, size class and private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolKey {
    pub(super) group: Group,
    pub(super) small: bool,
    pub(super) stream: Stream,
}

/// Numbers the pools in order of first use.
#[derive(Debug, Default)]
pub(super) struct PoolTable {
    numbers: BTreeMap<PoolKey, u32>,
    /// The most recently used small and large pool. Programs rarely change their stream.
    recent: [Option<(PoolKey, u32)>; 2],
}

impl PoolTable {
    /// Returns the number of a pool. A new pool gets the next free number.
    #[inline]
    pub(super) fn number(&mut self, key: PoolKey) -> u32 {
        let recent = &mut self.recent[usize::from(key.small)];
        if let Some((known, number)) = *recent
            && known == key
        {
            return number;
        }
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        *recent = Some((key, number));
        number
    }

    /// Returns the pools in the order in which PyTorch visits them: large before small, then by stream.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PoolKey, u32)> + '_ {
        self.numbers.iter().map(|(key, number)| (*key, *number))
    }
}

/// One free list.
pub(super) struct Pool {
    pub(super) key: PoolKey,
    pub(super) free: SizeIndex,
}

/// All blocks, and the free ones by pool.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) space: Space,
    table: PoolTable,
    pools: Vec<Pool>,
    /// The age of its pool when each block was freed. It is kept only if ages are needed.
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
        let number = self.table.number(key);
        if number as usize == self.pools.len() {
            self.pools.push(Pool {
                key,
                free: SizeIndex::new(),
            });
        }
        number
    }

    pub(super) fn pool(&self, number: u32) -> &Pool {
        &self.pools[number as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter()
    }

    /// Returns the numbers of the pools of the default group, in the order in which PyTorch visits them. Private pools
    /// keep their memory until their owner ends them.
    pub(super) fn default_group(&self) -> Vec<u32> {
        self.table
            .iter()
            .filter(|(key, _)| key.group == Group::default())
            .map(|(_, number)| number)
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

    /// Removes a free block from its list. It stays marked free until it is allocated or joined.
    #[inline]
    pub(super) fn unlist(&mut self, id: BlockId) {
        let number = self.space.owner(id) as usize;
        self.pools[number]
            .free
            .remove(self.space.bytes(id), self.space.address(id));
    }

    /// Marks a block free and lists it.
    #[inline]
    pub(super) fn list(&mut self, id: BlockId) {
        let pool = &mut self.pools[self.space.owner(id) as usize];
        self.space.set_state(id, State::Free);
        if let Some(ages) = &mut self.ages {
            if ages.len() <= id.index() {
                ages.resize(id.index() + 1, 0);
            }
            ages[id.index()] = self.searches[usize::from(pool.key.small)];
        }
        pool.free.insert(Entry {
            bytes: self.space.bytes(id),
            address: self.space.address(id),
            id,
        });
    }

    /// Joins a block with its free neighbours and lists it. Returns the resulting block.
    #[inline]
    pub(super) fn put_back(&mut self, id: BlockId) -> BlockId {
        let mut id = id;
        if let Some(prev) = self
            .space
            .prev(id)
            .filter(|p| self.space.state(*p) == State::Free)
        {
            self.unlist(prev);
            self.space.merge_next(prev);
            id = prev;
        }
        if let Some(next) = self
            .space
            .next(id)
            .filter(|n| self.space.state(*n) == State::Free)
        {
            self.unlist(next);
            self.space.merge_next(id);
        }
        self.list(id);
        id
    }

    /// Allocates an unlisted block. With `split`, the part beyond `bytes` is split off and listed.
    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: &Request, bytes: u64, split: bool) -> Block {
        if split {
            let rest = self.space.split(id, bytes);
            self.list(rest);
        }
        self.space.set_state(id, State::Live);
        Block::new(self.space.address(id), self.space.bytes(id), request, id)
    }

    /// Asserts that the list of each pool holds exactly its own free blocks.
    pub(super) fn check(&self) {
        self.space.check();
        let mut listed = 0;
        for (number, pool) in self.pools.iter().enumerate() {
            pool.free.check();
            for entry in pool.free.iter() {
                assert_eq!(
                    self.space.state(entry.id),
                    State::Free,
                    "{entry:?} is listed and not free"
                );
                assert_eq!(
                    (self.space.bytes(entry.id), self.space.address(entry.id)),
                    (entry.bytes, entry.address)
                );
                assert_eq!(
                    self.space.owner(entry.id) as usize,
                    number,
                    "free block in another pool's list"
                );
                listed += 1;
            }
        }
        let free = self
            .space
            .ids()
            .filter(|id| self.space.state(*id) == State::Free)
            .count();
        assert_eq!(listed, free, "free blocks that no list holds");
    }
}
