//! Why a budget did not do what it was asked.

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

/// A budget said no: the figures, made without allocating.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub struct Refusal {
    /// The budget that said no, which may be one above the one that was charged.
    pub budget: Budget,
    /// Bytes asked for.
    pub requested: u64,
    /// Its limit, then.
    pub limit: u64,
    /// Bytes charged to it then, with those of charges that were being made.
    pub used: u64,
    /// Requests that wait at it, and come first.
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

    /// Bytes by which the request is over the limit; 0 where it would fit and others come first.
    #[must_use]
    pub fn over_by(&self) -> u64 {
        self.used
            .saturating_add(self.requested)
            .saturating_sub(self.limit)
    }

    /// Whether it is larger than the limit itself, so that nothing that goes back can help.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.requested > self.limit
    }

    /// The figures as values, with the budget's path.
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

    /// Looks at who holds what under the budget, through the listers that pools have registered. Takes as long as
    /// they take, a walk over all live blocks for most; allocates nothing itself.
    #[must_use]
    pub fn post_mortem(&self) -> PostMortem {
        let mut survey = Survey::new(self.requested);
        self.survey(&mut survey);
        survey.finish()
    }

    /// The same, into a survey that others add to.
    pub fn survey(&self, survey: &mut Survey) {
        survey.refused_by(self.figures());
        self.budget
            .node()
            .each_child(|child| survey.child(&child.name, child.used()));
        list(self.budget.node(), survey);
    }

    pub(crate) fn into_error(self, waited: Option<Duration>) -> BudgetError {
        let too_large = self.is_too_large();
        let report = Report::of(self);
        match waited {
            _ if too_large => BudgetError::TooLarge(report),
            Some(waited) => BudgetError::TimedOut { waited, report },
            None => BudgetError::Exceeded(report),
        }
    }
}

/// Asks every lister at and below a budget; at most as deep as budgets nest.
fn list(node: &Arc<Node>, survey: &mut Survey) {
    if let Some(lister) = node.lister() {
        lister.list(survey);
    }
    node.each_child(|child| list(child, survey));
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().write_refusal(self.requested, f)
    }
}

/// A refusal, and who held what at that moment.
///
/// The second part is one allocation of a fixed size; where even that is refused, it is missing.
#[derive(Clone, Debug)]
pub struct Report {
    refusal: Refusal,
    /// None or one. A list, because that is what can be allocated fallibly.
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

    /// The figures.
    #[must_use]
    pub fn refusal(&self) -> &Refusal {
        &self.refusal
    }

    /// Who held what, and what would have to go.
    #[must_use]
    pub fn post_mortem(&self) -> Option<&PostMortem> {
        self.explained.first()
    }

    /// The file that has all blocks there were, where one was [written](crate::Snapshots::on_out_of_memory).
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

/// Why a budget did not do what it was asked. Nothing was charged.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The request is larger than the limit: only a higher limit helps.
    #[error("{0}")]
    TooLarge(Report),
    /// It does not fit now; what goes back, or a higher limit, may change that.
    #[error("{0}")]
    Exceeded(Report),
    /// It did not fit for as long as it was to wait.
    #[error("after waiting {waited:.1?}: {report}")]
    TimedOut {
        /// How long it waited.
        waited: Duration,
        /// What stood in its way at the end.
        report: Report,
    },
    /// The budget counts other bytes than these.
    #[error("budget '{}' counts {} bytes, not {measure} ones", budget.path(), budget.measure())]
    OtherMeasure {
        /// The budget.
        budget: Budget,
        /// What was to be counted.
        measure: Measure,
    },
    /// More bytes were to be restored than were forgotten.
    #[error(
        "{} cannot be restored to budget '{}': {} of its charges are forgotten",
        display_size(*.asked), budget.path(), display_size(*.forgotten)
    )]
    NotForgotten {
        /// The budget.
        budget: Budget,
        /// Bytes to restore.
        asked: u64,
        /// Bytes that were forgotten and not restored.
        forgotten: u64,
    },
    /// Budgets do not nest deeper than this.
    #[error("budgets nest at most {most} deep")]
    TooDeep {
        /// Levels.
        most: u32,
    },
    /// There is no memory to note that a request waits.
    #[error("no memory is left to note that a request waits")]
    NoMemory,
}

impl BudgetError {
    /// The figures, where a limit was the reason.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.report().map(Report::refusal)
    }

    /// Where the file is noted that has all blocks there were, if a limit was the reason.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn snapshot_mut(&mut self) -> Option<&mut Option<PathBuf>> {
        match self {
            Self::TooLarge(report) | Self::Exceeded(report) | Self::TimedOut { report, .. } => {
                Some(&mut report.snapshot)
            }
            _ => None,
        }
    }

    /// The figures and who held what, where a limit was the reason.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::TooLarge(report) | Self::Exceeded(report) | Self::TimedOut { report, .. } => Some(report),
            _ => None,
        }
    }

    /// Whether freeing memory and asking again may succeed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Exceeded(_) | Self::TimedOut { .. })
    }
}
