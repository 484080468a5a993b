//! The counts of one engine, as defined in `ARCHITECTURE.md`.
//!
//! The invariant is `requested <= allocated <= active <= reserved`.

/// A quantity and its maximum so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// The current value.
    pub current: u64,
    /// The maximum since the start or the last [`Stats::reset_peaks`].
    pub peak: u64,
}

impl Gauge {
    /// Raises the quantity.
    #[inline]
    pub fn add(&mut self, amount: u64) {
        self.set(self.current + amount);
    }

    /// Lowers the quantity.
    #[inline]
    pub fn sub(&mut self, amount: u64) {
        debug_assert!(amount <= self.current, "taking {amount} from {}", self.current);
        self.current = self.current.saturating_sub(amount);
    }

    /// Sets the quantity.
    #[inline]
    pub fn set(&mut self, amount: u64) {
        self.current = amount;
        self.peak = self.peak.max(amount);
    }
}

/// Counters of one engine. They are exact between calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes requested for the blocks that callers hold.
    pub requested: Gauge,
    /// Bytes of the blocks that callers hold.
    pub allocated: Gauge,
    /// Bytes of allocated blocks and of freed blocks that still wait for a stream.
    pub active: Gauge,
    /// Bytes taken from the source.
    pub reserved: Gauge,
    /// Allocations served.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations served without a change of the reserved memory and without a wait of the host.
    pub hits: u64,
    /// Allocations refused.
    pub refusals: u64,
    /// Operations in which the host had to wait for the device.
    pub stalls: u64,
}

impl Stats {
    /// Returns hits divided by allocations, or 0 before the first allocation.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.allocations)
    }

    /// Returns allocated bytes divided by reserved bytes, or 0 while nothing is reserved.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        ratio(self.allocated.current, self.reserved.current)
    }

    /// Returns the share of reserved bytes that no caller holds, or 0 while nothing is reserved.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        ratio(
            self.reserved.current - self.allocated.current,
            self.reserved.current,
        )
    }

    /// Returns the bytes reserved from the source that no block uses.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current - self.active.current
    }

    /// Resets every peak to the current value.
    pub fn reset_peaks(&mut self) {
        for gauge in [
            &mut self.requested,
            &mut self.allocated,
            &mut self.active,
            &mut self.reserved,
        ] {
            gauge.peak = gauge.current;
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
