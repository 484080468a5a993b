//! Decides when a level changes: up immediately, and down only after a calm period.

use crate::pressure::Level;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Hysteresis {
    level: Level,
    calm: Duration,
    /// The time since which the pressure is below the level, and the highest level since then.
    below: Option<(Instant, Level)>,
}

impl Hysteresis {
    pub(super) fn new(calm: Duration) -> Self {
        Self {
            level: Level::Low,
            calm,
            below: None,
        }
    }

    /// Updates the level from the current levels: `rising` by the thresholds, and `falling` by the lower thresholds at
    /// which a level is left. Returns the levels before and after a change.
    pub(super) fn step(&mut self, rising: Level, falling: Level, now: Instant) -> Option<(Level, Level)> {
        let before = self.level;
        if rising > before {
            self.level = rising;
        } else if falling >= before {
            self.below = None;
            return None;
        } else {
            let (since, highest) = self.below.get_or_insert((now, falling));
            *highest = falling.max(*highest);
            if now.saturating_duration_since(*since) < self.calm {
                return None;
            }
            self.level = *highest;
        }
        self.below = None;
        Some((before, self.level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{Critical, High, Low, Medium};
    use proptest::prelude::*;

    #[test]
    fn a_level_rises_immediately_and_falls_after_the_calm_period() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut level = Hysteresis::new(Duration::from_secs(10));
        assert_eq!(level.step(Low, Low, at(0)), None);
        assert_eq!(level.step(High, High, at(1)), Some((Low, High)));
        assert_eq!(
            level.step(High, Critical, at(2)),
            None,
            "the lower thresholds raise nothing"
        );
        assert_eq!(level.step(Medium, High, at(3)), None);
        assert_eq!(level.step(Low, Low, at(20)), None, "the calm begins");
        assert_eq!(level.step(Medium, Medium, at(25)), None);
        assert_eq!(level.step(Low, Low, at(29)), None);
        assert_eq!(
            level.step(Low, Low, at(30)),
            Some((High, Medium)),
            "the highest of the calm"
        );
        assert_eq!(level.step(Low, Low, at(35)), None);
        assert_eq!(level.step(Low, Medium, at(44)), None, "the calm is over");
        assert_eq!(level.step(Low, Low, at(46)), None);
        assert_eq!(level.step(Low, Low, at(56)), Some((Medium, Low)));
        assert_eq!(level.step(Critical, Critical, at(56)), Some((Low, Critical)));
    }

    proptest! {
        #[test]
        fn the_level_is_never_too_low_and_falls_at_most_once_per_calm_period(
            steps in proptest::collection::vec((0u64..5, 0usize..4, 0usize..4), 1..100),
        ) {
            let (mut now, calm) = (Instant::now(), Duration::from_secs(7));
            let mut level = Hysteresis::new(calm);
            let (mut at, mut fell): (Level, Option<Instant>) = (Low, None);
            for (seconds, rising, more) in steps {
                now += Duration::from_secs(seconds);
                let (rising, falling) = (Level::ALL[rising], Level::ALL[rising.max(more)]);
                if let Some((from, to)) = level.step(rising, falling, now) {
                    prop_assert_eq!(from, at);
                    prop_assert_ne!(from, to);
                    if to < from {
                        prop_assert!(fell.is_none_or(|fell| now - fell >= calm));
                        fell = Some(now);
                    }
                    at = to;
                }
                prop_assert!(at >= rising);
            }
        }
    }
}
