//! `none`: no policy at all; the driver is asked for each block and gets each back.
//!
//! The measure of what the others save. The rules are the driver's own published ones:
//!
//! * a request is one driver allocation, rounded to the 256 bytes it aligns to;
//! * a free waits for the device, so every free is a stall;
//! * when memory runs out, the device is waited for, so that blocks in use by other streams go back too.
//!
//! Not modelled: the driver's own pages behind small allocations, so it looks better here than it is.

use super::rounding::whole_units;
use super::slabs::Slabs;
use crate::block::{Block, Request};
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::Piece;
use crate::supply::Supply;

/// See the module.
#[derive(Default)]
pub struct NoPolicy {
    slabs: Slabs,
}

impl NoPolicy {
    /// There is nothing to set.
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
                for block in supply.synchronize() {
                    self.free(supply, block);
                }
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
