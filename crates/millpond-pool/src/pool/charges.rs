//! Charges of blocks to budgets, and waiting for memory.

use super::heap::{Heap, RawBlock, lock};
use super::request::{AllocRequest, is_optional, optionally};
use super::slow_path_reason::SlowPathReason;
use millpond_account::budget::{Budget, Charge};
use millpond_account::error::AllocError;
use millpond_account::post_mortem::Survey;
use millpond_os::reentrancy::inside;
use std::time::{Duration, Instant};

/// Returns the deadline after a time from now. Times of more than about 34 years are shortened, so that the clock can represent
/// the deadline.
fn deadline(wait: Duration) -> Instant {
    const AGES: Duration = Duration::from_secs(1 << 30);
    Instant::now() + wait.min(AGES)
}

impl Heap {
    /// Allocates a block that is charged to a budget in addition to the pool's own budget or below it, and waits for memory
    /// until the timeout. `charged` is true if the pool's own budget is already charged.
    pub(crate) fn allocate_for(
        &'static self,
        (budget, charged): (Option<&Budget>, bool),
        wait: Option<Duration>,
        (requested, align, zeroed): (usize, usize, bool),
    ) -> Result<RawBlock, AllocError> {
        self.allocate_at_expense((budget, charged), wait, (requested, align, zeroed))
            .map_err(|error| self.refused_finally(requested, error))
    }

    fn allocate_at_expense(
        &'static self,
        (budget, charged): (Option<&Budget>, bool),
        wait: Option<Duration>,
        (requested, align, zeroed): (usize, usize, bool),
    ) -> Result<RawBlock, AllocError> {
        let _inside = inside();
        let align = align.max(self.align);
        let ask = AllocRequest {
            zeroed,
            until: wait.filter(|_| !is_optional()).map(deadline),
            charged: charged || budget.is_some_and(|budget| self.is_covered_by(budget)),
            ..AllocRequest::new(requested, align)
        };
        let charge = budget.map(|budget| self.charge(budget, ask)).transpose()?;
        let taken = match ask.until {
            Some(until) => self.allocate_until(ask, until),
            None => self.allocate_anyhow(ask),
        }?;
        if let Some(charge) = charge {
            self.charge_to(taken.address, charge);
        }
        Ok(taken)
    }

    /// Allocates a block. If there is no memory now, it waits until the deadline, unless the request is above the limit of the pool. The
    /// refusals of the first attempt and of the one at the deadline are counted.
    fn allocate_until(&'static self, ask: AllocRequest, until: Instant) -> Result<RawBlock, AllocError> {
        let may_fit = ask.requested as u64 <= self.limit.bytes();
        match self.allocate_anyhow(ask) {
            Err(error) if error.is_out_of_memory() && may_fit && Instant::now() < until => {}
            outcome => return outcome,
        }
        let place = self.join_line();
        let ask = AllocRequest {
            ticket: Some(place.ticket),
            ..ask
        };
        loop {
            let changes = place.changes();
            match optionally(|| self.allocate_anyhow(ask)) {
                Err(error) if error.is_out_of_memory() => {
                    // This pool is not notified when other pools give memory back to a budget, so it polls.
                    let soon = Instant::now()
                        + Duration::from_millis(if self.reserved.is_some() { 2 } else { 1000 });
                    if !place.wait(changes, until.min(soon)) && Instant::now() >= until {
                        return self.allocate_anyhow(ask);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Charges a budget of allocated bytes.
    pub(super) fn charge(&self, budget: &Budget, ask: AllocRequest) -> Result<Charge, AllocError> {
        let bytes = RawBlock::of(0, ask.requested, ask.align).bytes as u64;
        let charged = match ask.until {
            Some(until) => budget.charge_timeout(bytes, until.saturating_duration_since(Instant::now())),
            None => budget.charge(bytes),
        };
        charged.map_err(|mut error| {
            self.count_refusal();
            error.explain(|budget, survey| self.survey_charges(budget, survey));
            AllocError::Budget(Box::new(error))
        })
    }

    /// Adds the blocks that are charged to a budget to a survey. Allocates nothing.
    fn survey_charges(&self, budget: &Budget, survey: &mut Survey) {
        let _inside = inside();
        let ledger = self.ledger();
        if ledger.is_none() {
            survey.no_account();
        }
        let charges = lock(&self.charges);
        let charged = |charge: &&Charge| charge.budget().reaches(budget);
        for (address, charge) in charges.iter().filter(|(_, charge)| charged(charge)) {
            survey.block(charge.bytes());
            if let Some(ledger) = &ledger {
                ledger.survey_block(*address, survey);
            }
        }
        drop(charges);
    }

    /// Returns whether a charge to a budget also charges the pool's own budget.
    pub(crate) fn is_covered_by(&self, budget: &Budget) -> bool {
        self.budget.as_ref().is_some_and(|own| budget.reaches(own))
    }

    /// Records the charge of a block until the block is freed.
    pub(crate) fn charge_to(&self, address: usize, charge: Charge) {
        let _inside = inside();
        let before = lock(&self.charges).insert(address, charge);
        drop(before);
    }

    /// Enables charges of blocks to tenants.
    pub(crate) fn have_tenants(&self) {
        let _inside = inside();
        self.set_reason(SlowPathReason::Charged, true);
    }

    /// Refunds a block's bytes to the pool's own budget.
    pub(super) fn refund(&self, taken: RawBlock) {
        if let Some(budget) = &self.budget {
            drop(budget.restore(taken.bytes as u64));
        }
    }
}
