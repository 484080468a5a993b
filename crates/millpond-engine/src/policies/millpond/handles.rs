//! Chooses the size of page handles.
//!
//! Large handles cost less, because a driver call costs the same for any size. Small handles are free more often,
//! because a handle can move only if no live block overlaps it. The better choice depends on the program, so the size
//! adapts. It is halved when growth is only fragmentation (the program has needed more before) and the free blocks
//! nevertheless hold too few whole handles to move. A larger handle that a move encounters is then returned and created
//! anew in the smaller size. This stops once the program has created its share of handles, or when memory exceeds the
//! peak by too much.
//!
//! The amount created at once also adapts. It is larger if consecutive requests find no free block.
//!
//! On a device that is filling up, saving memory is more important than saving calls, so handles are small.

use super::Millpond;
use crate::supply::Supply;

/// Handles do not shrink once memory exceeds the peak by more than this fraction of it (1/16).
const LOST: u64 = 16;
/// More is created at once if there are fewer allocations than this between two growths.
const OFTEN: u64 = 64;
/// The amount created beyond the usual batch is at most this fraction of the remaining growth (1/13).
const AHEAD_SHARE: u64 = 13;
/// Approximate maximum number of handles for one growth, including the first one.
const AT_ONCE: u64 = 256;
/// A device is filling up once more than this fraction of it is used (1/8).
const FILLING: u64 = 8;
/// Bytes of a handle on such a device, and the same as a fraction of the device.
const FILLING_HANDLE: u64 = 8 << 20;
const FILLING_SHARE: u64 = 256;

/// The handles created so far.
pub(super) struct Handles {
    /// Bytes of the largest handle worth creating.
    bytes: u64,
    created: u64,
    /// Number of allocations at the time of the last growth.
    grown_at: u64,
}

impl Handles {
    /// Creates the state with the largest handle size.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            bytes,
            created: 0,
            grown_at: 0,
        }
    }

    /// Counts created handles.
    pub(super) fn note(&mut self, created: u64) {
        self.created += created;
    }
}

impl Millpond {
    /// Returns the bytes created at once for small requests. This is also the default maximum size of a handle.
    fn batch_bytes(&self, supply: &Supply<'_>) -> u64 {
        let share = (supply.reserved() / self.conf.handle_share.max(1)).next_multiple_of(self.page);
        self.conf.handle_bytes.min(share).max(self.page)
    }

    /// Returns the bytes to create at once for a small request if memory may grow by `allowance`. Counts the growth.
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

    /// Returns the maximum size of a handle in bytes for a growth by `growth` bytes.
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

    /// Returns the size of a handle in bytes on a device that is filling up.
    fn small_handle(supply: &Supply<'_>) -> Option<u64> {
        let (capacity, free) = (supply.capacity()?, supply.free_bytes()?);
        (capacity - free.min(capacity) > capacity / FILLING).then(|| {
            let page = supply.page_bytes();
            FILLING_HANDLE.min(capacity / FILLING_SHARE / page * page)
        })
    }

    /// Shrinks future handles if `bytes` more would not exceed the program's peak.
    pub(super) fn narrow(&mut self, supply: &Supply<'_>, bytes: u64) {
        if self.live + bytes <= self.peak && self.may_narrow(supply) {
            let half = (self.handles.bytes / 2).max(self.conf.least_handle_bytes);
            self.handles.bytes = self.handles.bytes.min(half);
        }
    }

    /// Returns whether a handle of this size should be created anew in a smaller size rather than moved.
    pub(super) fn is_too_wide(&self, supply: &Supply<'_>, bytes: u64) -> bool {
        bytes > self.handles.bytes.max(self.page) && self.may_narrow(supply)
    }

    fn may_narrow(&self, supply: &Supply<'_>) -> bool {
        self.conf.adapt
            && self.handles.created < self.peak / self.conf.handle_each.max(1)
            && supply.reserved() <= self.peak + self.peak / LOST
    }
}
