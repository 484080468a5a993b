//! The source of page-locked memory of this process.

mod registry;

pub use registry::{add as note_pinned, remove as note_unpinned};
pub use registry::{is_pinned, pinned_bytes};

use crate::host::{Host, HostBuilder, HostError};
use crate::memory::MemorySource;
use millpond_account::MemoryKind;
use millpond_engine::{HeldMemory, SourceEvent, SourceWrapper};

/// Host memory that the system may neither swap out nor move. Devices copy from it at full speed after it is registered with
/// a driver.
///
/// Pages are locked (`mlock`) before they are given out. Pages that move are not in use, and they are unlocked during the
/// move. No source of this process locks other pages during that time. The bytes count against the capacity, and against the
/// system's `RLIMIT_MEMLOCK` unless the process may exceed it (`CAP_IPC_LOCK`). At that limit the error is
/// [`SourceError::Locked`](millpond_engine::SourceError::Locked), which says how to raise it. A child made by `fork` inherits
/// no lock, but [`is_pinned`] still returns the same as in its parent.
///
/// If a move fails, and other code in the process has meanwhile used up the limit, pages can stay in their old place
/// without a lock. [`is_pinned`] returns false for them. Invariant: the registry has the committed parts, stale mappings and
/// segments of `host` except these, and nothing else of it.
///
/// ```
/// use millpond::{Host, engine::Source, source::is_pinned};
///
/// let mut pinned = Host::builder().page_bytes(4096).build_pinned()?;
/// match pinned.take(4096) {
///     Ok(segment) => {
///         assert!(is_pinned(segment.address() as *const u8));
///         pinned.give(segment);
///     }
///     Err(error) => eprintln!("{error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pinned {
    host: Host,
    held: HeldMemory,
}

impl HostBuilder {
    /// Creates a source that locks the memory that it gives. Locking populates, so [`populate`](Self::populate) has no
    /// effect.
    ///
    /// # Errors
    /// Returns the errors of [`build`](Self::build). The limit on locked memory applies when memory is taken, not here.
    pub fn build_pinned(mut self) -> Result<Pinned, HostError> {
        self.lock = true;
        Ok(Pinned::over(self.build()?))
    }
}

impl Pinned {
    pub(crate) fn over(host: Host) -> Self {
        Self {
            host,
            held: HeldMemory::default(),
        }
    }

    /// Returns the host source that this source uses.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }
}

impl SourceWrapper for Pinned {
    type Inner = Host;

    fn inner(&self) -> &Host {
        &self.host
    }

    fn inner_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    /// Updates the registry after each call, even if the call gives memory back. That is sound, because no code may use memory
    /// that is being given back.
    fn after(&mut self, event: &SourceEvent<'_>) {
        let (_, returned) = self.held.record(event);
        for (address, bytes) in self.host.take_slipped() {
            registry::remove(address, bytes);
        }
        match *event {
            SourceEvent::Take {
                bytes,
                outcome: Ok(address),
            }
            | SourceEvent::Commit {
                address,
                bytes,
                outcome: Ok(()),
                ..
            }
            // The old mapping stays locked until it ends.
            | SourceEvent::Alias {
                to: address,
                bytes,
                outcome: Ok(_),
                ..
            } => registry::add(address, bytes),
            SourceEvent::Give { address, bytes }
            | SourceEvent::Decommit { address, bytes, .. }
            | SourceEvent::Release { address, bytes }
                if returned > 0 =>
            {
                registry::remove(address, bytes);
            }
            SourceEvent::Move {
                from,
                to,
                bytes,
                outcome: Ok(_),
            } => {
                registry::remove(from, bytes);
                registry::add(to, bytes);
            }
            _ => {}
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.host.for_each_held(registry::remove);
    }
}

// SAFETY: every call is forwarded to the host, which fulfils the contract. The registry touches no memory, and locks change
// neither contents nor access.
unsafe impl MemorySource for Pinned {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pinned
    }

    fn fresh_is_zero(&self) -> bool {
        self.host.fresh_is_zero()
    }

    fn can_protect(&self) -> bool {
        self.host.can_protect()
    }

    fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        self.host.protect(address, bytes, closed)
    }
}
