//! What threads tell a recording, as values.

/// What happened, as a number in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
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
    pub(crate) fn of(number: u8) -> Option<Self> {
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
pub(crate) struct Told {
    pub(crate) what: What,
    pub(crate) time: u64,
    pub(crate) address: u64,
    pub(crate) requested: u64,
    pub(crate) bytes: u64,
    pub(crate) pool: u32,
    pub(crate) stream: u32,
    /// A free's says nothing: its allocation has told it.
    pub(crate) tag: u32,
}

/// Events that had no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) events: u64,
    /// Bytes that were asked for in those that are allocations.
    pub(crate) allocated: u64,
    /// Those in frees.
    pub(crate) freed: u64,
}

impl Lost {
    /// What was lost since.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            allocated: self.allocated - before.allocated,
            freed: self.freed - before.freed,
        }
    }
}
