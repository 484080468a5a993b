//! The effect of a piece of work on pools: their accounts before and after it, and the difference.

use crate::pools::{Pools, live};
use millpond_account::registry::LivePool;
use millpond_account::stats::PoolStats;
use millpond_account::table::write_table;
use millpond_engine::display_size;
use millpond_os::device::Device;
use millpond_pool::pool::Pool;
use std::fmt;

/// The statistics of one pool before and after the work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolProfile {
    /// The name in the report. It is the pool's name, and it can be changed here.
    pub name: String,
    /// The device of its memory.
    pub device: Device,
    /// The statistics before the work, after all cached memory was returned.
    pub before: PoolStats,
    /// The statistics right after the work, before any memory is returned. Its peaks are those of the work.
    pub after: PoolStats,
}

impl PoolProfile {
    /// Returns the difference between the bytes in live blocks after the work and before it.
    #[must_use]
    pub fn kept(&self) -> i64 {
        difference(self.before.allocated.current, self.after.allocated.current)
    }

    /// Returns the most bytes that callers held at once during the work, minus the bytes that they held before it.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.after
            .allocated
            .peak
            .saturating_sub(self.before.allocated.current)
    }

    /// Returns the most bytes that the pool took from its source in addition to those it had.
    #[must_use]
    pub fn reserved_peak(&self) -> u64 {
        self.after
            .reserved
            .peak
            .saturating_sub(self.before.reserved.current)
    }

    /// Returns the number of allocations during the work.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.after.allocations.saturating_sub(self.before.allocations)
    }

    /// Returns the number of blocks that were freed during the work.
    #[must_use]
    pub fn frees(&self) -> u64 {
        self.after.frees.saturating_sub(self.before.frees)
    }

    /// Returns the number of allocations of the work for which the source was called.
    #[must_use]
    pub fn misses(&self) -> u64 {
        let hits = self.after.hits.saturating_sub(self.before.hits);
        self.allocations().saturating_sub(hits)
    }

    /// Returns the number of requests that were refused during the work.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.after.refusals.saturating_sub(self.before.refusals)
    }
}

/// The effects of a piece of work on each pool. `Display` writes a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileReport {
    /// The pools, in the order in which they were given.
    pub pools: Vec<PoolProfile>,
}

impl ProfileReport {
    /// Returns the difference between the bytes of a device's memory that callers hold after the work and before it.
    #[must_use]
    pub fn kept_on(&self, device: Device) -> i64 {
        let of = self.pools.iter().filter(|of| of.device == device);
        of.map(PoolProfile::kept).fold(0, i64::saturating_add)
    }
}

/// Runs `work` and reports its effects on these pools. First returns their cached memory, resets their peaks and takes the
/// baseline. Then reads the statistics again after the work. Operations of other threads on the pools are counted too.
///
/// ```
/// use millpond::{Pool, profile};
///
/// let pool = Pool::host()?;
/// let (kept, report) = profile(&[&pool], || {
///     let _scratch = pool.alloc_zeroed::<u8>(1 << 20);
///     pool.alloc_zeroed::<u8>(4096)
/// });
/// let of = &report.pools[0];
/// assert_eq!((of.allocations(), of.frees(), of.kept()), (2, 1, 4096));
/// assert_eq!(of.peak(), (1 << 20) + 4096);
/// println!("{report}");
/// # drop(kept);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn profile<R>(pools: &[&Pool], work: impl FnOnce() -> R) -> (R, ProfileReport) {
    for pool in pools {
        pool.trim();
        pool.reset_peak();
    }
    over(|| pools.iter().map(|pool| live(pool)).collect(), work)
}

impl Pools {
    /// Runs `work` and reports its effects on the pools of the set. First [clears](Self::clear) them and takes the baseline. Then
    /// reads the statistics again after the work. The baseline of a pool that is created during the work is empty. Operations of
    /// other threads on the pools are counted too. [`ProfileReport::kept_on`] returns the total of a device.
    ///
    /// ```
    /// use millpond::{Device, Pools};
    ///
    /// let set = Pools::new();
    /// let (kept, report) = set.profile(|| {
    ///     let pool = set.host()?;
    ///     drop(pool.alloc_zeroed::<u8>(1 << 20)?);
    ///     Ok::<_, Box<dyn std::error::Error>>(pool.alloc_zeroed::<u8>(4096)?)
    /// });
    /// assert_eq!(report.kept_on(Device::Host), 4096);
    /// assert_eq!(report.pools[0].peak(), 1 << 20);
    /// println!("{report}");
    /// # drop(kept?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn profile<R>(&self, work: impl FnOnce() -> R) -> (R, ProfileReport) {
        self.clear();
        over(|| self.members(), work)
    }
}

