//! The times of events, which are cheap to read and comparable within the process.
//!
//! With the feature `quanta`, which is on by default, the time is read from the processor's counter. This takes less than half as
//! long as reading the system's clock. The first read initialises the clock, which takes about a millisecond.

use crate::fork::Participant;
use crate::ranked::{Locked, Rank, Ranked, might_take};
use millpond_engine::ConfError;
use std::time::Duration;

/// The processor's counter. `quanta::Instant::now` is not used, because it reads a thread-local value with a destructor
/// and so panics if memory is freed at the end of a thread.
#[cfg(all(feature = "quanta", not(miri)))]
mod clock {
    use super::setting;
    use std::sync::OnceLock;

    /// The clock, and its first value.
    static CLOCK: OnceLock<(quanta::Clock, u64)> = OnceLock::new();

    #[inline]
    fn set() -> &'static (quanta::Clock, u64) {
        match CLOCK.get() {
            Some(set) => set,
            None => set_up(),
        }
    }

    #[cold]
    #[inline(never)]
    fn set_up() -> &'static (quanta::Clock, u64) {
        let _alone = setting();
        CLOCK.get_or_init(|| {
            // An allocation during the initialisation must not read the time.
            let _inside = crate::thread::enter(crate::thread::COUNTING);
            let clock = quanta::Clock::new();
            let start = clock.raw();
            (clock, start)
        })
    }

    #[inline]
    pub(super) fn ticks() -> u64 {
        set().0.raw()
    }

    #[inline]
    pub(super) fn nanos_at(ticks: u64) -> u64 {
        let (clock, start) = set();
        clock.delta_as_nanos(*start, ticks)
    }
}

#[cfg(not(all(feature = "quanta", not(miri))))]
mod clock {
    use super::setting;
    use std::sync::OnceLock;
    use std::time::Instant;

    pub(super) fn ticks() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = START.get().copied().unwrap_or_else(|| {
            let _alone = setting();
            *START.get_or_init(Instant::now)
        });
        start.elapsed().as_nanos() as u64
    }

    pub(super) fn nanos_at(ticks: u64) -> u64 {
        ticks
    }
}

/// Held while a thread sets up the clock. Otherwise the child of a fork could wait forever for that thread.
static SETTING: Ranked<()> = Ranked::new(Rank::Clock, ());
static FORKS: Participant = Participant::new(Rank::Clock, || Box::new(SETTING.lock()));

fn setting() -> Locked<'static, ()> {
    FORKS.register();
    SETTING.lock()
}

/// Parses a setting that is a time with its unit. `or_off` is whether the setting can also be `off`, which the error then names.
pub fn duration(key: &str, value: &str, or_off: bool) -> Result<Duration, ConfError> {
    let units = [("ms", 1e-3), ("s", 1.0), ("min", 60.0)];
    let read = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = value.strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    });
    read.filter(|time| !time.is_zero()).ok_or_else(|| {
        let hint = match or_off {
            true => "write a time such as 500ms, 1s or 2min, or off",
            false => "write a time such as 500ms, 1s or 2min",
        };
        ConfError::value(key, value, hint)
    })
}

/// A moment in nanoseconds since this process first read the time. It never goes backwards on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Returns the current time.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        might_take(Rank::Clock);
        Self(clock::nanos_at(clock::ticks()))
    }

    /// Makes a moment of a recording or a test.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the process first read the time.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since the earlier moment, or zero if that one was later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A moment in ticks of the clock. It costs half as much as a [`Time`], and can be converted to one later and by
/// another thread.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub struct Ticks(pub u64);

#[cfg(target_os = "linux")]
impl Ticks {
    /// Returns the current ticks.
    #[inline]
    pub fn now() -> Self {
        might_take(Rank::Clock);
        Self(clock::ticks())
    }

    /// Converts the ticks to a time.
    #[inline]
    pub fn time(self) -> Time {
        Time(clock::nanos_at(self.0))
    }
}
