//! The account of one engine, in the words of `ARCHITECTURE.md`.
//!
//! Always `requested <= allocated <= active <= reserved`.

/// A quantity and the most it has been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Now.
    pub current: u64,
    /// The most since the start or the last [`Stats::reset_peaks`].
    pub peak: u64,
}

impl Gauge {
    /// Raises the quantity.
    pub fn add(&mut self, amount: u64) {
        self.set(self.current + amount);
    }

    /// Lowers the quantity.
    pub fn sub(&mut self, amount: u64) {
        debug_assert!(amount <= self.current, "taking {amount} from {}", self.current);
        self.current = self.current.saturating_sub(amount);
    }

    /// Sets the quantity.
    pub fn set(&mut self, amount: u64) {
        self.current = amount;
        self.peak = self.peak.max(amount);
    }
}

/// Counters of one engine, exact at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes callers asked for and hold.
    pub requested: Gauge,
    /// Bytes of the blocks callers hold.
    pub allocated: Gauge,
    /// Allocated, and freed blocks that still wait for a stream.
    pub active: Gauge,
    /// Bytes taken from the source.
    pub reserved: Gauge,
    /// Allocations served.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// Allocations served without calling the source.
    pub hits: u64,
    /// Allocations refused.
    pub refusals: u64,
    /// Allocations and frees in which the host had to wait for the device.
    pub stalls: u64,
}

impl Stats {
    /// Hits over allocations; 0 before the first.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.allocations)
    }

    /// Allocated over reserved; 0 while nothing is reserved.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        ratio(self.allocated.current, self.reserved.current)
    }

    /// The share of reserved bytes in no caller's hands; 0 while nothing is reserved.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        ratio(
            self.reserved.current - self.allocated.current,
            self.reserved.current,
        )
    }

    /// Bytes held from the source that no block uses.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current - self.active.current
    }

    /// Starts every peak anew at the current value.
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
