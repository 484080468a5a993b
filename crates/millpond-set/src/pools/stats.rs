//! The statistics of a set.

use super::Pools;
use millpond_account::memory::MemoryKind;
use millpond_account::stats::PoolStats;
use millpond_account::table::write_table;
use millpond_engine::display_size;
use millpond_os::device::Device;
use std::fmt;

/// The statistics of one pool of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolsEntry {
    /// The name of the pool.
    pub name: String,
    /// The device of its memory.
    pub device: Device,
    /// The kind of its memory.
    pub kind: MemoryKind,
    /// Its statistics.
    pub stats: PoolStats,
}

/// The statistics of the pools of a set. `Display` writes a table.
///
/// The pools are read one after the other. While other threads allocate, the total is not a snapshot of one moment. The peak of
/// several pools is the sum of their peaks, which may have occurred at different times. It is an upper bound of the memory that was
/// used at once.
///
/// ```
/// use millpond::{Device, Pools};
///
/// let set = Pools::new();
/// let none = set.stats();
/// assert_eq!((none.hit_rate(), none.utilisation(), none.fragmentation_ratio()), (0.0, 0.0, 0.0));
///
/// let buffer = set.host()?.alloc_zeroed::<f32>(1000)?;
/// let stats = set.stats();
/// assert_eq!(stats.pools[0].name, "host");
/// assert_eq!(stats.on(Device::Host).requested.current, 4000);
/// assert_eq!(stats.total.allocations, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolsStats {
    /// Each pool, by device and kind.
    pub pools: Vec<PoolsEntry>,
    /// The total of all pools.
    pub total: PoolStats,
}

impl PoolsStats {
    /// Returns the total of the pools of one device.
    #[must_use]
    pub fn on(&self, device: Device) -> PoolStats {
        let of = self.pools.iter().filter(|entry| entry.device == device);
        of.map(|entry| entry.stats).sum()
    }

    /// Returns hits divided by allocations, or 0 before the first allocation.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.total.hit_rate()
    }

    /// Returns allocated divided by reserved bytes, or 0 while nothing is reserved.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        self.total.utilisation()
    }

    /// Returns the share of reserved bytes that is free, or 0 while nothing is reserved.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        self.total.fragmentation_ratio()
    }
}

impl Pools {
    /// Returns the statistics. Creates no pool.
    #[must_use]
    pub fn stats(&self) -> PoolsStats {
        let pools: Vec<PoolsEntry> = self
            .members()
            .iter()
            .map(|pool| {
                let label = pool.label();
                PoolsEntry {
                    name: label.name.to_string(),
                    device: pool.device(),
                    kind: label.kind,
                    stats: pool.stats(),
                }
            })
            .collect();
        PoolsStats {
            total: pools.iter().map(|entry| entry.stats).sum(),
            pools,
        }
    }
}

const HEAD: [&str; 8] = [
    "", "in use", "peak", "cached", "reserved", "allocs", "frees", "hits",
];

impl fmt::Display for PoolsStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |name: &str, of: &PoolStats| {
            let size = |bytes| display_size(bytes).to_string();
            [
                name.to_owned(),
                size(of.allocated.current),
                size(of.allocated.peak),
                size(of.cached()),
                size(of.reserved.current),
                of.allocations.to_string(),
                of.frees.to_string(),
                format!("{:.1} %", 100.0 * of.hit_rate()),
            ]
        };
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(self.pools.iter().map(|entry| row(&entry.name, &entry.stats)));
        if self.pools.len() != 1 {
            rows.push(row("all", &self.total));
        }
        write_table(f, 1, &rows)
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
    fn display_writes_a_table_with_a_total() {
        let gauge = |current, peak| Gauge { current, peak };
        let entry = |name: &str, kind, stats| PoolsEntry {
            name: name.to_owned(),
            device: Device::Host,
            kind,
            stats,
        };
        let host = stats_with(|stats| {
            stats.requested = gauge(900, 5000);
            stats.allocated = gauge(1 << 20, 3 << 20);
            stats.reserved = gauge(4 << 20, 4 << 20);
            stats.allocations = 100;
            stats.frees = 90;
            stats.hits = 95;
        });
        let pinned = stats_with(|stats| {
            stats.allocated = gauge(1 << 20, 1 << 20);
            stats.reserved = gauge(1 << 20, 2 << 20);
            stats.allocations = 1;
            stats.kept = 7;
            stats.refusals = 2;
        });
        let mut stats = PoolsStats {
            pools: vec![
                entry("host", MemoryKind::Host, host),
                entry("pinned", MemoryKind::Pinned, pinned),
            ],
            total: [host, pinned].into_iter().sum(),
        };
        assert_eq!(
            stats.total,
            stats_with(|stats| {
                stats.requested = gauge(900, 5000);
                stats.allocated = gauge(2 << 20, 4 << 20);
                stats.reserved = gauge(5 << 20, 6 << 20);
                stats.waiting = 0;
                stats.kept = 7;
                stats.allocations = 101;
                stats.frees = 90;
                stats.hits = 95;
                stats.refusals = 2;
            })
        );
        assert_eq!(stats.on(Device::Host), stats.total);
        let expected = [
            "          in use      peak    cached  reserved  allocs  frees    hits",
            "host    1.00 MiB  3.00 MiB  3.00 MiB  4.00 MiB     100     90  95.0 %",
            "pinned  1.00 MiB  1.00 MiB       0 B  1.00 MiB       1      0   0.0 %",
            "all     2.00 MiB  4.00 MiB  3.00 MiB  5.00 MiB     101     90  94.1 %",
        ];
        assert_eq!(stats.to_string(), expected.join("\n"));
        stats.pools.pop();
        assert_eq!(stats.to_string().lines().count(), 2, "the sum of one is that one");
    }
}
