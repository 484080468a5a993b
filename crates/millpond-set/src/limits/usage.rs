//! The measurements of a scope.

use millpond_account::ledger::LeakReport;
use millpond_account::tally::{Site, at_peak, by_place};

/// The memory use of a scope.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Usage {
    /// The most bytes that were live at once.
    pub peak: u64,
    /// The bytes of all blocks together.
    pub total: u64,
    /// The number of blocks that were allocated.
    pub allocations: u64,
    /// The number of blocks that were freed by the next memory operation of their thread.
    pub temporary: u64,
    /// The blocks that are live at the end, by tag and call site, without the ignored ones.
    pub leaked: LeakReport,
    /// The places that allocated blocks, by tag and stack. Those with the most bytes at the peak come first. Places that do not fit
    /// in the table are one entry of [`Tag::OTHERS`](millpond_account::Tag::OTHERS).
    pub sites: Vec<Site>,
}

impl Usage {
    /// Returns the blocks that were live at the peak, by tag and call site.
    #[must_use]
    pub fn at_peak(&self) -> LeakReport {
        at_peak(&by_place(&self.sites))
    }
}

/// The measurements of [`Limits::check`](super::Limits::check).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Measured {
    /// The measured runs.
    pub runs: Vec<Usage>,
    /// The blocks that the runs before the measured ones left behind, if there were such runs.
    pub warm_up: Option<LeakReport>,
}
