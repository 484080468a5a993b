//! Slabs whose free cells are listed by size class, stream and private pool. The cell freed last is taken first.

use super::slabs::Slabs;
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::source::Segment;
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// The list of a cell. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListKey {
    pub(super) group: Group,
    pub(super) stream: Stream,
    /// The size class, as defined by the policy.
    pub(super) class: u64,
}

/// The slabs and free lists of one policy.
#[derive(Default)]
pub(super) struct WarmLists {
    slabs: Slabs,
    lists: BTreeMap<ListKey, Vec<BlockId>>,
    /// The key of each cell.
    keys: Vec<Option<ListKey>>,
}

impl WarmLists {
    /// Divides a segment into cells, each with its size and its list. Returns the cells, which are not yet listed.
    pub(super) fn add<const N: usize>(
        &mut self,
        segment: Segment,
        cells: [(u64, ListKey); N],
    ) -> [BlockId; N] {
        let ids = self.slabs.add(segment, cells.map(|(bytes, _)| bytes));
        for (id, (_, key)) in ids.into_iter().zip(cells) {
            if self.keys.len() <= id.index() {
                self.keys.resize(id.index() + 1, None);
            }
            self.keys[id.index()] = Some(key);
        }
        ids
    }

    /// Lists a free cell.
    #[inline]
    pub(super) fn push(&mut self, id: BlockId) {
        if let Some(key) = self.keys[id.index()] {
            self.lists.entry(key).or_default().push(id);
        }
    }

    /// Takes the most recently freed cell of a list.
    #[inline]
    pub(super) fn pop(&mut self, key: ListKey) -> Option<BlockId> {
        self.lists.get_mut(&key)?.pop()
    }

    /// Creates a cell for an empty list with `create`. If memory is short, waits for the device and looks again, then
    /// returns all cached memory to the source and calls `create` again.
    pub(super) fn grow(
        &mut self,
        supply: &mut Supply<'_>,
        key: ListKey,
        create: impl Fn(&mut Self, &mut Supply<'_>) -> Result<BlockId, SourceError>,
    ) -> Result<BlockId, SourceError> {
        match create(self, supply) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome,
        }
        for block in supply.synchronize() {
            self.free(&block);
        }
        if let Some(id) = self.pop(key) {
            return Ok(id);
        }
        self.release_cached(supply);
        create(self, supply)
    }

    /// Allocates an unlisted cell.
    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: &Request) -> Block {
        self.slabs.hand_out(id, request)
    }

    /// Frees a cell and lists it.
    #[inline]
    pub(super) fn free(&mut self, block: &Block) {
        self.slabs.put_back(block.key());
        self.push(block.key());
    }

    /// Returns every slab without a live cell to the source.
    pub(super) fn release_cached(&mut self, supply: &mut Supply<'_>) {
        for id in self.lists.values().flatten() {
            // Removing a slab also removes the identifiers of its other cells.
            if let Some(segment) = self.slabs.remove_if_free(*id) {
                supply.give(segment);
            }
        }
        for list in self.lists.values_mut() {
            list.retain(|id| self.slabs.exists(*id));
        }
    }

    pub(super) fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.slabs.layout(visit);
    }

    /// Asserts that the lists contain every free cell once.
    pub(super) fn check(&self) {
        self.slabs.check(self.lists.values().flatten().copied());
    }
}
