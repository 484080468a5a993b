//! Why a pool refused a request.

use crate::budget::BudgetError;
use crate::post_mortem::{In, PostMortem};
use millpond_engine::{self as engine, SourceError, display_size};
use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a pool refused a request. Nothing is lost: the pool serves the next request if it can, unless the pool is
/// [broken](Self::Broken).
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
    #[error("{}{}", .0.post_mortem, In(.0.snapshot.as_deref()))]
    OutOfMemory(#[source] Box<OutOfMemory>),
    /// A budget that the pool is charged to refused, or did not grant it in time.
    #[error(transparent)]
    Budget(Box<BudgetError>),
    /// The source of memory failed for a reason that is not its size, or that names its remedy.
    #[error(transparent)]
    Source(Box<SourceError>),
    /// The driver of a device failed, or the request was for another device. The error is a `cuda::CudaError`.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    #[error(transparent)]
    Cuda(Box<dyn StdError + Send + Sync>),
    /// The memory is that of others, who give no more of it.
    #[error(
        "the memory is that of others, who give no more of it: copy it to memory of a pool, with `deep_copy`"
    )]
    Foreign,
    /// A panic has broken the pool. It came from the pool's source of memory, or from a sink that is told of the source's
    /// calls, and it unwound through the engine. It is no longer known which of the pool's memory is free, so none of it is
    /// allocated again or returned. Blocks that are already allocated stay valid.
    #[error(
        "pool '{pool}' is broken: its source of memory, or a sink that is told of the source's calls, panicked during a call. The pool serves \
         no more requests and returns no memory; buffers that it has already allocated stay valid. Create a new pool, and fix the code that panicked"
    )]
    Broken {
        /// The pool's name.
        pool: Box<str>,
    },
    /// A set could not create the pool for the request. The error is a [`PoolError`](crate::PoolError).
    #[cfg(target_os = "linux")]
    #[error("the pool for it cannot be made: {0}")]
    Pool(#[source] Box<dyn StdError + Send + Sync>),
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
    /// The file that has all blocks there were, where one was [written](crate::Snapshots::on_out_of_memory).
    pub snapshot: Option<PathBuf>,
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
                snapshot: None,
            })),
        }
    }

    /// The file that has all blocks there were when memory had run out, if one was written for this refusal.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Path> {
        match self {
            Self::OutOfMemory(error) => error.snapshot.as_deref(),
            Self::Budget(error) => error.report()?.snapshot(),
            _ => None,
        }
    }

    /// The same with the file that was written for it. What cannot carry it is followed by a line on standard error.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn with_snapshot(mut self, path: PathBuf) -> Self {
        let place = match &mut self {
            Self::OutOfMemory(error) => Some(&mut error.snapshot),
            Self::Budget(error) => error.snapshot_mut(),
            _ => None,
        };
        match place {
            Some(place) => *place = Some(path),
            None => crate::os::say(&format!("millpond: {self}{}\n", In(Some(&path)))),
        }
        self
    }
}
