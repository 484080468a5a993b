//! How a budget is made.

use super::error::BudgetError;
use super::node::{MOST_LEVELS, Node, Parts};
use super::room::MOST;
use super::soft::{SoftCrossing, SoftLimit};
use super::{Budget, Measure};
use std::fmt;
use std::sync::Arc;

/// A budget in the making: [`Budget::builder`], [`Budget::child_builder`].
#[must_use = "a builder makes nothing until it is built"]
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

    /// Which bytes it counts. Without this, those that its parent counts; reserved ones if it has none.
    pub fn measure(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    /// The most that may be charged; none without this.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes.min(MOST);
        self
    }

    /// Calls back when a charge raises the use above so many bytes; then not again until the use has been seven
    /// eighths of that or less. See [`soft_limit_rearmed_at`](Self::soft_limit_rearmed_at).
    pub fn soft_limit(self, bytes: u64, callback: impl Fn(&SoftCrossing) + Send + Sync + 'static) -> Self {
        self.soft_limit_rearmed_at(bytes, bytes - bytes / 8, callback)
    }

    /// Calls back when a charge raises the use above so many bytes; then not again until the use has been `rearm`
    /// or less. Any number of soft limits may be set.
    ///
    /// The callback runs in the thread whose charge crossed the limit, after the charge was made, while neither this
    /// module nor a pool holds a lock: it may allocate, charge, free and change limits. It may still run when the use has fallen
    /// again. A callback that panics is caught.
    pub fn soft_limit_rearmed_at(
        mut self,
        bytes: u64,
        rearm: u64,
        callback: impl Fn(&SoftCrossing) + Send + Sync + 'static,
    ) -> Self {
        self.soft.push(SoftLimit::new(bytes, rearm, Box::new(callback)));
        self
    }

    /// Makes the budget.
    ///
    /// # Errors
    /// [`BudgetError::OtherMeasure`] for a budget of reserved bytes below one of allocated bytes: what is reserved
    /// holds the blocks, not the other way round. [`BudgetError::TooDeep`] below 32 others.
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
