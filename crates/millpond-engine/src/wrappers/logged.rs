//! A wrapper that passes every call to a callback.

use super::CallKind;
use crate::error::SourceError;
use crate::source::{Event, Range, Segment, Source};
use std::fmt;

/// One call to a source and its outcome. Addresses and sizes are in bytes.
///
/// The text is formatted only on demand, by `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceEvent<'a> {
    /// A segment was requested.
    Take {
        /// Bytes requested.
        bytes: u64,
        /// First address of the segment.
        outcome: Result<u64, &'a SourceError>,
    },
    /// A segment was returned.
    Give {
        /// First address.
        address: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// Addresses were requested.
    Reserve {
        /// Bytes requested.
        bytes: u64,
        /// First address reserved.
        outcome: Result<u64, &'a SourceError>,
    },
    /// Addresses were returned.
    Release {
        /// First address.
        address: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// Pages were requested.
    Commit {
        /// First address of the part.
        address: u64,
        /// Bytes of the part.
        bytes: u64,
        /// Bytes of each handle.
        handle_bytes: u64,
        /// Whether the call succeeded.
        outcome: Result<(), &'a SourceError>,
    },
    /// Pages were released.
    Decommit {
        /// First address of the part.
        address: u64,
        /// Bytes of the part.
        bytes: u64,
        /// Number of handles released.
        handles: u64,
    },
    /// A move of pages was requested.
    Move {
        /// First address before the move.
        from: u64,
        /// First address after the move.
        to: u64,
        /// Size in bytes.
        bytes: u64,
        /// Number of handles moved.
        outcome: Result<u64, &'a SourceError>,
    },
    /// An event was recorded at the end of a stream's work.
    RecordEvent {
        /// The stream.
        stream: u32,
        /// The event.
        event: Event,
    },
    /// A stream was made to wait for an event.
    WaitEvent {
        /// The stream.
        stream: u32,
        /// The event.
        event: Event,
    },
    /// The host waited for the device.
    Synchronize,
}

impl SourceEvent<'_> {
    /// Returns the kind of call.
    #[must_use]
    pub fn kind(&self) -> CallKind {
        match self {
            Self::Take { .. } => CallKind::Take,
            Self::Give { .. } => CallKind::Give,
            Self::Reserve { .. } => CallKind::Reserve,
            Self::Release { .. } => CallKind::Release,
            Self::Commit { .. } => CallKind::Commit,
            Self::Decommit { .. } => CallKind::Decommit,
            Self::Move { .. } => CallKind::Move,
            Self::RecordEvent { .. } => CallKind::RecordEvent,
            Self::WaitEvent { .. } => CallKind::WaitEvent,
            Self::Synchronize => CallKind::Synchronize,
        }
    }

    /// Returns the error of a failed call.
    #[must_use]
    pub fn error(&self) -> Option<&SourceError> {
        match self {
            Self::Take { outcome, .. } | Self::Reserve { outcome, .. } | Self::Move { outcome, .. } => {
                outcome.err()
            }
            Self::Commit { outcome, .. } => outcome.err(),
            _ => None,
        }
    }
}

impl fmt::Display for SourceEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())?;
        match self {
            Self::Take { bytes, outcome } | Self::Reserve { bytes, outcome } => {
                write!(f, " {bytes}")?;
                outcome.map_or(Ok(()), |address| write!(f, " at {address:#x}"))?;
            }
            Self::Give { address, bytes } | Self::Release { address, bytes } => {
                write!(f, " {bytes} at {address:#x}")?;
            }
            Self::Commit {
                address,
                bytes,
                handle_bytes,
                ..
            } => {
                write!(f, " {bytes} at {address:#x} in handles of {handle_bytes}")?;
            }
            Self::Decommit {
                address,
                bytes,
                handles,
            } => {
                write!(f, " {bytes} at {address:#x}, {handles} handles")?;
            }
            Self::Move {
                from,
                to,
                bytes,
                outcome,
            } => {
                write!(f, " {bytes} from {from:#x} to {to:#x}")?;
                outcome.map_or(Ok(()), |handles| write!(f, ", {handles} handles"))?;
            }
            Self::RecordEvent { stream, event } | Self::WaitEvent { stream, event } => {
                write!(f, " {} on stream {stream}", event.0)?;
            }
            Self::Synchronize => {}
        }
        self.error().map_or(Ok(()), |error| write!(f, " failed: {error}"))
    }
}

/// A source that passes every call to a callback after the call has finished.
///
/// A panic in the callback propagates to the caller. Memory that the call took is lost until the source is dropped. The
/// panic leaves an [`Engine`](crate::Engine) over the source half changed, so the engine must not be used again. A pool
/// detects this and stops using its engine.
///
/// ```
/// use millpond_engine::{Logged, Simulated, Source, SourceEvent};
///
/// let mut lines = Vec::new();
/// let mut source = Logged::new(Simulated::new(), |event: &SourceEvent<'_>| lines.push(event.to_string()));
/// let segment = source.take(512)?;
/// source.give(segment);
/// drop(source);
/// assert_eq!(lines, ["take 512 at 0x1000000000", "give 512 at 0x1000000000"]);
/// # Ok::<(), millpond_engine::SourceError>(())
/// ```
pub struct Logged<S, F> {
    inner: S,
    sink: F,
}

