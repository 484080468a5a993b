//! Sources that wrap other sources. Each has one task, and any stack of them is a source.
//!
//! ```text
//!   Limited    checks a limit before each call            limited
//!   Counted    counts calls, failures and bytes           counted
//!   Logged     passes every call to a callback            logged
//!   Faulty     makes chosen calls fail                    faulty
//! ```
//!
//! No wrapper creates or keeps addresses. The caller gets the addresses of the inner source, and returned memory
//! reaches the inner source. A stack over real memory therefore provides real memory.

mod call;
mod counted;
mod faulty;
mod held;
mod limited;
mod logged;

pub use call::{CallKind, SourceEvent};
pub use counted::{Counted, Counts, Tally};
pub use faulty::{Failure, Faulty, When};
#[doc(hidden)]
pub use held::HeldMemory;
#[doc(hidden)]
pub use limited::LimitedMemory;
pub use limited::{Limit, Limited};
pub use logged::Logged;

use crate::error::SourceError;
use crate::source::{Event, Range, Segment, Source};

/// A source that adds something to the calls of another source.
///
/// Every wrapper is a [`Source`]. Its calls reach the inner source with the same arguments, and the results come back
/// unchanged. A wrapper implements only what it adds.
pub trait SourceWrapper {
    /// The source that the calls reach.
    type Inner: Source + ?Sized;

    /// Returns the inner source.
    fn inner(&self) -> &Self::Inner;

    /// Returns a mutable reference to the inner source.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Returns the capacity of this source, given that of the inner source.
    fn limit_capacity(&self, capacity: Option<u64>) -> Option<u64> {
        capacity
    }

    /// Returns the free bytes of this source, given those of the inner source.
    fn limit_free_bytes(&self, free: Option<u64>) -> Option<u64> {
        free
    }

    /// Runs before every call that [can fail](CallKind::can_fail), with the bytes of the call.
    ///
    /// # Errors
    /// An error makes the call fail. The call then does not reach the inner source, and [`after`](Self::after) is not
    /// called.
    fn before(&mut self, _kind: CallKind, _bytes: u64) -> Result<(), SourceError> {
        Ok(())
    }

    /// Runs after every call that changes the state of the inner source.
    fn after(&mut self, _event: &SourceEvent<'_>) {}
}

/// Returns an address in a range, for display. Wraps around, because a caller may name a part outside the range.
fn address_in(range: &Range, offset: u64) -> u64 {
    range.address().wrapping_add(offset)
}

impl<W: SourceWrapper> Source for W {
    fn page_bytes(&self) -> u64 {
        self.inner().page_bytes()
    }

    fn is_paged(&self) -> bool {
        self.inner().is_paged()
    }

    fn capacity(&self) -> Option<u64> {
        self.limit_capacity(self.inner().capacity())
    }

    fn device_bytes(&self) -> Option<u64> {
        self.inner().device_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.limit_free_bytes(self.inner().free_bytes())
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.before(CallKind::Take, bytes)?;
        let result = self.inner_mut().take(bytes);
        let outcome = result.as_ref().map(Segment::address);
        self.after(&SourceEvent::Take { bytes, outcome });
        result
    }

    fn give(&mut self, segment: Segment) {
        let (address, bytes) = (segment.address(), segment.bytes());
        self.inner_mut().give(segment);
        self.after(&SourceEvent::Give { address, bytes });
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.before(CallKind::Reserve, bytes)?;
        let result = self.inner_mut().reserve(bytes);
        let outcome = result.as_ref().map(Range::address);
        self.after(&SourceEvent::Reserve { bytes, outcome });
        result
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        self.before(CallKind::Commit, bytes)?;
        let result = self.inner_mut().commit(range, offset, bytes, handle_bytes);
        self.after(&SourceEvent::Commit {
            address: address_in(range, offset),
            bytes,
            handle_bytes,
            outcome: result.as_ref().copied(),
        });
        result
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let handles = self.inner_mut().decommit(range, offset, bytes);
        self.after(&SourceEvent::Decommit {
            address: address_in(range, offset),
            bytes,
            handles,
        });
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.before(CallKind::Move, bytes)?;
        let result = self.inner_mut().move_pages(from, to, bytes);
        self.after(&SourceEvent::Move {
            from: address_in(from.0, from.1),
            to: address_in(to.0, to.1),
            bytes,
            outcome: result.as_ref().copied(),
        });
        result
    }

