//! Pools: memory that is handed out and taken back many times before it goes back to the system.
//!
//! ```text
//!   thread's cache   the block of this size freed last           no lock, nothing shared     (cache.rs)
//!   shelf            small blocks of one size                    a lock for each size        (shelf.rs)
//!   engine           best fit, growth, moving pages              the pool's lock             (core.rs)
//! ```
//!
//! Blocks up to 64 KiB are cut from spans of one size each, larger ones come from the policy as they are.

mod account;
mod cache;
mod claim;
mod classes;
mod core;
mod fork;
mod heap;
mod local;
mod shelf;
mod stats;
#[cfg(test)]
mod tests;

pub use stats::PoolStats;

use crate::error::AllocError;
use crate::host::{Host, HostError};
use crate::memory::MemorySource;
use crate::os;
use heap::{Heap, Taken};
use millpond_engine::{Compaction, ConfError, Engine, MillpondConf, Settings, policies};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use thiserror::Error;

/// Why a pool could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The source of memory cannot be as described.
    #[error(transparent)]
    Source(#[from] HostError),
    /// There is no policy of this name.
    #[error("there is no policy {name:?}: choose one of {known}")]
    UnknownPolicy {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The settings of the policy cannot be read.
    #[error(transparent)]
    Settings(#[from] ConfError),
}

/// A block handed out by hand, for those who keep their own account; cannot be copied, and has to be given back to
/// the pool it came from. A [`Buffer`](crate::Buffer) does that by itself.
#[derive(Debug)]
#[must_use = "a block that is dropped is never given back"]
pub struct Raw {
    taken: Taken,
    requested: usize,
    pool: u64,
}

impl Raw {
    /// The first byte. Nothing is said about what the bytes hold.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        let pointer = std::ptr::with_exposed_provenance_mut(self.taken.address);
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }

    /// Bytes that were asked for.
    #[must_use]
    pub fn requested(&self) -> usize {
        self.requested
    }

    /// Bytes that may be used, at least those asked for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.taken.bytes
    }
}

/// The last one closes the pool.
struct Handle(&'static Heap);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A pool of memory that any thread may use.
///
/// Cloning makes another handle of the same pool. When the last handle is gone, memory goes back to the system as
/// soon as the last block has come back; a buffer may outlive its pool.
///
/// ```
/// use millpond::Pool;
///
/// let pool = Pool::host()?;
/// let mut buffer = pool.alloc_zeroed::<f32>(1000)?;
/// buffer[7] = 1.0;
/// assert_eq!(buffer.iter().sum::<f32>(), 1.0);
/// drop(buffer);
/// assert_eq!((pool.stats().allocations, pool.stats().requested.peak), (1, 4000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Describes a pool.
#[derive(Clone, Debug)]
pub struct PoolBuilder {
    policy: String,
    settings: Option<String>,
    limit: Option<u64>,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            policy: "millpond".to_owned(),
            settings: None,
            limit: None,
        }
    }
}

impl PoolBuilder {
    /// The policy that places blocks; `millpond` unless said otherwise.
    #[must_use]
    pub fn policy(mut self, name: &str) -> Self {
        name.clone_into(&mut self.policy);
        self
    }

    /// Settings of the policy, `key:value,…`, as in `MILLPOND_CONF`, which is read where nothing is said here.
    #[must_use]
    pub fn settings(mut self, text: &str) -> Self {
        self.settings = Some(text.to_owned());
        self
    }

    /// The most bytes the pool may take from the system; the machine's memory unless said otherwise.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// A pool over ordinary memory of this process.
    ///
    /// # Errors
    /// Where there is no such policy or setting, or no such memory.
    pub fn host(self) -> Result<Pool, PoolError> {
        let limit = self.limit.unwrap_or_else(|| os::machine_memory().1);
        let source = Host::builder()
            .page_bytes(PAGE_BYTES)
            .capacity(Some(limit))
            .build()?;
        self.over(Box::new(source))
    }

    /// A pool over a source of memory.
    ///
    /// # Errors
    /// Where there is no such policy or setting.
    pub fn over(self, source: Box<dyn MemorySource + Send>) -> Result<Pool, PoolError> {
        let text = match self.settings {
            Some(text) => text,
            None => std::env::var("MILLPOND_CONF").unwrap_or_default(),
        };
        let conf = MillpondConf {
            // A host's handles cost nothing: what counts is the call, and one call opens many pages.
            single_pages: true,
            ..MillpondConf::parse(&text)?
        };
        let settings = Settings {
            millpond: conf,
            ..Settings::default()
        };
        let policy = policies::build(&self.policy, &settings).map_err(|_| PoolError::UnknownPolicy {
            name: self.policy.clone(),
            known: policies::names().collect::<Vec<_>>().join(", "),
        })?;
        Ok(Pool(Arc::new(Handle(Heap::new(Engine::new(policy, source))))))
    }
}

/// Pages of a host pool: small enough that what is left of one beside a live block is little.
const PAGE_BYTES: u64 = 64 << 10;

impl Pool {
    /// A pool over ordinary memory of this process, with the defaults.
    ///
    /// # Errors
    /// Where the system has no addresses for it.
    pub fn host() -> Result<Self, PoolError> {
        Self::builder().host()
    }

    /// Begins to describe a pool.
    #[must_use]
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    #[inline]
    pub(crate) fn heap(&self) -> &'static Heap {
        self.0.0
    }

    /// A block by hand, at a multiple of `align` and of 64. What the bytes hold is not said.
    ///
    /// # Errors
    /// When there is no memory for it, or `align` is no power of two; the pool stays usable.
    #[inline]
    pub fn alloc_raw(&self, bytes: usize, align: usize) -> Result<Raw, AllocError> {
        if !align.is_power_of_two() {
            return Err(AllocError::Alignment {
                align: align as u64,
                most: 1 << 46,
            });
        }
        Ok(Raw {
            taken: self.heap().allocate(bytes, align)?,
            requested: bytes,
            pool: self.heap().number(),
        })
    }

    /// Takes a block back that was handed out by hand.
    ///
    /// # Errors
    /// The block itself, where it is another pool's.
    #[inline]
    pub fn free_raw(&self, raw: Raw) -> Result<(), Raw> {
        if raw.pool != self.heap().number() {
            return Err(raw);
        }
        self.heap().free(raw.taken, raw.requested);
        Ok(())
    }

    /// Takes a block back by its address and the request it was given for, as allocators' interfaces do.
    ///
    /// # Safety
    /// `pointer` is that of a [`Raw`] which this pool handed out for just these `bytes` and `align`, which was not given
    /// back since, and nothing uses the block any more.
    #[inline]
    pub unsafe fn free_raw_sized(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        self.heap().free(
            Taken::of(pointer.as_ptr().expose_provenance(), bytes, align),
            bytes,
        );
    }

    /// The account.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.heap().stats()
    }

    /// Starts every peak anew at the current value.
    pub fn reset_peak(&self) {
        self.heap().reset_peaks();
    }

    /// Moves free pages and blocks together and gives back all memory that no block uses, as [`trim`](Self::trim) does;
    /// answers what went back, and why the rest did not. Live blocks stay where they are.
    pub fn compact(&self) -> Compaction {
        self.heap().compact()
    }

    /// Gives everything that no block uses back to the system, what threads keep included, those that are idle too.
    pub fn trim(&self) {
        self.heap().trim();
    }
}

pub(crate) use heap::{Heap as PoolHeap, Taken as PoolBlock};
