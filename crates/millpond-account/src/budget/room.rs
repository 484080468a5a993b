//! The room of one budget: the bytes that can still be charged, and a flag for waiting requests, in one word.
//!
//! ```text
//!   63                                    1      0
//!   |  room = limit - charged, signed     | waited |
//! ```
//!
//! With one word, all changes to a budget have one order. A lowered limit takes effect immediately: no later charge
//! uses the old limit. The thread that returns bytes learns from the word that it changed whether a request waits:
//! either it sees the flag, or the thread that set the flag sees the bytes. So no wakeup is lost, and no fence is
//! needed.
//!
//! The room is negative if the limit was set below the charged bytes.

use super::sync::{AtomicI64, Ordering};

/// The highest possible limit. One bit is used for the flag and one for the sign.
pub(super) const MOST: u64 = (i64::MAX >> 1) as u64;

const WAITED: i64 = 1;

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(i64);

impl Seen {
    /// Returns the bytes that can still be charged. The value is negative while more is charged than the limit allows.
    pub(super) fn room(self) -> i64 {
        self.0 >> 1
    }

    pub(super) fn is_waited(self) -> bool {
        self.0 & WAITED != 0
    }

    pub(super) fn holds(self, bytes: u64) -> bool {
        i64::try_from(bytes).is_ok_and(|bytes| bytes <= self.room())
    }

    /// Returns the bytes charged under a limit.
    pub(super) fn charged(self, limit: u64) -> u64 {
        u64::try_from(i128::from(limit) - i128::from(self.room())).unwrap_or(0)
    }
}

/// The kind of request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A request that has not waited. It cannot take room that other requests wait for.
    New,
    /// The request whose turn it is in the line.
    ChargeQueue,
}

/// Invariant: room + charged = limit, where charged counts the bytes that were taken and not returned.
#[derive(Debug)]
pub(super) struct Room(AtomicI64);

impl Room {
    /// Makes the room of a limit of at most [`MOST`].
    pub(super) fn new(limit: u64) -> Self {
        Self(AtomicI64::new(shifted(limit)))
    }

    pub(super) fn see(&self) -> Seen {
        Seen(self.0.load(Ordering::Relaxed))
    }

    /// Checks whether the bytes could be taken now.
    pub(super) fn admits(&self, bytes: u64, turn: Turn) -> Result<(), Seen> {
        admits(self.see(), bytes, turn)
    }

    /// Takes the bytes if there is room for all of them.
    ///
    /// The acquire pairs with the release in [`give`](Self::give). A thread that takes room which another thread
    /// returned synchronises with that thread, which returned the memory itself before the room.
    pub(super) fn take(&self, bytes: u64, turn: Turn) -> Result<(), Seen> {
        let mut seen = self.see();
        loop {
            admits(seen, bytes, turn)?;
            // This does not overflow, because the room held the bytes.
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

    /// Returns bytes that were taken. Returns true if a request waits.
    #[must_use]
    pub(super) fn give(&self, bytes: u64) -> bool {
        Seen(self.0.fetch_add(shifted(bytes), Ordering::Release)).is_waited()
    }

    /// Changes the limit, under the lock of the line. Returns true if a request waits.
    #[must_use]
    pub(super) fn change_limit(&self, from: u64, to: u64) -> bool {
        let change = shifted(to) - shifted(from);
        Seen(self.0.fetch_add(change, Ordering::Release)).is_waited()
    }

    /// Sets the flag, under the lock of the line. Returns the value before the change.
    pub(super) fn raise_flag(&self) -> Seen {
        Seen(self.0.fetch_or(WAITED, Ordering::Relaxed))
    }

    /// Clears the flag, under the lock of the line.
    pub(super) fn lower_flag(&self) {
        self.0.fetch_and(!WAITED, Ordering::Relaxed);
    }
}

fn admits(seen: Seen, bytes: u64, turn: Turn) -> Result<(), Seen> {
    if seen.holds(bytes) && (turn == Turn::ChargeQueue || !seen.is_waited()) {
        Ok(())
    } else {
        Err(seen)
    }
}

/// Shifts a value of at most [`MOST`], so that no bits are lost.
fn shifted(bytes: u64) -> i64 {
    (bytes.min(MOST) as i64) << 1
}
