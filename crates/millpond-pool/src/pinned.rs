//! The source of page-locked memory of this process.

mod registry;

pub use registry::{add as note_pinned, remove as note_unpinned};
pub use registry::{is_pinned, pinned_bytes};

use crate::host::{Host, HostBuilder, HostError};
use crate::memory::MemorySource;
use millpond_account::MemoryKind;
use millpond_engine::{Event, Range, Segment, Source, SourceError};

/// Host memory that the system may neither swap out nor move. Devices copy from it at full speed once a driver knows of it.
///
/// Pages are locked (`mlock`) before they are given out. Pages that move are not in use, and they are unlocked during the
/// move. Meanwhile no source of this process locks other pages. The bytes count against the capacity, and against the
/// system's `RLIMIT_MEMLOCK` unless the process may exceed it (`CAP_IPC_LOCK`). At that limit the error is
/// [`SourceError::Locked`], which says how to raise it. A child made by `fork` inherits no lock, but [`is_pinned`] still
/// returns the same as in its parent.
///
/// If a move fails, and other code in the process has meanwhile used up the limit, pages can stay in their old place
/// without a lock. [`is_pinned`] returns false for them. Invariant: the registry has the committed parts and segments of
/// `host` except these, and nothing else of it.
///
/// ```
/// use millpond::{Host, engine::Source, is_pinned};
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
}

impl HostBuilder {
    /// Creates a source that locks the memory that it gives. Locking populates, so [`populate`](Self::populate) has no
    /// effect.
    ///
    /// # Errors
    /// Returns the errors of [`build`](Self::build). The limit on locked memory applies when memory is taken, not here.
    pub fn build_pinned(mut self) -> Result<Pinned, HostError> {
        self.check()?;
        self.lock = true;
        Ok(Pinned::over(Host::with(self)))
    }
}

impl Pinned {
    pub(crate) fn over(host: Host) -> Self {
        Self { host }
    }

    /// Returns the host source that this source uses.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }
}

impl Source for Pinned {
    fn page_bytes(&self) -> u64 {
        self.host.page_bytes()
    }

    fn is_paged(&self) -> bool {
        self.host.is_paged()
    }

    fn capacity(&self) -> Option<u64> {
        self.host.capacity()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.host.free_bytes()
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let segment = self.host.take(bytes)?;
        registry::add(segment.address(), segment.bytes());
        Ok(segment)
    }

    fn give(&mut self, segment: Segment) {
        if self.host.holds_segment(&segment) {
            registry::remove(segment.address(), segment.bytes());
        }
        self.host.give(segment);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.host.reserve(bytes)
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        self.host.commit(range, offset, bytes, handle_bytes)?;
        registry::add(range.address() + offset, bytes);
        Ok(())
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        // The registry is updated after the memory is given back. That is sound, because nobody may use memory that is
        // being given back.
        let handles = self.host.decommit(range, offset, bytes);
        if handles > 0 {
            registry::remove(range.address() + offset, bytes);
        }
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let outcome = self.host.move_pages(from, to, bytes);
        for (address, bytes) in self.host.take_slipped() {
            registry::remove(address, bytes);
        }
        let handles = outcome?;
        registry::remove(from.0.address() + from.1, bytes);
        registry::add(to.0.address() + to.1, bytes);
        Ok(handles)
    }

    fn release(&mut self, range: Range) {
        if self.host.holds_range(&range) {
            registry::remove(range.address(), range.bytes());
        }
        self.host.release(range);
    }

    fn record_event(&mut self, stream: u32) -> Event {
        self.host.record_event(stream)
    }

    fn is_complete(&self, event: Event) -> bool {
        self.host.is_complete(event)
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        self.host.wait_event(stream, event);
    }

    fn synchronize(&mut self) {
        self.host.synchronize();
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
