//! The charges of a block to budgets.

use super::Terms;
use super::shared::Shared;
use millpond_account::budget::{Budget, Charge};
use millpond_account::error::AllocError;
use std::time::Instant;

/// The charges of a block. They cover the requested bytes before it is placed, and the bytes of the block afterwards.
pub(super) struct Charges<'a> {
    budgets: [Option<&'a Budget>; 2],
    pub(super) taken: Vec<Charge>,
    bytes: u64,
}

impl<'a> Charges<'a> {
    pub(super) fn of(pool: &'a Shared, terms: &'a Terms) -> Self {
        let own = pool.parts.budget.as_ref();
        let theirs = terms.budget.as_ref();
        // If the caller's budget is below the pool's own budget, its charge already includes the pool's.
        let reached = own.filter(|own| !theirs.is_some_and(|theirs| theirs.reaches(own)));
        Self {
            budgets: [theirs, reached],
            taken: Vec::new(),
            bytes: 0,
        }
    }

    /// Charges the difference between `bytes` and the bytes charged so far.
    pub(super) fn raise(&mut self, bytes: u64, until: Option<Instant>) -> Result<(), AllocError> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        for budget in self.budgets.into_iter().flatten() {
            let charge = match until {
                Some(until) => budget.charge_timeout(more, until.saturating_duration_since(Instant::now())),
                None => budget.charge(more),
            };
            let charge = charge.map_err(|error| AllocError::Budget(Box::new(error)))?;
            self.taken.push(charge);
        }
        self.bytes = bytes;
        Ok(())
    }
}
