//! Thresholds on the used share of a limit. Each crossing is reported once, and again only after the share has fallen.

use super::series::Subject;
use super::snapshot::Snapshot;
use millpond_os::pressure::Share;
use std::collections::HashMap;
use std::fmt;

/// The share that is compared with a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// For each pool, allocated bytes divided by reserved bytes.
    Utilisation,
    /// For each pool with a limit, reserved bytes divided by the limit.
    PoolLimit,
    /// For each budget with a limit, charged bytes divided by the limit.
    Budget,
    /// For each CUDA device, the bytes used by all processes divided by the total.
    Device,
    /// For the limit that binds the process, the used bytes divided by the limit.
    Process,
}

impl Signal {
    /// Returns the name in JSON and warnings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Utilisation => "utilisation",
            Self::PoolLimit => "pool limit",
            Self::Budget => "budget",
            Self::Device => "device",
            Self::Process => "process limit",
        }
    }

    /// Returns the denominator as a phrase in a sentence.
    fn whole(self) -> &'static str {
        match self {
            Self::Utilisation => "of its reserved memory is allocated",
            Self::PoolLimit => "of its limit is reserved",
            Self::Budget => "of its limit is charged",
            Self::Device => "of its memory is used",
            Self::Process => "of the limit that binds it is used",
        }
    }
}

/// A share at which a callback runs.
///
/// ```
/// use millpond::monitor::Threshold;
/// use millpond::pressure::Share;
///
/// let device = Threshold::device(Share::percent(90));             // told again once it was below 85 %
/// let pool = Threshold::utilisation(Share::percent(80)).rearmed_at(Share::percent(50));
/// # let _ = (device, pool);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Threshold {
    pub(super) signal: Signal,
    pub(super) at: Share,
    pub(super) rearm: Share,
}

/// The default distance by which the share must fall before a threshold is armed again.
const MARGIN: u32 = 500;

impl Threshold {
    /// Makes a threshold for a signal. It is armed again when the signal has fallen by five percent of the whole, or to
    /// half the threshold if that is higher.
    pub const fn new(signal: Signal, at: Share) -> Self {
        let (at_least, half) = (at.as_hundredths().saturating_sub(MARGIN), at.as_hundredths() / 2);
        let rearm = if at_least > half { at_least } else { half };
        Self {
            signal,
            at,
            rearm: Share::hundredths(rearm),
        }
    }

    /// Makes a threshold for [`Signal::Utilisation`].
    pub const fn utilisation(at: Share) -> Self {
        Self::new(Signal::Utilisation, at)
    }

    /// Makes a threshold for [`Signal::PoolLimit`].
    pub const fn pool_limit(at: Share) -> Self {
        Self::new(Signal::PoolLimit, at)
    }

    /// Makes a threshold for [`Signal::Budget`].
    pub const fn budget(at: Share) -> Self {
        Self::new(Signal::Budget, at)
    }

    /// Makes a threshold for [`Signal::Device`].
    pub const fn device(at: Share) -> Self {
        Self::new(Signal::Device, at)
    }

    /// Makes a threshold for [`Signal::Process`].
    pub const fn process(at: Share) -> Self {
        Self::new(Signal::Process, at)
    }

    /// Sets the share at or below which the threshold is armed again. It is at most the threshold itself.
    pub fn rearmed_at(mut self, share: Share) -> Self {
        self.rearm = share.min(self.at);
        self
    }
}

/// A threshold that was exceeded. It is displayed as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Crossing {
    /// The subject that exceeded it.
    pub of: Subject,
    /// The signal.
    pub signal: Signal,
    /// The threshold.
    pub at: Share,
    /// The share at the time of the crossing, which may be well above the threshold.
    pub share: Share,
    /// The used bytes.
    pub used: u64,
    /// The bytes of the whole.
    pub whole: u64,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use millpond_engine::display_size;
        let hundredths = self.share.as_hundredths();
        write!(
            f,
            "{}: {}.{} % {} ({} of {})",
            self.of,
            hundredths / 100,
            hundredths % 100 / 10,
            self.signal.whole(),
            display_size(self.used),
            display_size(self.whole)
        )
    }
}

/// One threshold, and the subjects that exceed it now.
#[derive(Debug)]
pub(super) struct Guard {
    threshold: Threshold,
    passed: HashMap<Subject, Crossing>,
}

impl Guard {
    pub(super) fn new(threshold: Threshold) -> Self {
        Self {
            threshold,
            passed: HashMap::new(),
        }
    }

    /// Returns the subjects that have exceeded it since the last call.
    pub(super) fn look(&mut self, now: &Snapshot) -> Vec<Crossing> {
        let Threshold { signal, at, rearm } = self.threshold;
        let shares = shares(signal, now);
        self.passed
            .retain(|of, _| shares.iter().any(|(other, ..)| other == of));
        let mut crossed = Vec::new();
        for (of, used, whole) in shares {
            let share = Share::of(used, whole);
            let crossing = Crossing {
                of,
                signal,
                at,
                share,
                used,
                whole,
            };
            let is_passed = self.passed.contains_key(&crossing.of);
            if is_passed && share <= rearm {
                self.passed.remove(&crossing.of);
            } else if is_passed || share > at || (share == at && at == Share::WHOLE) {
                if !is_passed {
                    crossed.push(crossing.clone());
                }
                self.passed.insert(crossing.of.clone(), crossing);
            }
        }
        crossed
    }

    /// Returns the subjects that exceed it, with the figures of the last sample.
    pub(super) fn passed(&self) -> impl Iterator<Item = &Crossing> {
        self.passed.values()
    }
}

/// Returns the subjects of a signal with their used and total bytes. It is empty if there is no such subject.
fn shares(signal: Signal, now: &Snapshot) -> Vec<(Subject, u64, u64)> {
    let of_pools = |share: &dyn Fn(&super::PoolReading) -> Option<(u64, u64)>| {
        let pools = now.pools.iter().filter_map(|pool| {
            let (used, whole) = share(pool)?;
            Some((Subject::Pool(pool.id, pool.name.clone()), used, whole))
        });
        pools.collect::<Vec<_>>()
    };
    let mut all = match signal {
        Signal::Utilisation => {
            of_pools(&|pool| Some((pool.stats.allocated.current, pool.stats.reserved.current)))
        }
        Signal::PoolLimit => of_pools(&|pool| Some((pool.stats.reserved.current, pool.limit?))),
        Signal::Budget => {
            let of = |budget: &super::BudgetReading| {
                Some((Subject::Budget(budget.path.clone()), budget.used, budget.limit?))
            };
            now.budgets.iter().filter_map(of).collect()
        }
        Signal::Device => {
            let of =
                |device: &super::DeviceReading| (Subject::Device(device.device), device.used(), device.total);
            now.devices.iter().map(of).collect()
        }
        Signal::Process => {
            let of = now.limit.map(|limit| (Subject::Process, limit.used, limit.bytes));
            of.into_iter().collect()
        }
    };
    all.retain(|(_, _, whole)| *whole > 0);
    all
}
