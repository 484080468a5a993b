//! The kinds of calls to a source.

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
    /// [`Source::record_event`](crate::Source::record_event).
    RecordEvent,
    /// [`Source::wait_event`](crate::Source::wait_event).
    WaitEvent,
    /// [`Source::synchronize`](crate::Source::synchronize).
    Synchronize,
}

impl CallKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 10] = [
        Self::Take,
        Self::Give,
        Self::Reserve,
        Self::Release,
        Self::Commit,
        Self::Decommit,
        Self::Move,
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
            Self::RecordEvent => "record_event",
            Self::WaitEvent => "wait_event",
            Self::Synchronize => "synchronize",
        }
    }

    /// Returns whether the call can fail.
    #[must_use]
    pub fn can_fail(self) -> bool {
        matches!(self, Self::Take | Self::Reserve | Self::Commit | Self::Move)
    }
}
