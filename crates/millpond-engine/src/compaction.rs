//! The result of a compaction: the bytes returned to the source, and why the rest stayed.

use crate::size::display_size;
use crate::space::{Piece, PieceState};
use std::fmt;

/// The result of [`Engine::compact`](crate::Engine::compact).
///
/// The bytes that stayed always add up: `reserved_after = allocated + shared + kept`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// Bytes reserved from the source before the compaction.
    pub reserved_before: u64,
    /// Bytes reserved from the source after the compaction.
    pub reserved_after: u64,
    /// Bytes of blocks that waited for a stream. They are free now.
    pub waited: u64,
    /// Bytes of the blocks that callers hold. None of them has moved.
    pub allocated: u64,
    /// Free bytes that cannot be returned because an allocated block lies in the same page handle or plain segment.
    /// Handles and plain segments are only returned whole. Freeing such a block allows them to be returned.
    pub shared: u64,
    /// Free bytes in whole page handles and segments that the policy keeps by its own rules.
    pub kept: u64,
    /// Bytes of the largest contiguous free block.
    pub largest_hole: u64,
}

impl Compaction {
    /// Returns the number of bytes that were returned to the source.
    #[must_use]
    pub fn returned(&self) -> u64 {
        self.reserved_before.saturating_sub(self.reserved_after)
    }
}

impl fmt::Display for Compaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} were returned; of the {} left, {} are allocated",
            display_size(self.returned()),
            display_size(self.reserved_before),
            display_size(self.reserved_after),
            display_size(self.allocated),
        )?;
        if self.shared > 0 {
            write!(
                f,
                ", {} are free in page handles or segments that also hold live blocks",
                display_size(self.shared)
            )?;
        }
        if self.kept > 0 {
            write!(f, ", {} are kept by the policy's rules", display_size(self.kept))?;
        }
        Ok(())
    }
}

/// Sums the mapped bytes of the segments of a layout that contain no live block.
#[derive(Debug, Default)]
pub(crate) struct WholeSegments {
    segment: Option<u32>,
    mapped: u64,
    lives: bool,
    sum: u64,
}

impl WholeSegments {
    /// Adds the next piece. The pieces of one segment must follow each other.
    pub(crate) fn see(&mut self, piece: Piece) {
        if self.segment != Some(piece.segment) {
            self.close();
            self.segment = Some(piece.segment);
        }
        match piece.state {
            PieceState::Live => self.lives = true,
            PieceState::Free => self.mapped += piece.bytes,
            PieceState::Unmapped => {}
        }
    }

    fn close(&mut self) {
        if !self.lives {
            self.sum += self.mapped;
        }
        (self.mapped, self.lives) = (0, false);
    }

    /// Returns the sum in bytes.
    pub(crate) fn bytes(mut self) -> u64 {
        self.close();
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_bytes_that_stayed_and_the_reasons() {
        let mut told = Compaction {
            reserved_before: 5 << 30,
            reserved_after: 3 << 30,
            allocated: 3 << 30,
            ..Compaction::default()
        };
        assert_eq!(told.returned(), 2 << 30);
        assert_eq!(
            told.to_string(),
            "2.00 GiB of 5.00 GiB were returned; of the 3.00 GiB left, 3.00 GiB are allocated"
        );
        (told.allocated, told.shared, told.kept) = (1 << 30, 1 << 30, 1 << 30);
        assert!(
            told.to_string().ends_with(
                "1.00 GiB are allocated, 1.00 GiB are free in page handles or segments that also hold live \
                 blocks, 1.00 GiB are kept by the policy's rules"
            ),
            "{told}"
        );
    }

    #[test]
    fn only_segments_without_live_blocks_are_counted() {
        let mut whole = WholeSegments::default();
        let pieces = [
            (0, 10, PieceState::Free),
            (0, 7, PieceState::Unmapped),
            (1, 20, PieceState::Free),
            (1, 1, PieceState::Live),
            (1, 30, PieceState::Free),
            (2, 40, PieceState::Free),
        ];
        for (segment, bytes, state) in pieces {
            whole.see(Piece {
                segment,
                address: 0,
                bytes,
                state,
            });
        }
        assert_eq!(whole.bytes(), 50);
    }
}
