//! The blocks that callers hold, updated row by row.

use crate::hash::Map;
use crate::recording::{Kind, Row};

/// The blocks that callers hold, by serial number, and their sums.
#[derive(Clone, Debug, Default)]
pub struct Live {
    blocks: Map<u64, Row>,
    requested: u64,
    bytes: u64,
    keyframe: Option<Keyframe>,
}

/// A list of all live blocks while it is read.
#[derive(Clone, Debug, Default)]
struct Keyframe {
    /// Number of rows that are still to come.
    left: u64,
    named: Map<u64, ()>,
}

impl Live {
    /// Processes a row. Returns the allocation that it ends, if any.
    ///
    /// A complete keyframe replaces the known state, which corrects it after a loss of events. While a keyframe is
    /// incomplete, and forever if it was cut, its blocks are added and no block is removed.
    #[inline]
    pub fn note(&mut self, row: &Row) -> Option<Row> {
        match row.kind {
            Kind::Alloc => drop(self.insert(*row)),
            Kind::Free | Kind::FreeRequested => return self.remove(row.id),
            Kind::Keyframe => {
                self.keyframe = Some(Keyframe {
                    left: row.bytes,
                    ..Keyframe::default()
                });
                self.end_keyframe();
            }
            Kind::Live => self.name(row),
            _ => {}
        }
        None
    }

    /// Processes a block of a keyframe.
    fn name(&mut self, row: &Row) {
        let Some(keyframe) = &mut self.keyframe else {
            return;
        };
        keyframe.left = keyframe.left.saturating_sub(1);
        keyframe.named.insert(row.id, ());
        self.insert(row.at(Kind::Alloc, row.time));
        self.end_keyframe();
    }

    /// Removes the blocks that a complete keyframe does not list.
    fn end_keyframe(&mut self) {
        let Some(keyframe) = self.keyframe.take_if(|keyframe| keyframe.left == 0) else {
            return;
        };
        if keyframe.named.len() == self.blocks.len() {
            return;
        }
        let gone = self.blocks.keys().filter(|id| !keyframe.named.contains_key(*id));
        for id in gone.copied().collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    fn insert(&mut self, row: Row) -> Option<Row> {
        let before = self.remove(row.id);
        self.requested = self.requested.saturating_add(row.requested);
        self.bytes = self.bytes.saturating_add(row.bytes);
        self.blocks.insert(row.id, row);
        before
    }

    fn remove(&mut self, id: u64) -> Option<Row> {
        let row = self.blocks.remove(&id)?;
        self.requested = self.requested.saturating_sub(row.requested);
        self.bytes = self.bytes.saturating_sub(row.bytes);
        Some(row)
    }

    /// Returns the bytes that the table takes while it grows: twice those of its entries.
    pub(super) fn bytes_kept(&self) -> u64 {
        2 * (self.blocks.len() * size_of::<(u64, Row)>()) as u64
    }

    /// Returns the requested bytes of the blocks.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Returns the size of the blocks in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns a block, as the row of its allocation.
    pub fn get(&self, id: u64) -> Option<&Row> {
        self.blocks.get(&id)
    }

    /// Returns all blocks, unordered, as the rows of their allocations.
    pub fn blocks(&self) -> impl Iterator<Item = &Row> {
        self.blocks.values()
    }
}
