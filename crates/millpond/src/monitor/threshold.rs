//! When a share of a limit is passed: told once, and again only when it has fallen.

use super::series::Subject;
use super::snapshot::Snapshot;
use crate::pressure::Share;
use std::collections::HashMap;
use std::fmt;

/// What is held against a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// Of each pool, allocated over reserved bytes: how much of what it has is in use.
    Utilisation,
    /// Of each pool that has a limit, reserved bytes over the limit.
    PoolLimit,
    /// Of each budget that has a limit, charged bytes over the limit.
    Budget,
    /// Of each CUDA device, used over all bytes, by whomever.
    Device,
    /// Of the limit that binds the process, what is used of it.
    Process,
}

impl Signal {
    /// Its name in JSON and warnings.
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

    /// What a share of it is a share of, in a sentence.
    fn whole(self) -> &'static str {
        match self {
            Self::Utilisation => "of what it has reserved is allocated",
            Self::PoolLimit => "of its limit is reserved",
            Self::Budget => "of it is charged",
            Self::Device => "of its memory is used",
            Self::Process => "of the limit that binds it is used",
        }
    }
}

/// A share at which somebody wants to be told.
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

/// How far below a threshold it is told of again, unless said.
const MARGIN: u32 = 500;

impl Threshold {
    /// Where this share of a signal is passed. It is told of again once the signal was five percent of the whole lower, or half
    /// as high where that is more.
    pub const fn new(signal: Signal, at: Share) -> Self {
        let (at_least, half) = (at.as_hundredths().saturating_sub(MARGIN), at.as_hundredths() / 2);
        let rearm = if at_least > half { at_least } else { half };
        Self {
            signal,
            at,
            rearm: Share::hundredths(rearm),
        }
    }

    /// Of [`Signal::Utilisation`].
    pub const fn utilisation(at: Share) -> Self {
        Self::new(Signal::Utilisation, at)
    }

    /// Of [`Signal::PoolLimit`].
    pub const fn pool_limit(at: Share) -> Self {
        Self::new(Signal::PoolLimit, at)
    }

    /// Of [`Signal::Budget`].
    pub const fn budget(at: Share) -> Self {
        Self::new(Signal::Budget, at)
    }

    /// Of [`Signal::Device`].
    pub const fn device(at: Share) -> Self {
        Self::new(Signal::Device, at)
    }

    /// Of [`Signal::Process`].
    pub const fn process(at: Share) -> Self {
        Self::new(Signal::Process, at)
    }

    /// Tells of it again once the signal was at this share or below; never above the threshold itself.
    pub fn rearmed_at(mut self, share: Share) -> Self {
        self.rearm = share.min(self.at);
        self
    }
}

/// A threshold that was passed. Shown as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Crossing {
    /// What passed it.
    pub of: Subject,
    /// What is held against the threshold.
    pub signal: Signal,
    /// The threshold.
    pub at: Share,
    /// The share when it was passed, which may be well above.
    pub share: Share,
    /// Bytes that are used.
    pub used: u64,
    /// Bytes of the whole.
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

/// One threshold, and for whom it is passed now.
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

    /// What has passed it since the last look.
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

    /// For whom it is passed, with the figures of the last look.
    pub(super) fn passed(&self) -> impl Iterator<Item = &Crossing> {
        self.passed.values()
    }
}

/// Whose share it is, and of what; nobody's where there is nothing to have a share of.
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
