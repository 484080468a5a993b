//! The blocks in callers' hands, as rows come and go.

use crate::recording::{Kind, Row};
use crate::strings::Map;

/// Blocks that are in callers' hands, by serial number, and their sums.
#[derive(Clone, Debug, Default)]
pub struct Live {
    blocks: Map<u64, Row>,
    requested: u64,
    bytes: u64,
    /// Whether a keyframe's rows come in: they are all there is.
    keyframe: bool,
}

impl Live {
    /// Takes in a row. Answers the allocation that it ends, if it ends one.
    ///
    /// A keyframe takes the place of all that was known: where events were lost before it, it is right again.
    #[inline]
    pub fn note(&mut self, row: &Row) -> Option<Row> {
        match row.kind {
            Kind::Alloc => drop(self.insert(*row)),
            Kind::Free | Kind::FreeRequested => return self.remove(row.id),
            Kind::Keyframe => {
                self.blocks.clear();
                (self.requested, self.bytes) = (0, 0);
                self.keyframe = true;
            }
            Kind::Live if self.keyframe => {
                self.insert(Row {
                    kind: Kind::Alloc,
                    ..*row
                });
            }
            _ => {}
        }
        None
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

    /// Bytes asked for in them.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Bytes of the blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// One of them, as its allocation's row.
    pub fn get(&self, id: u64) -> Option<&Row> {
        self.blocks.get(&id)
    }

    /// All of them, in no order, as their allocations' rows.
    pub fn blocks(&self) -> impl Iterator<Item = &Row> {
        self.blocks.values()
    }
}
