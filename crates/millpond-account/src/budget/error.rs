//! The errors of budgets.

use super::node::Node;
use super::room::Seen;
use super::{Budget, Measure};
use crate::post_mortem::{BudgetFigures, In, PostMortem, Survey};
use millpond_engine::display_size;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The figures of a refused charge. Making one does not allocate.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub struct Refusal {
    /// The budget that refused. It may be above the budget that was charged.
    pub budget: Budget,
    /// The requested bytes.
    pub requested: u64,
    /// The limit at that time.
    pub limit: u64,
    /// The bytes charged at that time, including charges in progress.
    pub used: u64,
    /// The number of requests that wait at the budget and are served first.
    pub waiting: usize,
}

impl Refusal {
    /// Makes a refusal and counts it at the budget.
    pub(super) fn counted(node: &Arc<Node>, requested: u64, seen: Seen) -> Self {
        node.refused();
        Self {
            budget: Budget::of(node),
            requested,
            limit: node.limit(),
            used: node.charged(seen),
            waiting: node.waiting(),
        }
    }

    /// Returns the bytes by which the request exceeds the limit. This is 0 if the bytes would fit but other requests
    /// are served first.
    #[must_use]
    pub fn over_by(&self) -> u64 {
        self.used
            .saturating_add(self.requested)
            .saturating_sub(self.limit)
    }

    /// Returns true if the request is larger than the limit, so that no refund can make it fit.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.requested > self.limit
    }

    /// Returns the figures as plain values, with the budget's path.
    #[must_use]
    pub fn figures(&self) -> BudgetFigures {
        BudgetFigures {
            path: self.budget.path(),
            measure: self.budget.measure(),
            limit: self.limit,
            used: self.used,
            over_by: self.over_by(),
            waiting: self.waiting,
        }
    }

    /// Surveys the holders of the bytes under the budget, through the listers that pools have registered. The duration
    /// depends on the listers, most of which walk over all live blocks. The call itself does not allocate.
    #[must_use]
    pub fn post_mortem(&self) -> PostMortem {
        let mut survey = Survey::new(self.requested);
        self.survey(&mut survey);
        survey.finish()
    }

    /// Adds the same data to an existing survey.
    pub fn survey(&self, survey: &mut Survey) {
        survey.refused_by(self.figures());
        self.budget
            .node()
            .each_child(|child| survey.child(&child.name, child.used()));
        list(self.budget.node(), survey);
    }

    #[doc(hidden)]
    pub fn into_error(self, waited: Option<Duration>) -> BudgetError {
        let too_large = self.is_too_large();
        let report = Report::of(self);
        match waited {
            _ if too_large => BudgetError::TooLarge(report),
            Some(waited) => BudgetError::TimedOut { waited, report },
            None => BudgetError::Exceeded(report),
        }
    }
}

/// Calls every lister at and below a budget. The recursion is at most as deep as budgets nest.
fn list(node: &Arc<Node>, survey: &mut Survey) {
    if let Some(lister) = node.lister() {
        lister.list(survey);
    }
    node.each_child(|child| list(child, survey));
}

/// Returns whether there is a lister at or below a budget.
fn has_lister(node: &Arc<Node>) -> bool {
    let mut any = node.lister().is_some();
    node.each_child(|child| any |= has_lister(child));
    any
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().write_refusal(self.requested, f)
    }
}

/// A refusal, with a post-mortem of that moment.
///
/// The post-mortem is one allocation of a fixed size. It is missing if that allocation fails.
#[derive(Clone, Debug)]
pub struct Report {
    refusal: Refusal,
    /// Zero or one element. A vector is used because it can be allocated fallibly.
    explained: Vec<PostMortem>,
    snapshot: Option<PathBuf>,
}

impl Report {
    fn of(refusal: Refusal) -> Self {
        let mut explained = Vec::new();
        if explained.try_reserve_exact(1).is_ok() {
            explained.push(refusal.post_mortem());
        }
        Self {
            refusal,
            explained,
            snapshot: None,
        }
    }