impl<S: fmt::Debug, F> fmt::Debug for Logged<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, F: FnMut(&SourceEvent<'_>)> Logged<S, F> {
    /// Wraps a source and passes every call to `sink`.
    pub fn new(inner: S, sink: F) -> Self {
        Self { inner, sink }
    }

    /// Returns the inner source.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Returns the inner source for calls that the wrapper does not support. The wrapper does not see these calls.
    #[doc(hidden)]
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }
}

/// Returns an address in a range, for display. Wraps around, because a caller may name a part outside the range.
fn at(range: &Range, offset: u64) -> u64 {
    range.address().wrapping_add(offset)
}

impl<S: Source, F: FnMut(&SourceEvent<'_>)> Source for Logged<S, F> {
    crate::forward_facts!();
    crate::forward_bytes!();

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let outcome = self.inner.take(bytes);
        (self.sink)(&SourceEvent::Take {
            bytes,
            outcome: outcome.as_ref().map(Segment::address),
        });
        outcome
    }

    fn give(&mut self, segment: Segment) {
        let (address, bytes) = (segment.address(), segment.bytes());
        self.inner.give(segment);
        (self.sink)(&SourceEvent::Give { address, bytes });
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        let outcome = self.inner.reserve(bytes);
        (self.sink)(&SourceEvent::Reserve {
            bytes,
            outcome: outcome.as_ref().map(Range::address),
        });
        outcome
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        let outcome = self.inner.commit(range, offset, bytes, handle_bytes);
        let (address, result) = (at(range, offset), outcome.as_ref().copied());
        (self.sink)(&SourceEvent::Commit {
            address,
            bytes,
            handle_bytes,
            outcome: result,
        });
        outcome
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let handles = self.inner.decommit(range, offset, bytes);
        (self.sink)(&SourceEvent::Decommit {
            address: at(range, offset),
            bytes,
            handles,
        });
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let outcome = self.inner.move_pages(from, to, bytes);
        let (origin, target) = (at(from.0, from.1), at(to.0, to.1));
        let result = outcome.as_ref().copied();
        (self.sink)(&SourceEvent::Move {
            from: origin,
            to: target,
            bytes,
            outcome: result,
        });
        outcome
    }

    fn release(&mut self, range: Range) {
        let (address, bytes) = (range.address(), range.bytes());
        self.inner.release(range);
        (self.sink)(&SourceEvent::Release { address, bytes });
    }

    fn record_event(&mut self, stream: u32) -> Event {
        let event = self.inner.record_event(stream);
        (self.sink)(&SourceEvent::RecordEvent { stream, event });
        event
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        self.inner.wait_event(stream, event);
        (self.sink)(&SourceEvent::WaitEvent { stream, event });
    }

    fn synchronize(&mut self) {
        self.inner.synchronize();
        (self.sink)(&SourceEvent::Synchronize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulated;

    #[test]
    fn each_call_is_shown_with_its_outcome() {
        let mut lines = Vec::new();
        let device = Simulated::new().with_capacity(Some(4 << 20));
        let mut source = Logged::new(device, |event: &SourceEvent<'_>| {
            lines.push((event.kind(), event.error().is_some(), event.to_string()));
        });
        let range = source.reserve(16 << 20).expect("addresses");
        source.commit(&range, 0, 4 << 20, 2 << 20).expect("fits");
        assert!(source.commit(&range, 8 << 20, 2 << 20, 2 << 20).is_err());
        source
            .move_pages((&range, 0), (&range, 8 << 20), 2 << 20)
            .expect("moves");
        source.decommit(&range, 8 << 20, 2 << 20);
        let event = source.record_event(3);
        source.wait_event(4, event);
        source.synchronize();
        drop(source);
        let kinds: Vec<_> = lines.iter().map(|(kind, failed, _)| (*kind, *failed)).collect();
        use CallKind::{Commit, Decommit, Move, RecordEvent, Reserve, Synchronize, WaitEvent};
        let streams = [(RecordEvent, false), (WaitEvent, false), (Synchronize, false)];
        let pages = [
            (Reserve, false),
            (Commit, false),
            (Commit, true),
            (Move, false),
            (Decommit, false),
        ];
        assert_eq!(kinds, [&pages[..], &streams[..]].concat());
        let text: Vec<&str> = lines.iter().map(|(_, _, line)| line.as_str()).collect();
        assert_eq!(text[1], "commit 4194304 at 0x1000000000 in handles of 2097152");
        assert!(text[2].ends_with("failed: the device has 0 B left of 4.00 MiB and was asked for 2.00 MiB"));
        assert_eq!(
            text[3],
            "move 2097152 from 0x1000000000 to 0x1000800000, 1 handles"
        );
        assert_eq!(text[6], "wait_event 0 on stream 4");
    }
}
