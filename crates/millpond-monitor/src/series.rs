//! The series that are sampled: one quantity of one subject each.

use super::snapshot::Snapshot;
use millpond_os::device::Device;
use millpond_os::pressure::Share;
use std::fmt;

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Quantity {
    /// The bytes of the process in main memory.
    Resident,
    /// The used bytes of a limit, a budget or a device.
    Used,
    /// The requested bytes of a pool's live blocks.
    Requested,
    /// The bytes of a pool's live blocks.
    Allocated,
    /// The allocated bytes of a pool and those that wait for a stream.
    Active,
    /// The bytes that a pool has taken from its source.
    Reserved,
    /// The share of a pool's allocations since the previous sample that were served without calling the source, in
    /// hundredths of a percent. A sample without allocations has no value.
    HitRate,
}

impl Quantity {
    /// Returns the name in tables, JSON and metrics.
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

    /// Returns true if the unit is bytes. Otherwise it is hundredths of a percent.
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

/// The subject of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The process.
    Process,
    /// The limit of the process's cgroup.
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
    /// The peak that the subject itself reports, which includes values between samples.
    pub(super) peak: Option<u64>,
}

/// Returns all numbers of a snapshot. Rates are computed from the difference to the previous snapshot.
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
