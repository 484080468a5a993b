//! What a piece of work does to pools: their accounts before and after it, and the difference.

use crate::device::Device;
use crate::pool::Pool;
use crate::pools::{Member, Pools};
use crate::stats::PoolStats;
use millpond_engine::display_size;
use std::fmt;

/// One pool, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolProfile {
    /// What the report calls it: the pool's name, until it is given another here.
    pub name: String,
    /// Where its memory is.
    pub device: Device,
    /// After everything cached had gone back, before the work.
    pub before: PoolStats,
    /// Right after the work, before anything is given back. Its peaks are those of the work.
    pub after: PoolStats,
}

impl PoolProfile {
    /// Bytes that callers hold more than before, in blocks; what the work has left behind.
    #[must_use]
    pub fn kept(&self) -> i64 {
        difference(self.before.allocated.current, self.after.allocated.current)
    }

    /// Bytes that callers held more than before at the worst moment.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.after
            .allocated
            .peak
            .saturating_sub(self.before.allocated.current)
    }

    /// Bytes that the pool took from its source beyond what it had, at the worst moment.
    #[must_use]
    pub fn reserved_peak(&self) -> u64 {
        self.after
            .reserved
            .peak
            .saturating_sub(self.before.reserved.current)
    }

    /// Allocations served in the work.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.after.allocations.saturating_sub(self.before.allocations)
    }

    /// Blocks given back in the work.
    #[must_use]
    pub fn frees(&self) -> u64 {
        self.after.frees.saturating_sub(self.before.frees)
    }

    /// Allocations of the work for which the source was called.
    #[must_use]
    pub fn misses(&self) -> u64 {
        let hits = self.after.hits.saturating_sub(self.before.hits);
        self.allocations().saturating_sub(hits)
    }

    /// Requests refused in the work.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.after.refusals.saturating_sub(self.before.refusals)
    }
}

/// What a piece of work did to each pool. Shown as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileReport {
    /// In the order in which the pools were named.
    pub pools: Vec<PoolProfile>,
}

impl ProfileReport {
    /// Bytes that callers hold more than before of a device's memory.
    #[must_use]
    pub fn kept_on(&self, device: Device) -> i64 {
        let of = self.pools.iter().filter(|of| of.device == device);
        of.map(PoolProfile::kept).fold(0, i64::saturating_add)
    }
}

/// Runs `work` and says what it did to these pools: gives back what they have cached, resets their peaks, takes the
/// baseline, and looks again when the work is done. What other threads do to the pools meanwhile counts too.
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
    over(
        || pools.iter().map(|pool| (*pool).clone()).collect(),
        |pool: &Pool| pool,
        work,
    )
}

impl Pools {
    /// Runs `work` and says what it did to the pools: [clears](Self::clear) them, takes the baseline, and looks again when
    /// the work is done. A pool that is made meanwhile begins with nothing. What other threads do to the pools counts
    /// too; [`ProfileReport::kept_on`] sums up by device.
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
        over(|| self.members(), |pool| &**pool, work)
    }
}

/// The same for pools that may become more meanwhile; they are as the baseline wants them.
pub(crate) fn over<M, R>(
    pools: impl Fn() -> Vec<M>,
    member: impl Fn(&M) -> &dyn Member,
    work: impl FnOnce() -> R,
) -> (R, ProfileReport) {
    let baseline = |pool: &M| (member(pool).id(), member(pool).stats());
    let before: Vec<(u64, PoolStats)> = pools().iter().map(baseline).collect();
    let result = work();
    // All of them before anything else is allocated for the report.
    let pools = pools();
    let mut after = vec![PoolStats::default(); pools.len()];
    for (stats, pool) in after.iter_mut().zip(&pools) {
        *stats = member(pool).stats();
    }
    let profiles = pools.iter().map(member).zip(after).map(|(pool, after)| {
        let of = before.iter().find(|(id, _)| *id == pool.id());
        PoolProfile {
            name: pool.name().to_owned(),
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

/// A difference with its sign.
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
        let rows: Vec<[String; 9]> = std::iter::once(HEAD.map(str::to_owned))
            .chain(self.pools.iter().map(row))
            .collect();
        let widths: Vec<usize> = (0..HEAD.len())
            .map(|column| {
                let lengths = rows.iter().map(|row| row[column].chars().count());
                lengths.max().unwrap_or(0)
            })
            .collect();
        for (at, row) in rows.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{:<1$}", row[0], widths[0])?;
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
        }
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

    #[test]
    fn a_table_that_can_be_read() {
        let gauge = |current, peak| Gauge { current, peak };
        let before = PoolStats {
            allocated: gauge(3 << 20, 3 << 20),
            reserved: gauge(4 << 20, 4 << 20),
            allocations: 100,
            frees: 90,
            hits: 95,
            ..PoolStats::default()
        };
        let after = PoolStats {
            allocated: gauge(1 << 20, 12 << 20),
            reserved: gauge(16 << 20, 16 << 20),
            allocations: 1100,
            frees: 1095,
            hits: 1085,
            refusals: 1,
            ..PoolStats::default()
        };
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
