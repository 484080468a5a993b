//! The four levels of pressure and their thresholds.

use thiserror::Error;

/// The level of pressure on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// No action is necessary.
    #[default]
    Low,
    /// Caches may shrink if that costs little.
    Medium,
    /// Cached memory should be freed now.
    High,
    /// The next growth may be refused, or the process may be killed because of it.
    Critical,
}

impl Level {
    pub(super) const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];
}

/// A share of a whole, in hundredths of a percent. It never exceeds the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

impl Share {
    /// The whole.
    pub const WHOLE: Self = Self(10_000);

    /// Makes a share from a percentage. Values above 100 count as 100.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self::hundredths(if percent > 100 { 10_000 } else { percent * 100 })
    }

    /// Makes a share from hundredths of a percent. Values above 10 000 count as 10 000.
    #[must_use]
    pub const fn hundredths(hundredths: u32) -> Self {
        Self(if hundredths > 10_000 {
            10_000
        } else {
            hundredths as u16
        })
    }

    /// Returns the share in hundredths of a percent, 0 to 10 000.
    #[must_use]
    pub const fn as_hundredths(self) -> u32 {
        self.0 as u32
    }

    /// Returns the share of `part` in `whole`, rounded down. If `whole` is zero, the share is the whole.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        if part >= whole {
            return Self::WHOLE;
        }
        // The result is less than 10 000 because the part is less than the whole.
        Self((u128::from(part) * 10_000 / u128::from(whole)) as u16)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02} %", self.0 / 100, self.0 % 100)
    }
}

/// The shares at which the levels begin. Invariant: they ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    medium: Share,
    high: Share,
    critical: Share,
}

/// The error of invalid steps. Each share must be at least as large as the one before, and none may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the steps must be above 0 and must not descend: got {medium}, {high} and {critical}")]
pub struct StepsError {
    /// The requested start of `Medium`.
    pub medium: Share,
    /// The requested start of `High`.
    pub high: Share,
    /// The requested start of `Critical`.
    pub critical: Share,
}

impl Steps {
    /// Makes steps from the shares at which the levels begin.
    ///
    /// # Errors
    /// Returns an error if the shares do not ascend or the first one is zero. Two shares may be equal; the lower level
    /// then never occurs.
    pub const fn new(medium: Share, high: Share, critical: Share) -> Result<Self, StepsError> {
        if medium.0 == 0 || medium.0 > high.0 || high.0 > critical.0 {
            return Err(StepsError {
                medium,
                high,
                critical,
            });
        }
        Ok(Self {
            medium,
            high,
            critical,
        })
    }

    const fn percent(medium: u32, high: u32, critical: u32) -> Self {
        Self {
            medium: Share::percent(medium),
            high: Share::percent(high),
            critical: Share::percent(critical),
        }
    }

    /// Returns the level at this share.
    #[must_use]
    pub fn level(&self, share: Share) -> Level {
        let passed = [self.medium, self.high, self.critical]
            .iter()
            .filter(|step| share >= **step)
            .count();
        Level::ALL[passed]
    }

    /// Returns the start of `High`.
    #[must_use]
    pub fn high(&self) -> Share {
        self.high
    }

    /// Lowers each step by `margin`, but at most by half of the step.
    fn lower(&self, margin: Share) -> Self {
        let lower = |step: Share| Share(step.0.saturating_sub(margin.0).max(step.0.div_ceil(2)));
        Self {
            medium: lower(self.medium),
            high: lower(self.high),
            critical: lower(self.critical),
        }
    }
}

/// The starts of the levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub(super) used: Steps,
    pub(super) some: Steps,
    pub(super) full: Steps,
}

impl Default for Thresholds {
    /// The default: 80, 90 and 95 % of a limit used; some task stalled for 5, 15 and 40 % of the last ten seconds; all
    /// tasks stalled for 2, 8 and 25 %.
    fn default() -> Self {
        Self {
            used: Steps::percent(80, 90, 95),
            some: Steps::percent(5, 15, 40),
            full: Steps::percent(2, 8, 25),
        }
    }
}

impl Thresholds {
    /// Sets the steps for the used share of a limit, excluding memory that the system reclaims by itself.
    #[must_use]
    pub fn used(mut self, steps: Steps) -> Self {
        self.used = steps;
        self
    }

    /// Sets the steps for the share of the last ten seconds in which *some* task waited for memory.
    #[must_use]
    pub fn some_stalled(mut self, steps: Steps) -> Self {
        self.some = steps;
        self
    }

    /// Sets the steps for the share of the last ten seconds in which *all* tasks waited for memory.
    #[must_use]
    pub fn all_stalled(mut self, steps: Steps) -> Self {
        self.full = steps;
        self
    }

    /// Returns the thresholds at which levels are left: the steps of used bytes lowered by `margin`, and those of
    /// stalls halved.
    pub(super) fn lower(&self, margin: Share) -> Self {
        Self {
            used: self.used.lower(margin),
            some: self.some.lower(Share::WHOLE),
            full: self.full.lower(Share::WHOLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn levels_begin_where_the_defaults_say() {
        let steps = Thresholds::default().used;
        for (hundredths, level) in [
            (0, Level::Low),
            (7999, Level::Low),
            (8000, Level::Medium),
            (8999, Level::Medium),
            (9000, Level::High),
            (9499, Level::High),
            (9500, Level::Critical),
            (10_000, Level::Critical),
        ] {
            assert_eq!(steps.level(Share::hundredths(hundredths)), level, "{hundredths}");
        }
    }

    #[test]
    fn steps_that_do_not_ascend_are_refused() {
        let p = Share::percent;
        assert!(Steps::new(p(1), p(1), p(1)).is_ok());
        for (a, b, c) in [(0, 1, 2), (2, 1, 3), (1, 3, 2)] {
            let error = Steps::new(p(a), p(b), p(c)).expect_err("not ascending");
            assert!(error.to_string().contains("must not descend"), "{error}");
        }
    }

    #[test]
    fn a_share_is_exact_at_any_size() {
        assert_eq!(Share::of(u64::MAX - 1, u64::MAX), Share::hundredths(9999));
        assert_eq!(Share::of(0, 0), Share::WHOLE);
        assert_eq!(Share::of(7, 3), Share::WHOLE);
        assert_eq!(Share::percent(u32::MAX), Share::WHOLE);
        assert_eq!(Share::hundredths(1234).to_string(), "12.34 %");
    }

    proptest! {
        #[test]
        fn lowered_steps_ascend_and_never_give_a_lower_level(
            mut steps in proptest::array::uniform3(1u32..=10_000), margin in 0u32..=10_000, at in 0u32..=10_000,
        ) {
            steps.sort_unstable();
            let [a, b, c] = steps.map(Share::hundredths);
            let steps = Steps::new(a, b, c).expect("ascending");
            let lower = steps.lower(Share::hundredths(margin));
            prop_assert!(Steps::new(lower.medium, lower.high, lower.critical).is_ok());
            prop_assert!(lower.level(Share::hundredths(at)) >= steps.level(Share::hundredths(at)));
            prop_assert_eq!(lower.level(Share::default()), Level::Low);
        }
    }
}
