//! The room of one budget: what may still be charged, and whether someone waits for it, in one word.
//!
//! ```text
//!   63                                    1      0
//!   |  room = limit - charged, signed     | waited |
//! ```
//!
//! One word, because then all that happens to a budget happens in one order. A limit that was lowered holds from
//! that moment: there is no charge that still goes by the old one. And whoever gives bytes back learns from the
//! word it changed whether someone waits: either it sees the flag, or whoever raised the flag sees the bytes.
//! So no wakeup is lost, and no fence is needed.
//!
//! The room is below zero where the limit was set below what is charged.

use super::sync::{AtomicI64, Ordering};

/// The most that a budget can be held to: with one bit for the flag and one for the sign.
pub(super) const MOST: u64 = (i64::MAX >> 1) as u64;

const WAITED: i64 = 1;

/// What the word said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(i64);

impl Seen {
    /// Bytes that may still be charged; below zero while more is charged than allowed.
    pub(super) fn room(self) -> i64 {
        self.0 >> 1
    }

    pub(super) fn is_waited(self) -> bool {
        self.0 & WAITED != 0
    }

    pub(super) fn holds(self, bytes: u64) -> bool {
        i64::try_from(bytes).is_ok_and(|bytes| bytes <= self.room())
    }

    /// Bytes charged under a limit.
    pub(super) fn charged(self, limit: u64) -> u64 {
        u64::try_from(i128::from(limit) - i128::from(self.room())).unwrap_or(0)
    }
}

/// Who asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Someone who has not waited: room that others wait for is not theirs.
    New,
    /// Whoever's turn it is in the line.
    Line,
}

/// Invariant: room + charged = limit, where charged counts what was taken and not given back.
#[derive(Debug)]
pub(super) struct Room(AtomicI64);

impl Room {
    /// Room under a limit of at most [`MOST`].
    pub(super) fn new(limit: u64) -> Self {
        Self(AtomicI64::new(shifted(limit)))
    }

    pub(super) fn see(&self) -> Seen {
        Seen(self.0.load(Ordering::Relaxed))
    }

    /// Whether so much could be taken now.
    pub(super) fn admits(&self, bytes: u64, turn: Turn) -> Result<(), Seen> {
        admits(self.see(), bytes, turn)
    }

    /// Takes bytes if there is room for all of them.
    ///
    /// Acquire, with the release in [`give`](Self::give): whoever takes room that another gave back comes after all
    /// that the other did before, above all after it gave the memory itself back.
    pub(super) fn take(&self, bytes: u64, turn: Turn) -> Result<(), Seen> {
        let mut seen = self.see();
        loop {
            admits(seen, bytes, turn)?;
            // No overflow: the room held the bytes.
            let next = seen.0 - shifted(bytes);
            match self
                .0
                .compare_exchange_weak(seen.0, next, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => seen = Seen(now),
            }
        }
    }

    /// Gives bytes back that were taken; answers whether someone waits.
    #[must_use]
    pub(super) fn give(&self, bytes: u64) -> bool {
        Seen(self.0.fetch_add(shifted(bytes), Ordering::Release)).is_waited()
    }

    /// Changes the limit, under the lock of the line; answers whether someone waits.
    #[must_use]
    pub(super) fn change_limit(&self, from: u64, to: u64) -> bool {
        let change = shifted(to) - shifted(from);
        Seen(self.0.fetch_add(change, Ordering::Release)).is_waited()
    }

    /// Says that someone waits, under the lock of the line; answers the room there was then.
    pub(super) fn raise_flag(&self) -> Seen {
        Seen(self.0.fetch_or(WAITED, Ordering::Relaxed))
    }

    /// Says that nobody waits, under the lock of the line.
    pub(super) fn lower_flag(&self) {
        self.0.fetch_and(!WAITED, Ordering::Relaxed);
    }
}

fn admits(seen: Seen, bytes: u64, turn: Turn) -> Result<(), Seen> {
    if seen.holds(bytes) && (turn == Turn::Line || !seen.is_waited()) {
        Ok(())
    } else {
        Err(seen)
    }
}

/// At most [`MOST`], so that the shift loses nothing.
fn shifted(bytes: u64) -> i64 {
    (bytes.min(MOST) as i64) << 1
}
