//! What is followed over time: one number of one thing.

use super::snapshot::Snapshot;
use crate::device::Device;
use crate::pressure::Share;
use std::fmt;

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Quantity {
    /// Bytes in memory, of the process.
    Resident,
    /// Bytes used, of a limit, a budget or a device.
    Used,
    /// Bytes asked for and held, of a pool.
    Requested,
    /// Bytes of the blocks in callers' hands, of a pool.
    Allocated,
    /// Allocated bytes and those that wait for a stream, of a pool.
    Active,
    /// Bytes taken from the source, of a pool.
    Reserved,
    /// Allocations since the sample before that were served without calling the source, of a pool, in hundredths of a percent. A
    /// sample in which nothing was allocated has none.
    HitRate,
}

impl Quantity {
    /// Its name in tables, JSON and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Used => "used",
            Self::Requested => "requested",
            Self::Allocated => "allocated",
            Self::Active => "active",
            Self::Reserved => "reserved",
            Self::HitRate => "hit rate",
        }
    }

    /// Whether it is in bytes; if not, it is in hundredths of a percent.
    #[must_use]
    pub fn is_bytes(self) -> bool {
        self != Self::HitRate
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The process.
    Process,
    /// The limit of its cgroup.
    Cgroup,
    /// A pool, by its number and name.
    Pool(u64, String),
    /// A budget, by its path.
    Budget(String),
    /// A device.
    Device(Device),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.pad("process"),
            Self::Cgroup => f.pad("cgroup"),
            Self::Pool(_, name) => f.pad(name),
            Self::Budget(path) => f.pad(&format!("budget {path}")),
            Self::Device(device) => device.fmt(f),
        }
    }
}

/// One number of a sample.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) of: Subject,
    pub(super) quantity: Quantity,
    pub(super) value: u64,
    /// The most it has been as its owner knows, between samples too.
    pub(super) peak: Option<u64>,
}

/// Every number of a snapshot. What happened in a pool since the snapshot before it is told from that one.
pub(super) fn measured(now: &Snapshot, before: Option<&Snapshot>) -> Vec<Measured> {
    let mut all = Vec::new();
    let mut push = |of: &Subject, quantity, value, peak| {
        all.push(Measured {
            of: of.clone(),
            quantity,
            value,
            peak,
        });
    };
    if let Some(bytes) = now.resident {
        push(&Subject::Process, Quantity::Resident, bytes, now.resident_peak);
    }
    if let Some(limit) = now.cgroup {
        push(&Subject::Cgroup, Quantity::Used, limit.used, None);
    }
    for device in &now.devices {
        push(
            &Subject::Device(device.device),
            Quantity::Used,
            device.used(),
            None,
        );
    }
    for pool in &now.pools {
        let (of, stats) = (Subject::Pool(pool.id, pool.name.clone()), &pool.stats);
        for (quantity, gauge) in [
            (Quantity::Requested, stats.requested),
            (Quantity::Allocated, stats.allocated),
            (Quantity::Reserved, stats.reserved),
        ] {
            push(&of, quantity, gauge.current, Some(gauge.peak));
        }
        push(&of, Quantity::Active, stats.active(), None);
        let before = before.and_then(|before| before.pools.iter().find(|other| other.id == pool.id));
        let before = before.map(|before| before.stats).unwrap_or_default();
        let allocations = stats.allocations.saturating_sub(before.allocations);
        if allocations > 0 {
            let hits = stats.hits.saturating_sub(before.hits);
            let share = Share::of(hits, allocations).as_hundredths();
            push(&of, Quantity::HitRate, u64::from(share), None);
        }
    }
    for budget in &now.budgets {
        let of = Subject::Budget(budget.path.clone());
        push(&of, Quantity::Used, budget.used, Some(budget.peak));
    }
    all
}
