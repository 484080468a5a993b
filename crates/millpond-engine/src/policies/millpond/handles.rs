//! How large the handles are that pages come in.
//!
//! Large handles are cheap: a driver call costs the same whatever it creates or moves. Small ones are free more
//! often: a handle moves only when no live block has a byte in it. Which matters more depends on the program, so
//! the size follows what happens. It is halved when growth is mere fragmentation (the program has needed more
//! before) and yet the free blocks hold too few whole handles to move; larger handles that come by on a move
//! are then given back and made anew in the smaller size. All of it stops once the program has had its share of
//! handles, or where free memory has grown past hope.

use super::Millpond;
use crate::supply::Supply;

/// Handles are not made smaller once free memory is more than one part in so many of the peak.
const LOST: u64 = 16;

/// What has been made so far.
pub(super) struct Handles {
    /// Bytes of the largest handle worth creating.
    bytes: u64,
    created: u64,
}

impl Handles {
    /// Starts with the largest.
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, created: 0 }
    }

    /// Counts handles that were created.
    pub(super) fn note(&mut self, created: u64) {
        self.created += created;
    }
}

impl Millpond {
    /// Bytes created at once for small requests, and of a handle at most while nothing speaks for less.
    pub(super) fn batch_bytes(&self, supply: &Supply<'_>) -> u64 {
        let share = (supply.reserved() / self.conf.handle_share.max(1)).next_multiple_of(self.page);
        self.conf.handle_bytes.min(share).max(self.page)
    }

    /// Bytes of a handle to be created now, at most.
    pub(super) fn handle_bytes(&self, supply: &Supply<'_>) -> u64 {
        let batch = self.batch_bytes(supply);
        if self.may_narrow(supply) {
            batch.min(self.handles.bytes).max(self.page)
        } else {
            batch
        }
    }

    /// Makes handles smaller from now on, if `bytes` are asked for that the program has had room for before.
    pub(super) fn narrow(&mut self, supply: &Supply<'_>, bytes: u64) {
        if self.live + bytes <= self.peak && self.may_narrow(supply) {
            let half = (self.handles.bytes / 2).max(self.conf.least_handle_bytes);
            self.handles.bytes = self.handles.bytes.min(half);
        }
    }

    /// Whether a handle of these bytes is to be made anew, smaller, rather than moved.
    pub(super) fn is_too_wide(&self, supply: &Supply<'_>, bytes: u64) -> bool {
        bytes > self.handles.bytes.max(self.page) && self.may_narrow(supply)
    }

    fn may_narrow(&self, supply: &Supply<'_>) -> bool {
        self.handles.created < self.peak / self.conf.handle_each.max(1)
            && supply.reserved() <= self.peak + self.peak / LOST
    }
}
