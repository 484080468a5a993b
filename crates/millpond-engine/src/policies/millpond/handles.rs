//! How large the handles are that pages come in.
//!
//! Large handles are cheap: a driver call costs the same whatever it creates or moves. Small ones are free more
//! often: a handle moves only when no live block has a byte in it. Which matters more depends on the program, so
//! the size follows what happens. It is halved when growth is mere fragmentation (the program has needed more
//! before) and yet the free blocks hold too few whole handles to move; larger handles that come by on a move
//! are then given back and made anew in the smaller size. All of it stops once the program has had its share of
//! handles, or where free memory has grown past hope.
//!
//! How much is created at once follows too: more where requests find nothing free one after the other.
//!
//! On a device that is filling up memory counts for more than calls, and handles are small.

use super::Millpond;
use crate::supply::Supply;

/// Handles are not made smaller once free memory is more than one part in so many of the peak.
const LOST: u64 = 16;
/// Allocations between two growths, below which more is created at once.
const OFTEN: u64 = 64;
/// What is created beyond the usual batch is at most one part in so many of what memory may grow by.
const AHEAD_SHARE: u64 = 13;
/// No growth takes many more handles than this, the first one neither.
const AT_ONCE: u64 = 256;
/// A device of which one part in so many is taken is filling up.
const FILLING: u64 = 8;
/// Bytes of a handle there, and the same as a share of the device.
const FILLING_HANDLE: u64 = 8 << 20;
const FILLING_SHARE: u64 = 256;

/// What has been made so far.
pub(super) struct Handles {
    /// Bytes of the largest handle worth creating.
    bytes: u64,
    created: u64,
    /// Allocations there had been when memory last grew.
    grown_at: u64,
}

impl Handles {
    /// Starts with the largest.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            bytes,
            created: 0,
            grown_at: 0,
        }
    }

    /// Counts handles that were created.
    pub(super) fn note(&mut self, created: u64) {
        self.created += created;
    }
}

impl Millpond {
    /// Bytes created at once for small requests, and of a handle at most while nothing speaks for less.
    fn batch_bytes(&self, supply: &Supply<'_>) -> u64 {
        let share = (supply.reserved() / self.conf.handle_share.max(1)).next_multiple_of(self.page);
        self.conf.handle_bytes.min(share).max(self.page)
    }

    /// Bytes to create at once for a small request where memory may grow by `allowance`; counts the growth.
    pub(super) fn ahead_bytes(&mut self, supply: &Supply<'_>, allowance: u64) -> u64 {
        let batch = self.batch_bytes(supply);
        let often = self.allocations - self.handles.grown_at < OFTEN;
        self.handles.grown_at = self.allocations;
        if often && self.conf.adapt {
            batch.max((2 * batch).min(allowance / AHEAD_SHARE))
        } else {
            batch
        }
    }

    /// Bytes of a handle at most, where memory is about to grow by `growth`.
    pub(super) fn handle_bytes(&self, supply: &Supply<'_>, growth: u64) -> u64 {
        if self.conf.single_pages {
            return self.page;
        }
        let least = (growth / AT_ONCE).next_multiple_of(self.page);
        let batch = self.batch_bytes(supply).max(least.min(self.conf.handle_bytes));
        if let Some(small) = Self::small_handle(supply) {
            return batch.min(small).max(self.page);
        }
        if self.may_narrow(supply) {
            batch.min(self.handles.bytes).max(self.page)
        } else {
            batch
        }
    }

    /// Bytes of a handle on a device that is filling up.
    fn small_handle(supply: &Supply<'_>) -> Option<u64> {
        let (capacity, free) = (supply.capacity()?, supply.free_bytes()?);
        (capacity - free.min(capacity) > capacity / FILLING).then(|| {
            let page = supply.page_bytes();
            FILLING_HANDLE.min(capacity / FILLING_SHARE / page * page)
        })
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
        self.conf.adapt
            && self.handles.created < self.peak / self.conf.handle_each.max(1)
            && supply.reserved() <= self.peak + self.peak / LOST
    }
}
