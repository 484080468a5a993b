//! The builder of budgets.

use super::error::BudgetError;
use super::node::{MOST_LEVELS, Node, Parts};
use super::room::MOST;
use super::soft::{SoftCrossing, SoftLimit};
use super::{Budget, Measure};
use std::fmt;
use std::sync::Arc;

/// Builds a budget. It is returned by [`Budget::builder`] and [`Budget::child_builder`].
#[must_use = "a builder creates nothing until `build` is called"]
pub struct BudgetBuilder {
    name: String,
    parent: Option<Budget>,
    measure: Measure,
    limit: u64,
    soft: Vec<SoftLimit>,
}

impl BudgetBuilder {
    pub(super) fn new(name: String, parent: Option<Budget>) -> Self {
        Self {
            name,
            measure: parent.as_ref().map_or(Measure::Reserved, Budget::measure),
            parent,
            limit: MOST,
            soft: Vec::new(),
        }
    }

    /// Sets the bytes that the budget counts. The default is the parent's measure, or reserved bytes without a parent.
    pub fn measure(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    /// Sets the maximum number of bytes that can be charged. The default is no limit.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes.min(MOST);
        self
    }

    /// Adds a soft limit. The callback runs when a charge raises the used bytes above `bytes`. It does not run again
    /// until the used bytes have fallen to seven eighths of that or less. See
    /// [`soft_limit_rearmed_at`](Self::soft_limit_rearmed_at).
    pub fn soft_limit(self, bytes: u64, callback: impl Fn(&SoftCrossing) + Send + Sync + 'static) -> Self {
        self.soft_limit_rearmed_at(bytes, bytes - bytes / 8, callback)
    }

    /// Adds a soft limit. The callback runs when a charge raises the used bytes above `bytes`. It does not run again
    /// until the used bytes have fallen to `rearm` or less. A budget can have any number of soft limits.
    ///
    /// The callback runs in the thread whose charge crossed the limit, after the charge was made. Neither this module
    /// nor a pool holds a lock at that time, so the callback may allocate, charge, free and change limits. The used
    /// bytes may have fallen again before it runs. A panic of the callback is caught.
    pub fn soft_limit_rearmed_at(
        mut self,
        bytes: u64,
        rearm: u64,
        callback: impl Fn(&SoftCrossing) + Send + Sync + 'static,
    ) -> Self {
        self.soft.push(SoftLimit::new(bytes, rearm, Box::new(callback)));
        self
    }

    /// Builds the budget.
    ///
    /// # Errors
    /// Returns [`BudgetError::OtherMeasure`] for a budget of reserved bytes below one of allocated bytes, because
    /// reserved memory contains the blocks and not the reverse. Returns [`BudgetError::TooDeep`] if the budget would
    /// have more than 32 budgets above it.
    pub fn build(self) -> Result<Budget, BudgetError> {
        if let Some(parent) = &self.parent {
            if parent.measure() == Measure::Allocated && self.measure == Measure::Reserved {
                return Err(BudgetError::OtherMeasure {
                    budget: parent.clone(),
                    measure: self.measure,
                });
            }
            if parent.node().levels >= MOST_LEVELS {
                return Err(BudgetError::TooDeep { most: MOST_LEVELS });
            }
        }
        Ok(self.make())
    }

    pub(super) fn make(self) -> Budget {
        let parts = Parts {
            name: self.name.into_boxed_str(),
            measure: self.measure,
            limit: self.limit,
            soft: self.soft.into_boxed_slice(),
        };
        let parent = self.parent.map(Budget::into_node);
        let node = Arc::new(Node::new(parts, parent));
        if let Some(parent) = &node.parent {
            parent.adopt(&node);
        }
        Budget::of(&node)
    }
}

impl fmt::Debug for BudgetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetBuilder")
            .field("name", &self.name)
            .field("parent", &self.parent)
            .field("measure", &self.measure)
            .field("limit", &self.limit)
            .field("soft_limits", &self.soft.len())
            .finish()
    }
}
