//! The calls to a source: their kinds, and their outcomes.

use crate::error::SourceError;
use crate::source::Event;
use std::fmt;

/// A kind of call that changes the state of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// [`Source::take`](crate::Source::take).
    Take,
    /// [`Source::give`](crate::Source::give).
    Give,
    /// [`Source::reserve`](crate::Source::reserve).
    Reserve,
    /// [`Source::release`](crate::Source::release).
    Release,
    /// [`Source::commit`](crate::Source::commit).
    Commit,
    /// [`Source::decommit`](crate::Source::decommit).
    Decommit,
    /// [`Source::move_pages`](crate::Source::move_pages).
    Move,
    /// [`Source::alias`](crate::Source::alias).
    Alias,
    /// [`Source::unmap`](crate::Source::unmap).
    Unmap,
    /// [`Source::relocate`](crate::Source::relocate).
    Relocate,
    /// [`Source::record_event`](crate::Source::record_event).
    RecordEvent,
    /// [`Source::wait_event`](crate::Source::wait_event).
    WaitEvent,
    /// [`Source::synchronize`](crate::Source::synchronize).
    Synchronize,
}

impl CallKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 13] = [
        Self::Take,
        Self::Give,
        Self::Reserve,
        Self::Release,
        Self::Commit,
        Self::Decommit,
        Self::Move,
        Self::Alias,
        Self::Unmap,
        Self::Relocate,
        Self::RecordEvent,
        Self::WaitEvent,
        Self::Synchronize,
    ];

    /// Returns the name of the method.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Give => "give",
            Self::Reserve => "reserve",
            Self::Release => "release",
            Self::Commit => "commit",
            Self::Decommit => "decommit",
            Self::Move => "move",
            Self::Alias => "alias",
            Self::Unmap => "unmap",
            Self::Relocate => "relocate",
            Self::RecordEvent => "record_event",
            Self::WaitEvent => "wait_event",
            Self::Synchronize => "synchronize",
        }
    }

    /// Returns whether the call takes memory, if it succeeds.
    #[must_use]
    pub fn takes_memory(self) -> bool {
        matches!(self, Self::Take | Self::Commit | Self::Relocate)
    }

    /// Returns whether the call can fail.
    #[must_use]
    pub fn can_fail(self) -> bool {
        matches!(
            self,
            Self::Take | Self::Reserve | Self::Commit | Self::Move | Self::Alias | Self::Relocate
        )
    }
}

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
    /// A second mapping of pages was requested. A call for several parts is reported once for each part.
    Alias {
        /// First address of the stale mapping.
        from: u64,
        /// First address of the new mapping.
        to: u64,
        /// Size in bytes.
        bytes: u64,
        /// Number of handles of all parts of the call.
        outcome: Result<u64, &'a SourceError>,
    },
    /// Stale mappings ended.
    Unmap {
        /// First address of the part.
        address: u64,
        /// Bytes of the part.
        bytes: u64,
        /// Number of handles.
        handles: u64,
    },
    /// A handle was to be replaced by handles of a page each.
    Relocate {
        /// First address of the handle.
        address: u64,
        /// Bytes of the handle, which are returned.
        bytes: u64,
        /// Bytes of the new handles.
        copied: u64,
        /// Whether the call succeeded.
        outcome: Result<(), &'a SourceError>,
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
            Self::Alias { .. } => CallKind::Alias,
            Self::Unmap { .. } => CallKind::Unmap,
            Self::Relocate { .. } => CallKind::Relocate,
            Self::RecordEvent { .. } => CallKind::RecordEvent,
            Self::WaitEvent { .. } => CallKind::WaitEvent,
            Self::Synchronize => CallKind::Synchronize,
        }
    }

    /// Returns the old address, the new address and the bytes of pages that were moved or mapped again.
    #[must_use]
    pub fn moved(&self) -> Option<(u64, u64, u64)> {
        match *self {
            Self::Move {
                from,
                to,
                bytes,
                outcome: Ok(_),
            }
            | Self::Alias {
                from,
                to,
                bytes,
                outcome: Ok(_),
            } => Some((from, to, bytes)),
            _ => None,
        }
    }

    /// Returns the address and the bytes of memory that was returned to the source. Some of it may have been replaced.
    #[must_use]
    pub fn returned(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Give { address, bytes }
            | Self::Release { address, bytes }
            | Self::Decommit {
                address,
                bytes,
                handles: 1..,
            }
            | Self::Relocate {
                address,
                bytes,
                outcome: Ok(()),
                ..
            } => Some((address, bytes)),
            _ => None,
        }
    }

    /// Returns the error of a failed call.
    #[must_use]
    pub fn error(&self) -> Option<&SourceError> {
        match self {
            Self::Take { outcome, .. }
            | Self::Reserve { outcome, .. }
            | Self::Move { outcome, .. }
            | Self::Alias { outcome, .. } => outcome.err(),
            Self::Commit { outcome, .. } | Self::Relocate { outcome, .. } => outcome.err(),
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
            }
            | Self::Unmap {
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
            }
            | Self::Alias {
                from,
                to,
                bytes,
                outcome,
            } => {
                write!(f, " {bytes} from {from:#x} to {to:#x}")?;
                outcome.map_or(Ok(()), |handles| write!(f, ", {handles} handles"))?;
            }
            Self::Relocate {
                address,
                bytes,
                copied,
                ..
            } => {
                write!(f, " {bytes} at {address:#x}, {copied} copied")?;
            }
            Self::RecordEvent { stream, event } | Self::WaitEvent { stream, event } => {
                write!(f, " {} on stream {stream}", event.0)?;
            }
            Self::Synchronize => {}
        }
        self.error().map_or(Ok(()), |error| write!(f, " failed: {error}"))
    }
}
