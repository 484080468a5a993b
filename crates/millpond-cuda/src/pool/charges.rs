//! The charges of a block to budgets.

use super::Terms;
use super::shared::{Shared, lock};
use millpond_account::budget::{Budget, Charge};
use millpond_account::error::AllocError;
use millpond_account::post_mortem::Survey;
use millpond_os::reentrancy::inside;
use std::time::Instant;

/// The charges of a block. They cover the requested bytes before it is placed, and the bytes of the block afterwards.
pub(super) struct Charges<'a> {
    pool: &'a Shared,
    budgets: [Option<&'a Budget>; 2],
    taken: Vec<Charge>,
    bytes: u64,
}

impl<'a> Charges<'a> {
    pub(super) fn of(pool: &'a Shared, terms: &'a Terms) -> Self {
        let own = pool.parts.budget.as_ref();
        let theirs = terms.budget.as_ref();
        // If the caller's budget is below the pool's own budget, its charge already includes the pool's.
        let reached = own.filter(|own| !theirs.is_some_and(|theirs| theirs.reaches(own)));
        Self {
            pool,
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
            let charge = charge.map_err(|mut error| {
                error.explain(|budget, survey| self.pool.survey_charges(budget, survey));
                AllocError::Budget(Box::new(error))
            })?;
            self.taken.push(charge);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Keeps the charges until the block at this address is freed.
    pub(super) fn keep(self, address: u64) {
        let _inside = inside();
        lock(&self.pool.charges).insert(address, self.taken);
    }
}

impl Shared {
    /// Adds the blocks that are charged to a budget to a survey.
    fn survey_charges(&self, budget: &Budget, survey: &mut Survey) {
        let _inside = inside();
        let watchers = self.watchers();
        let ledger = watchers.ledger();
        if ledger.is_none() {
            survey.no_account();
        }
        for (address, charges) in &*lock(&self.charges) {
            let charges = charges.iter().filter(|charge| charge.budget().reaches(budget));
            let bytes: u64 = charges.map(Charge::bytes).sum();
            if bytes > 0 {
                survey.block(bytes);
                ledger.inspect(|ledger| ledger.survey_block(*address as usize, survey));
            }
        }
    }
}
