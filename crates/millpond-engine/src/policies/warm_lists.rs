//! Free lists by exact size for each stream and private pool. The block freed last is taken first.

use crate::block::{Group, Stream};
use crate::space::BlockId;
use std::collections::BTreeMap;

/// The list of a block. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListKey {
    pub(super) group: Group,
    pub(super) stream: Stream,
    /// The size class, as defined by the policy.
    pub(super) class: u64,
}

/// The free lists of one policy.
#[derive(Default)]
pub(super) struct WarmLists {
    lists: BTreeMap<ListKey, Vec<BlockId>>,
    /// The key of each block.
    keys: Vec<Option<ListKey>>,
}

impl WarmLists {
    /// Sets the list of a new block.
    pub(super) fn assign(&mut self, id: BlockId, key: ListKey) {
        if self.keys.len() <= id.index() {
            self.keys.resize(id.index() + 1, None);
        }
        self.keys[id.index()] = Some(key);
    }

    /// Lists a free block.
    pub(super) fn push(&mut self, id: BlockId) {
        if let Some(key) = self.keys[id.index()] {
            self.lists.entry(key).or_default().push(id);
        }
    }

    /// Takes the most recently freed block of a list.
    pub(super) fn pop(&mut self, key: ListKey) -> Option<BlockId> {
        self.lists.get_mut(&key)?.pop()
    }

    /// Removes the listed blocks for which `keep` returns `false`.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(BlockId) -> bool) {
        for list in self.lists.values_mut() {
            list.retain(|id| keep(*id));
        }
    }

    /// Returns every listed block.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.lists.values().flatten().copied()
    }
}
