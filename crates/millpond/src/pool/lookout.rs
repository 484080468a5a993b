//! A pool that gives memory back when the system has little left.

use super::heap::{Heap, lock};
use crate::pressure::{LimitKind, Pressure, Readings, Share, Thresholds};
use crate::reentrancy::inside;
use std::time::{Duration, Instant};

/// What a pool looks out for. Kept by the keeper; knows nothing of pools.
#[derive(Clone, Debug)]
pub(crate) struct Lookout {
    /// The share of a limit from which on memory goes back; none for a pool that does not look.
    at: Option<Share>,
    readings: Readings,
    /// When it may look again.
    rests_until: Option<Instant>,
}

/// After it has given something back a pool does not look for so long. A program that needs the memory takes it again at
/// once, with a page fault for each page: that may cost it some percent of its time, and not all of it.
pub(super) const REST: Duration = Duration::from_secs(5);

/// With less to give nobody looks: a look costs about half a millisecond.
pub(super) const WORTH: u64 = 2 << 20;

impl Lookout {
    pub(crate) fn new(at: Option<Share>, readings: Readings) -> Self {
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

    pub(super) fn looks(&self) -> bool {
        self.at.is_some()
    }

    /// Whether there is anything to keep of it while it does not look.
    pub(super) fn is_plain(&self) -> bool {
        self.at.is_none() && self.readings.is_system()
    }

    /// Whether it is time to look.
    pub(super) fn is_awake(&self, now: Instant) -> bool {
        self.looks() && self.rests_until.is_none_or(|until| until <= now)
    }

    pub(super) fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + REST);
    }

    /// Whether so much of a device's memory is used that some is to go back.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn is_passed(&self, used: u64, total: u64) -> bool {
        self.at.is_some_and(|at| Share::of(used, total) >= at)
    }

    /// Whether memory is to go back, by what is read now; `last` is what was read of the system for another pool.
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

/// Whether so much of a limit is used that memory given back helps against: addresses stay a pool's.
fn scarce(pressure: &Pressure, at: Share) -> bool {
    let helps = |kind: LimitKind| kind.is_enforced() && kind != LimitKind::AddressSpace;
    let mut limits = pressure.limits().iter();
    limits.any(|limit| helps(limit.kind) && limit.used_share() >= at)
}

impl Heap {
    /// Bytes from the source that no caller has: a sum, for which no thread is held up.
    pub(super) fn idle_bytes(&self) -> u64 {
        let _inside = inside();
        let (_, allocated) = self.live();
        let core = lock(&self.core);
        let reserved = core
            .as_ref()
            .map_or(0, |core| core.memory.stats().reserved.current);
        reserved.saturating_sub(allocated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_after_it_has_given() {
        let start = Instant::now();
        let mut lookout = Lookout::new(Some(Share::percent(80)), Readings::system());
        assert!(lookout.is_awake(start));
        lookout.rest(start);
        assert!(!lookout.is_awake(start + REST / 2));
        assert!(lookout.is_awake(start + REST));
        lookout.rest(start);
        lookout.set(Some(Share::percent(90)));
        assert!(lookout.is_awake(start), "what is set anew is looked for at once");
        lookout.set(None);
        assert!(!lookout.is_awake(start + REST) && lookout.is_plain());
    }
}
