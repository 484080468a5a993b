//! The time of an event: cheap to take, and comparable within the process.
//!
//! With the feature `quanta` (on by default) it is read from the processor's counter, in less than half the time that
//! the system's clock takes. The first look sets the clock up, which takes about a millisecond.

use crate::ranked::{Locked, Rank, Ranked, might_take};
use std::sync::OnceLock;
use std::time::Duration;

/// Nanoseconds of the processor's counter. Not by `quanta::Instant::now`, which looks at a thread local with a destructor
/// and so panics where memory is freed at the end of a thread.
#[cfg(all(feature = "quanta", not(miri)))]
#[inline]
fn nanos() -> u64 {
    static CLOCK: OnceLock<(quanta::Clock, u64)> = OnceLock::new();
    let (clock, start) = match CLOCK.get() {
        Some(set) => set,
        None => {
            let _alone = no_clock();
            CLOCK.get_or_init(|| {
                // If setting it up allocates, that must not ask for the time.
                let _inside = crate::thread::enter(crate::thread::COUNTING);
                let clock = quanta::Clock::new();
                let start = clock.raw();
                (clock, start)
            })
        }
    };
    clock.delta_as_nanos(*start, clock.raw())
}

#[cfg(not(all(feature = "quanta", not(miri))))]
fn nanos() -> u64 {
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get().copied().unwrap_or_else(|| {
        let _alone = no_clock();
        *START.get_or_init(Instant::now)
    });
    start.elapsed().as_nanos() as u64
}

/// As long as it is held nobody sets the clock up: taken around a fork, or the child would wait for ever for a thread that
/// was at it.
pub(crate) struct NoClock(#[expect(dead_code, reason = "held")] Locked<'static, ()>);

pub(crate) fn no_clock() -> NoClock {
    static SETTING: Ranked<()> = Ranked::new(Rank::Clock, ());
    NoClock(SETTING.lock())
}

/// A moment, in nanoseconds since this process first asked for one. Never goes backwards on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Now.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        might_take(Rank::Clock);
        Self(nanos())
    }

    /// A moment of a recording, or of a test.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the process first asked.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// How long ago the earlier moment was; nothing if it was later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
