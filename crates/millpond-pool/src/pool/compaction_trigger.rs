//! Compaction in the background, when too much memory stays unused.

use millpond_engine::RetainConf;

/// Decides at which ticks a pool returns the pages between its live blocks.
#[derive(Debug, Default)]
pub(crate) struct CompactionTrigger {
    /// The number of ticks since the last decision.
    ticks: u64,
    /// The maximum number of allocated bytes at the ticks since then.
    peak: u64,
}

impl CompactionTrigger {
    /// Advances time by one tick. Returns whether the pool should compact. This is decided every [`decay`](RetainConf::decay)
    /// ticks. The pool should compact if more than [`compact_at_percent`](RetainConf::compact_at_percent) of the reserved memory
    /// was unused at all these ticks, and if the settings keep no free memory.
    pub(crate) fn tick(&mut self, conf: &RetainConf, allocated: u64, reserved: u64) -> bool {
        self.ticks += 1;
        self.peak = self.peak.max(allocated);
        if conf.decay == 0 || self.ticks < conf.decay {
            return false;
        }
        let free = reserved.saturating_sub(self.peak);
        let percent = conf.compact_at_percent;
        *self = Self {
            ticks: 0,
            peak: allocated,
        };
        percent > 0 && free > reserved / 100 * percent && conf.low_water.of(reserved) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::Amount;

    #[test]
    fn memory_must_be_unused_at_every_tick() {
        let conf = RetainConf {
            decay: 3,
            compact_at_percent: 30,
            ..RetainConf::default()
        };
        let mut trigger = CompactionTrigger::default();
        let mut ticks = |allocated: [u64; 3]| allocated.map(|allocated| trigger.tick(&conf, allocated, 1000));
        assert_eq!(ticks([100, 400, 100]), [false, false, true]);
        assert_eq!(ticks([100, 700, 100]), [false; 3], "just at the threshold");
        assert_eq!(ticks([100, 100, 100]), [false, false, true]);
    }

    #[test]
    fn settings_apply_at_once() {
        let mut trigger = CompactionTrigger::default();
        let mut at = |decay, compact_at_percent, low_water| {
            let conf = RetainConf {
                decay,
                compact_at_percent,
                low_water,
                ..RetainConf::default()
            };
            trigger.tick(&conf, 10, 1000)
        };
        let none = Amount::Bytes(0);
        assert!(!at(1, 0, none) && at(1, 95, none) && !at(0, 95, none));
        assert!(!at(1, 95, Amount::Bytes(1)) && !at(1, 95, Amount::Percent(10)));
    }
}
