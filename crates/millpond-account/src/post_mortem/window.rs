//! Finds the cheapest range for a hole: adjacent pieces that are large enough together and have the fewest live bytes.

use super::figures::{Least, Method};
use millpond_engine::{Piece, PieceState};

/// The maximum number of tiles in the window.
const TILES: usize = 256;

#[derive(Clone, Copy, Default)]
struct Tile {
    bytes: u64,
    live: u64,
    blocks: u64,
}

impl Tile {
    fn join(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            live: self.live.saturating_add(other.live),
            blocks: self.blocks + other.blocks,
        }
    }
}

/// Moves a window over the pieces in the order in which they are reported. The window is no longer than necessary, and
/// the live blocks in it would have to be freed. Every position is checked, and the best one is kept.
///
/// If more than 256 pieces are in the window, adjacent pieces are joined from then on. The result still is a range that
/// suffices, but it may not be the cheapest.
pub(super) struct Window {
    need: u64,
    tiles: [Tile; TILES],
    first: usize,
    len: usize,
    sum: Tile,
    end: Option<(u32, u64)>,
    best: Option<Tile>,
    exact: bool,
}

impl Window {
    pub(super) fn new(need: u64) -> Self {
        Self {
            need,
            tiles: [Tile::default(); TILES],
            first: 0,
            len: 0,
            sum: Tile::default(),
            end: None,
            best: None,
            exact: true,
        }
    }

    pub(super) fn add(&mut self, piece: Piece) {
        let joins = self.end == Some((piece.segment, piece.address));
        if !joins || piece.state == PieceState::Unmapped {
            (self.first, self.len, self.sum) = (0, 0, Tile::default());
        }
        self.end = Some((piece.segment, piece.address.saturating_add(piece.bytes)));
        if piece.state == PieceState::Unmapped {
            return;
        }
        let is_live = piece.state == PieceState::Live;
        self.push(Tile {
            bytes: piece.bytes,
            live: if is_live { piece.bytes } else { 0 },
            blocks: u64::from(is_live),
        });
        while self.sum.bytes - self.tiles[self.first].bytes >= self.need && self.len > 1 {
            self.shift();
        }
        let is_better = self.best.is_none_or(|best| self.sum.live < best.live);
        if self.sum.bytes >= self.need && is_better {
            self.best = Some(self.sum);
        }
    }

    fn push(&mut self, tile: Tile) {
        if self.len == TILES {
            self.halve();
        }
        self.tiles[(self.first + self.len) % TILES] = tile;
        self.len += 1;
        self.sum = self.sum.join(tile);
    }

    fn shift(&mut self) {
        let gone = self.tiles[self.first];
        self.first = (self.first + 1) % TILES;
        self.len -= 1;
        self.sum = Tile {
            bytes: self.sum.bytes - gone.bytes,
            live: self.sum.live - gone.live,
            blocks: self.sum.blocks - gone.blocks,
        };
    }

    fn halve(&mut self) {
        self.exact = false;
        self.tiles.rotate_left(self.first);
        self.first = 0;
        for at in 0..TILES / 2 {
            self.tiles[at] = self.tiles[2 * at].join(self.tiles[2 * at + 1]);
        }
        self.len = TILES / 2;
    }

    pub(super) fn least(&self) -> Option<Least> {
        self.best.filter(|best| best.live > 0).map(|best| Least {
            need: best.live,
            blocks: best.blocks,
            bytes: best.live,
            method: if self.exact {
                Method::Neighbours
            } else {
                Method::NeighboursRoughly
            },
        })
    }
}
