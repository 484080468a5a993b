//! What was measured.

use crate::ledger::LeakReport;
use crate::tally::{Site, at_peak, by_place};

/// What a scope has done with memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Usage {
    /// The most bytes that were live at once.
    pub peak: u64,
    /// Bytes of all blocks together.
    pub total: u64,
    /// Blocks that were allocated.
    pub allocations: u64,
    /// Those that were freed as the very next thing that their thread did with memory.
    pub temporary: u64,
    /// What is live at the end, by tag and place, without what is ignored.
    pub leaked: LeakReport,
    /// Where blocks were allocated, by tag and stack; those first that held most bytes at the peak. What is beyond the room for sites is
    /// one of [`Tag::OTHERS`](crate::Tag::OTHERS).
    pub sites: Vec<Site>,
}

impl Usage {
    /// What was live at the peak, by tag and place.
    #[must_use]
    pub fn at_peak(&self) -> LeakReport {
        at_peak(&by_place(&self.sites))
    }
}

/// What [`Limits::check`](super::Limits::check) has measured.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Measured {
    /// Each run.
    pub runs: Vec<Usage>,
    /// What the runs that were not measured have left behind, if there were any.
    pub warm_up: Option<LeakReport>,
}
