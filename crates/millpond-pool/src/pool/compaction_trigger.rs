//! Compaction in the background, when too much memory stays unused.

use millpond_engine::RetainConf;

/// Decides at which ticks a pool returns the pages between its live blocks.
#[derive(Debug, Default)]
pub(crate) struct CompactionTrigger {
    /// The number of ticks since the last decision.
    ticks: u64,
    /// The most allocated bytes at a tick since then.
    peak: u64,
}

impl CompactionTrigger {
    /// Advances time by one tick, and decides after every [`decay`](RetainConf::decay) ticks. Returns how many bytes of
    /// free memory to return. This is 0 unless more than [`compact_at_percent`](RetainConf::compact_at_percent) of the
    /// reserved memory was unused at all these ticks. `low_water` bytes of free memory are kept.
    pub(crate) fn tick(&mut self, conf: &RetainConf, allocated: u64, reserved: u64, low_water: u64) -> u64 {
        self.ticks += 1;
        self.peak = self.peak.max(allocated);
        if conf.decay == 0 || self.ticks < conf.decay {
            return 0;
        }
        let free = reserved.saturating_sub(self.peak);
        let percent = conf.compact_at_percent;
        *self = Self {
            ticks: 0,
            peak: allocated,
        };
        if percent > 0 && free > reserved / 100 * percent {
            free.saturating_sub(low_water)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unused_at_every_tick_is_returned() {
        let conf = RetainConf {
            decay: 3,
            compact_at_percent: 30,
            ..RetainConf::default()
        };
        let mut trigger = CompactionTrigger::default();
        let mut ticks =
            |allocated: [u64; 3]| allocated.map(|allocated| trigger.tick(&conf, allocated, 1000, 0));
        assert_eq!(ticks([100, 400, 100]), [0, 0, 600]);
        assert_eq!(ticks([100, 700, 100]), [0, 0, 0], "just at the threshold");
        assert_eq!(ticks([100, 100, 100]), [0, 0, 900]);
        // A new threshold applies at once, and so does the low water.
        let mut trigger = CompactionTrigger::default();
        let at = |percent| RetainConf {
            decay: 1,
            compact_at_percent: percent,
            ..RetainConf::default()
        };
        assert_eq!(trigger.tick(&at(0), 10, 1000, 0), 0);
        assert_eq!(trigger.tick(&at(95), 10, 1000, 0), 990);
        assert_eq!(trigger.tick(&at(95), 10, 1000, 500), 490);
        assert_eq!(trigger.tick(&at(95), 10, 1000, 2000), 0);
    }
}
