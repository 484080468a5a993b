//! Orders of rows.

use std::num::NonZeroU64;

/// The order in which a [pass](super::Pass) goes through the rows of its range.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-order-{}.u8", std::process::id()));
/// # std::fs::write(&path, (0..8).collect::<Vec<u8>>())?;
/// use millpond::{DataSet, Order};
///
/// let data = DataSet::<u8>::open(&path)?;               // eight rows: 0, 1, 2…
/// let rows = |order| {
///     let mut rows = Vec::new();
///     let passed = data.pass().order(order).for_each(|chunk| rows.extend_from_slice(chunk));
///     passed.map(|_| rows)
/// };
/// assert_eq!(rows(Order::shuffled(7))?, [6, 5, 7, 3, 4, 0, 2, 1]);
/// assert_eq!(rows(Order::strided(3.try_into()?))?, [0, 3, 6]);
/// let pairs = Order::shuffled(7).runs_of(2.try_into()?);
/// assert!(rows(pairs)?.chunks(2).all(|pair| pair[1] == pair[0] + 1));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order(OrderKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderKind {
    Strided(NonZeroU64),
    Shuffled { seed: u64, run: NonZeroU64 },
}

impl Default for Order {
    fn default() -> Self {
        Self::ascending()
    }
}

impl Order {
    /// Visits the rows in ascending order.
    #[must_use]
    pub const fn ascending() -> Self {
        Self(OrderKind::Strided(NonZeroU64::MIN))
    }

    /// Visits the first row and every `step`-th after it.
    #[must_use]
    pub const fn strided(step: NonZeroU64) -> Self {
        Self(OrderKind::Strided(step))
    }

    /// Visits every row once, in an order that the seed determines and that is the same on every machine. The order takes no
    /// memory for any number of rows. It is a Feistel network over the positions, iterated until the result is in range (Black and
    /// Rogaway, "Ciphers with arbitrary finite domains", 2002).
    #[must_use]
    pub const fn shuffled(seed: u64) -> Self {
        Self(OrderKind::Shuffled {
            seed,
            run: NonZeroU64::MIN,
        })
    }

    /// Keeps runs of this many adjacent rows together in a shuffled order, so that one system call can read a run. Other orders
    /// are unchanged.
    #[must_use]
    pub const fn runs_of(self, rows: NonZeroU64) -> Self {
        match self.0 {
            OrderKind::Shuffled { seed, .. } => Self(OrderKind::Shuffled { seed, run: rows }),
            OrderKind::Strided(_) => self,
        }
    }

    /// Returns the number of rows that the order visits in a range of `rows` rows.
    pub(super) fn visits(self, rows: u64) -> u64 {
        match self.0 {
            OrderKind::Strided(step) => rows.div_ceil(step.get()),
            OrderKind::Shuffled { .. } => rows,
        }
    }

    /// Returns the row at a position of the order, in a range of `rows` rows.
    pub(super) fn row_at(self, place: u64, rows: u64) -> u64 {
        match self.0 {
            OrderKind::Strided(step) => place * step.get(),
            OrderKind::Shuffled { seed, run } => {
                // The rows after the last whole run stay at the end.
                let (which, within) = (place / run, place % run);
                let whole = rows / run;
                if which < whole {
                    permuted(which, whole, seed) * run.get() + within
                } else {
                    place
                }
            }
        }
    }

    pub(super) fn is_ascending(self) -> bool {
        self == Self::ascending()
    }

    /// Returns whether a later position may have an earlier row.
    pub(super) fn jumps(self) -> bool {
        matches!(self.0, OrderKind::Shuffled { .. })
    }
}

/// Applies a permutation of the numbers below `count` to a number.
fn permuted(number: u64, count: u64, seed: u64) -> u64 {
    // The halves have equal width, so that every round is invertible.
    let half = count
        .saturating_sub(1)
        .checked_ilog2()
        .map_or(1, |log| log / 2 + 1);
    let mask = (1u64 << half) - 1;
    let mut value = number;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..6 {
            (left, right) = (right, left ^ (mix(right, seed.wrapping_add(round)) & mask));
        }
        value = left << half | right;
        // The iteration ends, because at the latest it returns to the start, which is in range.
        if value < count {
            return value;
        }
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(value: u64, key: u64) -> u64 {
    let mut mixed = value
        .wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows_of(order: Order, rows: u64) -> Vec<u64> {
        (0..order.visits(rows))
            .map(|place| order.row_at(place, rows))
            .collect()
    }

    proptest! {
        #[test]
        fn a_shuffle_visits_every_row_once(rows in 0u64..3000, seed: u64, run in 1u64..70) {
            let run = NonZeroU64::new(run).expect("not 0");
            let mut seen = rows_of(Order::shuffled(seed).runs_of(run), rows);
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rows).collect::<Vec<_>>());
        }

        #[test]
        fn runs_stay_together(rows in 1u64..3000, seed: u64, run in 2u64..70) {
            let whole = rows / run * run;
            let order = Order::shuffled(seed).runs_of(NonZeroU64::new(run).expect("not 0"));
            for place in (0..whole).filter(|place| place % run != 0) {
                prop_assert_eq!(order.row_at(place, rows), order.row_at(place - 1, rows) + 1);
            }
        }

        #[test]
        fn a_stride_skips_rows(rows in 0u64..3000, step in 1u64..70) {
            let order = Order::strided(NonZeroU64::new(step).expect("not 0"));
            let expected: Vec<u64> = (0..rows).step_by(step as usize).collect();
            prop_assert_eq!(rows_of(order, rows), expected);
        }
    }

    #[test]
    fn a_shuffle_spreads_the_rows_and_depends_only_on_the_seed() {
        let (one, other) = (
            rows_of(Order::shuffled(1), 1000),
            rows_of(Order::shuffled(2), 1000),
        );
        let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
        assert!(same < 20, "{same} of 1000 in the same place");
        let still = one
            .iter()
            .enumerate()
            .filter(|(at, row)| *at as u64 == **row)
            .count();
        assert!(still < 20, "{still} where they were");
        // Adjacent positions have rows that are far apart: on average, a third of the number of rows.
        let apart: u64 = one.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
        assert!((280..390).contains(&(apart / 999)), "{}", apart / 999);
        assert_eq!(
            rows_of(Order::shuffled(7), 8),
            [6, 5, 7, 3, 4, 0, 2, 1],
            "the same everywhere"
        );
    }

    #[test]
    fn permutations_of_large_counts_stay_in_range() {
        for count in [1, 2, 3, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, u64::MAX / 2] {
            for number in [0, count / 2, count - 1] {
                assert!(permuted(number, count, 3) < count);
            }
        }
    }
}