    /// Returns the figures.
    #[must_use]
    pub fn refusal(&self) -> &Refusal {
        &self.refusal
    }

    /// Returns the post-mortem: the holders of the bytes, and how many bytes must be freed.
    #[must_use]
    pub fn post_mortem(&self) -> Option<&PostMortem> {
        self.explained.first()
    }

    /// Returns the file that contains all blocks of that moment, if one was
    /// written.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Path> {
        self.snapshot.as_deref()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.post_mortem() {
            Some(post_mortem) => post_mortem.fmt(f),
            None => self.refusal.fmt(f),
        }?;
        In(self.snapshot()).fmt(f)
    }
}

/// The error of a budget operation. Nothing was charged.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The request is larger than the limit. Only a higher limit helps.
    #[error("{0}")]
    TooLarge(Report),
    /// The request does not fit now. Refunds or a higher limit can change that.
    #[error("{0}")]
    Exceeded(Report),
    /// The request did not fit within its time limit.
    #[error("after waiting {waited:.1?}: {report}")]
    TimedOut {
        /// The time that the request waited.
        waited: Duration,
        /// The last refusal.
        report: Report,
    },
    /// The budget has another measure.
    #[error("budget '{}' counts {} bytes, not {measure} ones", budget.path(), budget.measure())]
    OtherMeasure {
        /// The budget.
        budget: Budget,
        /// The requested measure.
        measure: Measure,
    },
    /// The caller asked to restore more bytes than are forgotten.
    #[error(
        "{} cannot be restored to budget '{}': {} of its charges are forgotten",
        display_size(*.asked), budget.path(), display_size(*.forgotten)
    )]
    NotForgotten {
        /// The budget.
        budget: Budget,
        /// The bytes to restore.
        asked: u64,
        /// The bytes that were forgotten and not restored.
        forgotten: u64,
    },
    /// The nesting is too deep.
    #[error("budgets can be nested at most {most} levels deep")]
    TooDeep {
        /// The maximum number of levels.
        most: u32,
    },
    /// The memory for the entry of a waiting request could not be allocated.
    #[error("cannot allocate the entry of a waiting request: no memory is left")]
    NoMemory,
}

impl BudgetError {
    /// Returns the figures if a limit caused the error.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.report().map(Report::refusal)
    }

    /// Adds the holders of the refusing budget to the post-mortem if no lister at or below the budget reports them. `list` reports the
    /// blocks of one pool that are charged to a budget.
    #[doc(hidden)]
    pub fn explain(&mut self, list: impl FnOnce(&Budget, &mut Survey)) {
        let (Self::TooLarge(report) | Self::Exceeded(report) | Self::TimedOut { report, .. }) = self else {
            return;
        };
        let refusal = &report.refusal;
        if let Some(explained) = report.explained.first_mut()
            && !has_lister(refusal.budget.node())
        {
            let mut survey = Survey::new(refusal.requested);
            refusal.survey(&mut survey);
            list(&refusal.budget, &mut survey);
            *explained = survey.finish();
        }
    }

    /// Returns the place where the file with all blocks is recorded, if a limit caused the error.
    #[cfg(target_os = "linux")]
    pub(crate) fn snapshot_mut(&mut self) -> Option<&mut Option<PathBuf>> {
        match self {
            Self::TooLarge(report) | Self::Exceeded(report) | Self::TimedOut { report, .. } => {
                Some(&mut report.snapshot)
            }
            _ => None,
        }
    }

    /// Returns the report if a limit caused the error.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::TooLarge(report) | Self::Exceeded(report) | Self::TimedOut { report, .. } => Some(report),
            _ => None,
        }
    }

    /// Returns true if a retry may succeed after memory is freed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Exceeded(_) | Self::TimedOut { .. })
    }
}