/// Runs `work` and compares the statistics before and after it. Calls `pools` twice, because the work may create pools. The
/// caller has prepared the existing pools for the baseline.
pub(crate) fn over<R>(
    pools: impl Fn() -> Vec<Box<dyn LivePool>>,
    work: impl FnOnce() -> R,
) -> (R, ProfileReport) {
    let before = pools().into_iter();
    let before: Vec<_> = before.map(|pool| (pool.label().id, pool.stats())).collect();
    let result = work();
    // All statistics are read before the report allocates anything.
    let pools = pools();
    let mut after = vec![PoolStats::default(); pools.len()];
    for (stats, pool) in after.iter_mut().zip(&pools) {
        *stats = pool.stats();
    }
    let profiles = pools.iter().zip(after).map(|(pool, after)| {
        let label = pool.label();
        let of = before.iter().find(|(id, _)| *id == label.id);
        PoolProfile {
            name: label.name.to_string(),
            device: pool.device(),
            before: of.map(|(_, before)| *before).unwrap_or_default(),
            after,
        }
    });
    let pools = profiles.collect();
    (result, ProfileReport { pools })
}

fn difference(before: u64, after: u64) -> i64 {
    after.wrapping_sub(before) as i64
}

/// A difference, which is written with its sign.
struct Signed(i64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.0 {
            0 => "",
            1.. => "+",
            _ => "-",
        };
        write!(f, "{sign}{}", display_size(self.0.unsigned_abs()))
    }
}

const HEAD: [&str; 9] = [
    "", "before", "peak", "after", "change", "reserved", "allocs", "frees", "misses",
];

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |of: &PoolProfile| {
            let size = |bytes| display_size(bytes).to_string();
            [
                of.name.clone(),
                size(of.before.allocated.current),
                size(of.after.allocated.peak),
                size(of.after.allocated.current),
                Signed(of.kept()).to_string(),
                size(of.after.reserved.peak),
                of.allocations().to_string(),
                of.frees().to_string(),
                of.misses().to_string(),
            ]
        };
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(self.pools.iter().map(row));
        write_table(f, 1, &rows)?;
        for of in self.pools.iter().filter(|of| of.refusals() > 0) {
            let (refused, s) = (of.refusals(), if of.refusals() == 1 { "" } else { "s" });
            write!(f, "\n{}: {refused} request{s} refused", of.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::Gauge;

    fn stats_with(change: impl FnOnce(&mut PoolStats)) -> PoolStats {
        let mut stats = PoolStats::default();
        change(&mut stats);
        stats
    }

    #[test]
    fn display_writes_an_aligned_table() {
        let gauge = |current, peak| Gauge { current, peak };
        let before = stats_with(|stats| {
            stats.allocated = gauge(3 << 20, 3 << 20);
            stats.reserved = gauge(4 << 20, 4 << 20);
            stats.allocations = 100;
            stats.frees = 90;
            stats.hits = 95;
        });
        let after = stats_with(|stats| {
            stats.allocated = gauge(1 << 20, 12 << 20);
            stats.reserved = gauge(16 << 20, 16 << 20);
            stats.allocations = 1100;
            stats.frees = 1095;
            stats.hits = 1085;
            stats.refusals = 1;
        });
        let profile = |name: &str, before, after| PoolProfile {
            name: name.to_owned(),
            device: Device::Host,
            before,
            after,
        };
        let report = ProfileReport {
            pools: vec![
                profile("weights", before, after),
                profile("pool 1", PoolStats::default(), PoolStats::default()),
            ],
        };
        let of = &report.pools[0];
        assert_eq!(
            (of.kept(), of.peak(), of.reserved_peak()),
            (-(2 << 20), 9 << 20, 12 << 20)
        );
        assert_eq!(
            (of.allocations(), of.frees(), of.misses(), of.refusals()),
            (1000, 1005, 10, 1)
        );
        let expected = [
            "           before      peak     after     change  reserved  allocs  frees  misses",
            "weights  3.00 MiB  12.0 MiB  1.00 MiB  -2.00 MiB  16.0 MiB    1000   1005      10",
            "pool 1        0 B       0 B       0 B        0 B       0 B       0      0       0",
            "weights: 1 request refused",
        ];
        assert_eq!(report.to_string(), expected.join("\n"));
    }
}
