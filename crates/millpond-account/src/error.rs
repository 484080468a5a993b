//! The errors with which a pool refuses a request.

use crate::budget::BudgetError;
use crate::post_mortem::{In, PostMortem};
use millpond_engine::{self as engine, SourceError, display_size};
use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The error of a refused request. The pool continues to work unless it is [broken](Self::Broken).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The request can never fit, even if all memory is freed.
    #[error("a request of {} can never fit: the limit is {}", display_size(*.requested), display_size(*.limit))]
    TooLarge {
        /// The requested bytes, or the largest number if they overflow.
        requested: u64,
        /// The largest request that the pool could ever serve.
        limit: u64,
    },
    /// The alignment is not a power of two, or it is larger than the pool supports.
    #[error("alignment {align} is not a power of two of at most {most}")]
    Alignment {
        /// The requested alignment.
        align: u64,
        /// The largest supported alignment.
        most: u64,
    },
    /// The request does not fit now. Freeing or trimming memory may help.
    #[error("{}{}", .0.post_mortem, In(.0.snapshot.as_deref()))]
    OutOfMemory(#[source] Box<OutOfMemory>),
    /// A budget to which the pool is charged refused the request, or did not grant it in time.
    #[error(transparent)]
    Budget(Box<BudgetError>),
    /// The source of memory failed for a reason other than the size of the request, or with an error that states a
    /// remedy.
    #[error(transparent)]
    Source(Box<SourceError>),
    /// The driver of a device failed, or the request was for another device. The error is a `cuda::CudaError`.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Cuda(Box<dyn StdError + Send + Sync>),
    /// The memory belongs to another library and cannot grow.
    #[error("cannot grow memory that belongs to another library: copy it to a pool with `deep_copy`")]
    Foreign,
    /// A panic has broken the pool. It came from the pool's source of memory, or from a sink that observes the source's
    /// calls, and it unwound through the engine. It is no longer known which of the pool's memory is free, so none of it is
    /// allocated again or returned. Blocks that are already allocated stay valid.
    #[error(
        "pool '{pool}' is broken: its source of memory, or a sink that observes the source's calls, panicked during a call. The pool serves \
         no more requests and returns no memory; buffers that it has already allocated stay valid. Create a new pool, and fix the code that panicked"
    )]
    Broken {
        /// The pool's name.
        pool: Box<str>,
    },
    /// A set could not create the pool for the request. The error is a `PoolError`.
    #[cfg(target_os = "linux")]
    #[error("cannot create the pool for the request: {0}")]
    Pool(#[source] Box<dyn StdError + Send + Sync>),
}

/// Memory ran out. The error contains the engine's error and a post-mortem.
#[derive(Debug, Error)]
#[error("{why}")]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The engine's error.
    pub why: engine::AllocError,
    /// The holders of the memory, and how much must be freed.
    pub post_mortem: PostMortem,
    /// The file that contains all blocks of that moment, if one was written.
    pub snapshot: Option<PathBuf>,
}

impl AllocError {
    /// The error of a request whose size is not a number.
    pub const UNCOUNTABLE: Self = Self::TooLarge {
        requested: u64::MAX,
        limit: isize::MAX as u64,
    };

    /// Returns true if a retry may succeed after memory is freed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) => true,
            Self::Budget(error) => !matches!(**error, BudgetError::TooLarge(_)),
            Self::Source(error) => error.is_out_of_memory() || matches!(**error, SourceError::Held { .. }),
            _ => false,
        }
    }

    /// Returns the post-mortem, if the cause is a lack of memory.
    #[must_use]
    pub fn post_mortem(&self) -> Option<&PostMortem> {
        match self {
            Self::OutOfMemory(error) => Some(&error.post_mortem),
            Self::Budget(error) => error.report()?.post_mortem(),
            _ => None,
        }
    }

    /// Converts an error of the engine. Adds a post-mortem if the cause is a lack of memory.
    #[doc(hidden)]
    pub fn of(why: engine::AllocError, post_mortem: impl FnOnce() -> PostMortem) -> Self {
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

    /// Returns the file that contains all blocks of the moment of this error, if one was written.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Path> {
        match self {
            Self::OutOfMemory(error) => error.snapshot.as_deref(),
            Self::Budget(error) => error.report()?.snapshot(),
            _ => None,
        }
    }

    /// Adds the file that was written for the error. If the error has no place for it, the path is reported on standard
    /// error.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn with_snapshot(mut self, path: PathBuf) -> Self {
        let place = match &mut self {
            Self::OutOfMemory(error) => Some(&mut error.snapshot),
            Self::Budget(error) => error.snapshot_mut(),
            _ => None,
        };
        match place {
            Some(place) => *place = Some(path),
            None => millpond_os::say(&format!("millpond: {self}{}\n", In(Some(&path)))),
        }
        self
    }
}
