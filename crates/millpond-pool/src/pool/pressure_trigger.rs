//! Detects that the system has little memory left, so that a pool gives memory back.

use super::heap::{Heap, lock};
use millpond_os::pressure::{LimitKind, Pressure, Readings, Share, Thresholds};
use millpond_os::reentrancy::inside;
use std::time::{Duration, Instant};

/// The condition under which a pool gives memory back because memory is scarce. The background thread stores it. It does not
/// refer to a pool.
#[derive(Clone, Debug)]
pub struct PressureTrigger {
    /// The share of a limit at which memory is given back, or `None` if the pool does not check.
    at: Option<Share>,
    readings: Readings,
    /// The time of the next check.
    rests_until: Option<Instant>,
}

/// The time without checks after a pool has given memory back. If the program needs the memory, it takes it again at once, with
/// a page fault for each page. The pause limits this cost to a few percent of the program's time.
pub(super) const REST: Duration = Duration::from_secs(5);

/// The minimum of idle bytes for a check, because a check costs about half a millisecond.
pub(super) const WORTH: u64 = 2 << 20;

impl PressureTrigger {
    /// Creates a trigger that fires at the share `at` of a limit.
    pub fn new(at: Option<Share>, readings: Readings) -> Self {
        Self {
            at,
            readings,
            rests_until: None,
        }
    }

    pub(super) fn set(&mut self, at: Option<Share>) {
        self.at = at;
        self.rests_until = None;
    }

    pub(super) fn is_on(&self) -> bool {
        self.at.is_some()
    }

    /// Returns whether the trigger has no state that must be kept: the check is off, and the readings are those of the system.
    pub(super) fn is_plain(&self) -> bool {
        self.at.is_none() && self.readings.is_system()
    }

    /// Returns whether a check is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_on() && self.rests_until.is_none_or(|until| until <= now)
    }

    pub(super) fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + REST);
    }

    /// Returns whether the use of a device's memory is above the threshold.
    pub fn is_passed(&self, used: u64, total: u64) -> bool {
        self.at.is_some_and(|at| Share::of(used, total) >= at)
    }

    /// Returns whether memory should be given back. Uses the system's reading in `last` if it was made for another pool, and
    /// stores a new reading there otherwise.
    pub(super) fn is_scarce(&self, last: &mut Option<Pressure>) -> bool {
        let Some(at) = self.at else { return false };
        let read = || self.readings.of_process(&Thresholds::default());
        if self.readings.is_system() {
            scarce(last.get_or_insert_with(read), at)
        } else {
            scarce(&read(), at)
        }
    }
}

/// Returns whether the use of a limit has reached the threshold. This checks only limits whose use falls when memory is given
/// back. The limit of addresses is not one of them, because a pool keeps its addresses.
fn scarce(pressure: &Pressure, at: Share) -> bool {
    let helps = |kind: LimitKind| kind.is_enforced() && kind != LimitKind::AddressSpace;
    let mut limits = pressure.limits().iter();
    limits.any(|limit| helps(limit.kind) && limit.used_share() >= at)
}

impl Heap {
    /// Returns the bytes from the source that no caller uses. This is a sum of counters and stops no thread.
    pub(super) fn idle_bytes(&self) -> u64 {
        let _inside = inside();
        let (_, allocated) = self.live();
        let core = lock(&self.core);
        let reserved = core.as_ref().map_or(0, |core| core.reserved().current);
        reserved.saturating_sub(allocated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_pauses_after_memory_was_given_back() {
        let start = Instant::now();
        let mut trigger = PressureTrigger::new(Some(Share::percent(80)), Readings::system());
        assert!(trigger.is_due(start));
        trigger.rest(start);
        assert!(!trigger.is_due(start + REST / 2));
        assert!(trigger.is_due(start + REST));
        trigger.rest(start);
        trigger.set(Some(Share::percent(90)));
        assert!(trigger.is_due(start), "a new threshold is checked at once");
        trigger.set(None);
        assert!(!trigger.is_due(start + REST) && trigger.is_plain());
    }
}
