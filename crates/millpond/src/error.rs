//! Why a pool refused a request.

use crate::budget::BudgetError;
use crate::post_mortem::PostMortem;
use millpond_engine::{self as engine, SourceError, display_size};
use thiserror::Error;

/// Why a pool refused a request. Nothing is lost: the pool serves the next one if it can.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The request can never fit, whatever is freed first.
    #[error("a request of {} can never fit: the limit is {}", display_size(*.requested), display_size(*.limit))]
    TooLarge {
        /// Bytes asked for; the largest number there is where they cannot be counted.
        requested: u64,
        /// The most that could ever be served.
        limit: u64,
    },
    /// The alignment is not a power of two, or larger than the pool can give.
    #[error("alignment {align} is not a power of two of at most {most}")]
    Alignment {
        /// Alignment asked for.
        align: u64,
        /// The largest the pool can give.
        most: u64,
    },
    /// It does not fit now; freeing or trimming may change that.
    #[error("{}", .0.post_mortem)]
    OutOfMemory(#[source] Box<OutOfMemory>),
    /// A budget that the pool is charged to refused, or did not grant it in time.
    #[error(transparent)]
    Budget(Box<BudgetError>),
    /// The source of memory failed for a reason that is not its size, or that names its remedy.
    #[error(transparent)]
    Source(Box<SourceError>),
    /// The driver of a device failed, or what it was asked to serve is not its device's.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    #[error(transparent)]
    Cuda(Box<crate::cuda::CudaError>),
    /// The memory is that of others, who give no more of it.
    #[error(
        "the memory is that of others, who give no more of it: copy it to memory of a pool, with `deep_copy`"
    )]
    Foreign,
    /// The pool of a set that was to serve it could not be made.
    #[cfg(target_os = "linux")]
    #[error("the pool for it cannot be made: {0}")]
    Pool(#[source] Box<crate::pool::PoolError>),
}

/// Memory ran out: what the engine says, and who holds it.
#[derive(Debug, Error)]
#[error("{why}")]
#[non_exhaustive]
pub struct OutOfMemory {
    /// What the engine says.
    pub why: engine::AllocError,
    /// Who holds the memory, and what would have to go.
    pub post_mortem: PostMortem,
}

impl AllocError {
    pub(crate) const UNCOUNTABLE: Self = Self::TooLarge {
        requested: u64::MAX,
        limit: isize::MAX as u64,
    };

    /// Whether freeing memory and asking again may succeed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) => true,
            Self::Budget(error) => !matches!(**error, BudgetError::TooLarge(_)),
            Self::Source(error) => error.is_out_of_memory() || matches!(**error, SourceError::Held { .. }),
            _ => false,
        }
    }

    /// Who holds the memory and what would have to go, if memory is what is missing.
    #[must_use]
    pub fn post_mortem(&self) -> Option<&PostMortem> {
        match self {
            Self::OutOfMemory(error) => Some(&error.post_mortem),
            Self::Budget(error) => error.report()?.post_mortem(),
            _ => None,
        }
    }

    /// For what the engine refused, with a post-mortem where memory is what is missing.
    pub(crate) fn of(why: engine::AllocError, post_mortem: impl FnOnce() -> PostMortem) -> Self {
        match why {
            engine::AllocError::TooLarge { requested, limit } => Self::TooLarge { requested, limit },
            engine::AllocError::Alignment { align, most } => Self::Alignment { align, most },
            engine::AllocError::Source(error) => Self::Source(Box::new(error)),
            why => Self::OutOfMemory(Box::new(OutOfMemory {
                why,
                post_mortem: post_mortem(),
            })),
        }
    }
}
