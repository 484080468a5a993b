//! The addresses of one pool that are not backed by memory.

use crate::space::{BlockId, Space, State};
use std::collections::BTreeMap;

/// The unmapped blocks of one pool, in address order. Adjacent holes are joined.
#[derive(Default)]
pub(super) struct Holes {
    by_address: BTreeMap<u64, BlockId>,
}

impl Holes {
    /// Returns the holes in address order.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.by_address.values().copied()
    }

    /// Returns the hole that begins at an address.
    pub(super) fn at(&self, address: u64) -> Option<BlockId> {
        self.by_address.get(&address).copied()
    }

    /// Turns an unlisted block into a hole and joins it with adjacent holes. Returns the resulting hole.
    pub(super) fn add(&mut self, space: &mut Space, id: BlockId) -> BlockId {
        let mut id = id;
        space.set_state(id, State::Unmapped);
        if let Some(next) = space.next(id).filter(|n| space.state(*n) == State::Unmapped) {
            self.remove(space, next);
            space.merge_next(id);
        }
        if let Some(prev) = space.prev(id).filter(|p| space.state(*p) == State::Unmapped) {
            space.merge_next(prev);
            id = prev;
        }
        self.by_address.insert(space.address(id), id);
        id
    }

    /// Removes a hole.
    pub(super) fn remove(&mut self, space: &Space, id: BlockId) {
        self.by_address.remove(&space.address(id));
    }

    /// Removes the first `bytes` of a hole. The rest stays a hole.
    pub(super) fn remove_front(&mut self, space: &mut Space, id: BlockId, bytes: u64) {
        self.remove(space, id);
        if bytes < space.bytes(id) {
            let rest = space.split(id, bytes);
            self.by_address.insert(space.address(rest), rest);
        }
    }

    /// Asserts that each pool's holes are its own, and that every unmapped block is a hole of one of them. The owner of
    /// a hole identifies its pool.
    pub(super) fn check<'a>(space: &Space, pools: impl Iterator<Item = (u32, &'a Self)>) {
        let mut listed = 0;
        for (owner, holes) in pools {
            for (address, id) in &holes.by_address {
                assert_eq!(space.state(*id), State::Unmapped, "{id:?} is listed and mapped");
                assert_eq!((space.address(*id), space.owner(*id)), (*address, owner));
                listed += 1;
            }
        }
        let there = space.ids().filter(|id| space.state(*id) == State::Unmapped);
        assert_eq!(listed, there.count(), "unmapped blocks that no pool knows");
    }
}
