//! `none`: no policy. Every block is allocated and freed by the driver.
//!
//! It is the baseline for the other policies. The rules are the driver's published ones:
//!
//! * A request is one driver allocation, rounded up to 256 bytes, the driver's alignment.
//! * A free waits for the device, so every free is a stall.
//! * When memory runs out, the policy waits for the device, so that blocks in use by other streams are returned too.
//!
//! The driver's own pages behind small allocations are not modelled, so the result shows less memory than the driver
//! really uses.

use super::rounding::whole_units;
use super::slabs::Slabs;
use crate::block::{Block, Request};
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::Piece;
use crate::supply::Supply;

/// The `none` policy. The module describes its rules.
#[derive(Default)]
pub struct NoPolicy {
    slabs: Slabs,
}

impl NoPolicy {
    /// Creates the policy. It has no settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for NoPolicy {
    fn name(&self) -> &'static str {
        "none"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::PublishedRules
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = whole_units(request)?;
        let segment = match supply.take(bytes) {
            Err(error) if error.is_out_of_memory() && supply.has_deferred() => {
                self.free_deferred(supply);
                supply.take(bytes)?
            }
            outcome => outcome?,
        };
        let id = self.slabs.add_whole(segment);
        Ok(self.slabs.hand_out(id, request))
    }

    fn free(&mut self, supply: &mut Supply<'_>, block: Block) {
        self.slabs.put_back(block.key());
        if let Some(segment) = self.slabs.remove_if_free(block.key()) {
            supply.give(segment);
        }
    }

    fn release_cached(&mut self, _supply: &mut Supply<'_>) {}

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.slabs.layout(visit);
    }

    fn check(&self) {
        self.slabs.check(std::iter::empty());
    }
}
