//! What threads tell a recording, as values.

/// What happened, as a number in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    Alloc = 1,
    Free,
    Reserve,
    Release,
    Refused,
    /// The mark with the number in `requested`.
    Mark,
    /// Of a thread's whole run of steps, the one with the number in `requested`.
    Step,
}

impl What {
    pub(super) fn of(number: u8) -> Option<Self> {
        let all = [
            Self::Alloc,
            Self::Free,
            Self::Reserve,
            Self::Release,
            Self::Refused,
            Self::Mark,
            Self::Step,
        ];
        all.get(usize::from(number).wrapping_sub(1)).copied()
    }
}

/// One event, but for its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) what: What,
    pub(super) time: u64,
    pub(super) address: u64,
    pub(super) requested: u64,
    pub(super) bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u32,
    /// A free's says nothing: its allocation has told it.
    pub(super) tag: u32,
}

/// Events that had no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) events: u64,
    /// Bytes that were asked for in those that are allocations.
    pub(super) allocated: u64,
    /// Those in frees.
    pub(super) freed: u64,
}

impl Lost {
    /// What was lost since.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            allocated: self.allocated - before.allocated,
            freed: self.freed - before.freed,
        }
    }
}
