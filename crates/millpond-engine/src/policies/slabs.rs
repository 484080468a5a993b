//! Segments divided once into cells that are never joined or split, for policies without best fit.
//!
//! ```text
//!   slab 0   | cell | cell | cell |     live or free, each on its own
//!   slab 1   |        cell        |     a whole segment is a slab of one cell
//! ```

use crate::block::{Block, Request};
use crate::source::Segment;
use crate::space::{BlockId, Piece, PieceState};

struct Cell {
    slab: u32,
    address: u64,
    bytes: u64,
    live: bool,
}

struct Slab {
    segment: Segment,
    /// The cells in address order. They cover the segment.
    cells: Vec<BlockId>,
    live: usize,
}

/// All slabs of one policy.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: Vec<Option<Slab>>,
    cells: Vec<Option<Cell>>,
    vacant_slabs: Vec<u32>,
    vacant_cells: Vec<BlockId>,
}

impl Slabs {
    /// Divides a segment into free cells of these sizes, whose sum is its size. Returns the identifiers of the cells.
    pub(super) fn add<const N: usize>(&mut self, segment: Segment, sizes: [u64; N]) -> [BlockId; N] {
        let slab = self.vacant_slabs.pop().unwrap_or_else(|| {
            self.slabs.push(None);
            self.slabs.len() as u32 - 1
        });
        let mut address = segment.address();
        let cells = sizes.map(|bytes| {
            let id = self.vacant_cells.pop().unwrap_or_else(|| {
                self.cells.push(None);
                BlockId::from_index(self.cells.len() as u32 - 1)
            });
            self.cells[id.index()] = Some(Cell {
                slab,
                address,
                bytes,
                live: false,
            });
            address += bytes;
            id
        });
        debug_assert_eq!(
            address,
            segment.address() + segment.bytes(),
            "cells cover their segment"
        );
        self.slabs[slab as usize] = Some(Slab {
            segment,
            cells: cells.to_vec(),
            live: 0,
        });
        cells
    }

    /// Adds a whole segment as one free cell.
    pub(super) fn add_whole(&mut self, segment: Segment) -> BlockId {
        let bytes = segment.bytes();
        let [id] = self.add(segment, [bytes]);
        id
    }

    /// Allocates a free cell.
    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: &Request) -> Block {
        let (address, bytes) = self.set_live(id, true);
        Block::new(address, bytes, request, id)
    }

    /// Frees a cell.
    #[inline]
    pub(super) fn put_back(&mut self, id: BlockId) {
        self.set_live(id, false);
    }

    /// Removes and returns a slab if none of its cells is live.
    pub(super) fn remove_if_free(&mut self, id: BlockId) -> Option<Segment> {
        let number = self.cells[id.index()].as_ref()?.slab;
        let slab = self.slabs[number as usize].take_if(|slab| slab.live == 0)?;
        for cell in &slab.cells {
            self.cells[cell.index()] = None;
        }
        self.vacant_cells.extend(slab.cells);
        self.vacant_slabs.push(number);
        Some(slab.segment)
    }

    /// Returns whether the identifier still belongs to a cell.
    pub(super) fn exists(&self, id: BlockId) -> bool {
        self.cells[id.index()].is_some()
    }

    pub(super) fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        for (number, slab) in (0u32..).zip(&self.slabs) {
            let ids = slab.iter().flat_map(|slab| &slab.cells);
            for cell in ids.filter_map(|id| self.cells[id.index()].as_ref()) {
                visit(Piece {
                    segment: number,
                    address: cell.address,
                    bytes: cell.bytes,
                    state: if cell.live {
                        PieceState::Live
                    } else {
                        PieceState::Free
                    },
                });
            }
        }
    }

    /// Asserts that the cells cover their slabs, that live cells are counted, and that `listed` contains every free
    /// cell once.
    pub(super) fn check(&self, listed: impl Iterator<Item = BlockId>) {
        let mut live = vec![0; self.slabs.len()];
        for cell in self.cells.iter().flatten() {
            live[cell.slab as usize] += usize::from(cell.live);
        }
        let mut free = 0;
        for (slab, live) in self.slabs.iter().zip(live) {
            let Some(slab) = slab else {
                assert_eq!(live, 0, "cells of a slab that is gone");
                continue;
            };
            assert_eq!(slab.live, live, "live cells of a slab");
            let sizes = slab.cells.iter().filter_map(|id| self.cells[id.index()].as_ref());
            assert_eq!(
                sizes.map(|cell| cell.bytes).sum::<u64>(),
                slab.segment.bytes(),
                "hole or overlap"
            );
            free += slab.cells.len() - live;
        }
        let mut seen = vec![false; self.cells.len()];
        for id in listed {
            let cell = self.cells[id.index()].as_ref();
            assert!(cell.is_some_and(|c| !c.live), "{id:?} is listed and not free");
            assert!(
                !std::mem::replace(&mut seen[id.index()], true),
                "{id:?} is listed twice"
            );
            free -= 1;
        }
        assert_eq!(free, 0, "free cells that no list holds");
    }

    #[inline]
    fn set_live(&mut self, id: BlockId, live: bool) -> (u64, u64) {
        let Some(cell) = &mut self.cells[id.index()] else {
            debug_assert!(false, "{id:?} names no cell");
            return (0, 0);
        };
        debug_assert_ne!(cell.live, live, "{id:?} already has this state");
        cell.live = live;
        if let Some(slab) = &mut self.slabs[cell.slab as usize] {
            slab.live = if live { slab.live + 1 } else { slab.live - 1 };
        }
        (cell.address, cell.bytes)
    }
}