    fn can_alias(&self) -> bool {
        self.inner().can_alias()
    }

    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        self.before(CallKind::Alias, parts.iter().map(|part| part.2).sum())?;
        let result = self.inner_mut().alias(parts, to);
        let mut target = address_in(to.0, to.1);
        for (range, offset, bytes) in parts {
            self.after(&SourceEvent::Alias {
                from: address_in(range, *offset),
                to: target,
                bytes: *bytes,
                outcome: result.as_ref().copied(),
            });
            target = target.wrapping_add(*bytes);
        }
        result
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        let handles = self.inner_mut().unmap(address, bytes);
        self.after(&SourceEvent::Unmap {
            address,
            bytes,
            handles,
        });
        handles
    }

    fn can_relocate(&self) -> bool {
        self.inner().can_relocate()
    }

    fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        let copied = kept.iter().map(|part| part.1).sum();
        self.before(CallKind::Relocate, copied)?;
        let result = self.inner_mut().relocate(range, offset, bytes, kept);
        self.after(&SourceEvent::Relocate {
            address: address_in(range, offset),
            bytes,
            copied,
            outcome: result.as_ref().copied(),
        });
        result
    }

    fn release(&mut self, range: Range) {
        let (address, bytes) = (range.address(), range.bytes());
        self.inner_mut().release(range);
        self.after(&SourceEvent::Release { address, bytes });
    }

    fn record_event(&mut self, stream: u32) -> Event {
        let event = self.inner_mut().record_event(stream);
        self.after(&SourceEvent::RecordEvent { stream, event });
        event
    }

    fn is_complete(&self, event: Event) -> bool {
        self.inner().is_complete(event)
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        self.inner_mut().wait_event(stream, event);
        self.after(&SourceEvent::WaitEvent { stream, event });
    }

    fn synchronize(&mut self) {
        self.inner_mut().synchronize();
        self.after(&SourceEvent::Synchronize);
    }

    fn wait_for_mappings(&mut self) {
        self.inner_mut().wait_for_mappings();
        self.after(&SourceEvent::Synchronize);
    }

    fn can_wait(&self, stream: Option<u32>) -> bool {
        self.inner().can_wait(stream)
    }
}

impl<T: Source + ?Sized> SourceWrapper for Box<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        self
    }

    fn inner_mut(&mut self) -> &mut T {
        self
    }
}

/// Allows the owner of a source to inspect it while an engine uses it by reference.
impl<T: Source + ?Sized> SourceWrapper for &mut T {
    type Inner = T;

    fn inner(&self) -> &T {
        self
    }

    fn inner_mut(&mut self) -> &mut T {
        self
    }
}

/// Forwards the methods of [`Source`](crate::Source) that have a default implementation to the field `inner`. The compiler does
/// not report a wrapper that lacks such a method. Every wrapper therefore uses this macro, and every new method with a default
/// must be added here.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_defaults {
    () => {
        fn device_bytes(&self) -> Option<u64> {
            $crate::Source::device_bytes(&self.inner)
        }
        fn can_wait(&self, stream: Option<u32>) -> bool {
            $crate::Source::can_wait(&self.inner, stream)
        }
        fn can_alias(&self) -> bool {
            $crate::Source::can_alias(&self.inner)
        }
        fn alias(
            &mut self,
            parts: &[(&$crate::Range, u64, u64)],
            to: (&$crate::Range, u64),
        ) -> Result<u64, $crate::SourceError> {
            $crate::Source::alias(&mut self.inner, parts, to)
        }
        fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
            $crate::Source::unmap(&mut self.inner, address, bytes)
        }
        fn can_relocate(&self) -> bool {
            $crate::Source::can_relocate(&self.inner)
        }
        fn relocate(
            &mut self,
            range: &$crate::Range,
            offset: u64,
            bytes: u64,
            kept: &[(u64, u64)],
        ) -> Result<(), $crate::SourceError> {
            $crate::Source::relocate(&mut self.inner, range, offset, bytes, kept)
        }
        fn wait_for_mappings(&mut self) {
            $crate::Source::wait_for_mappings(&mut self.inner);
        }
    };
}

/// Forwards the methods of [`Source`](crate::Source) that report numbers of bytes to the field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_bytes {
    () => {
        fn capacity(&self) -> Option<u64> {
            $crate::Source::capacity(&self.inner)
        }
        fn free_bytes(&self) -> Option<u64> {
            $crate::Source::free_bytes(&self.inner)
        }
    };
}

/// Forwards the methods of [`Source`](crate::Source) about streams to the field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_streams {
    () => {
        fn record_event(&mut self, stream: u32) -> $crate::Event {
            $crate::Source::record_event(&mut self.inner, stream)
        }
        fn wait_event(&mut self, stream: u32, event: $crate::Event) {
            $crate::Source::wait_event(&mut self.inner, stream, event);
        }
        fn synchronize(&mut self) {
            $crate::Source::synchronize(&mut self.inner);
        }
    };
}
