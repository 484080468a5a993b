//! The blocks in callers' hands, as rows come and go.

use crate::hash::Map;
use crate::recording::{Kind, Row};

/// Blocks that are in callers' hands, by serial number, and their sums.
#[derive(Clone, Debug, Default)]
pub struct Live {
    blocks: Map<u64, Row>,
    requested: u64,
    bytes: u64,
    keyframe: Option<Keyframe>,
}

/// A list of all that lives, as it comes in.
#[derive(Clone, Debug, Default)]
struct Keyframe {
    /// Rows that are still to come.
    left: u64,
    named: Map<u64, ()>,
}

impl Live {
    /// Takes in a row. Answers the allocation that it ends, if it ends one.
    ///
    /// A keyframe takes the place of all that was known: where events were lost before it, it is right again. Until all of it has come
    /// in, and where it is cut for good, what it names is added, and nothing is taken away.
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

    /// A keyframe names a block.
    fn name(&mut self, row: &Row) {
        let Some(keyframe) = &mut self.keyframe else {
            return;
        };
        keyframe.left = keyframe.left.saturating_sub(1);
        keyframe.named.insert(row.id, ());
        self.insert(Row {
            kind: Kind::Alloc,
            ..*row
        });
        self.end_keyframe();
    }

    /// Once a keyframe is whole, what it does not name is gone.
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
