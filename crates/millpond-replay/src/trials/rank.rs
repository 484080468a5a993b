//! Ranks settings, and decides whether a difference is large enough to report.

use super::Trial;
use serde::Serialize;
use std::cmp::Ordering;

/// Amounts of memory that differ by less than this share count as equal, and fewer stalls then decide. A few per
/// cent of memory rarely require another device, but a program that stalls is slower in every step.
const ALIKE: f64 = 0.02;

/// The smallest share of the memory that is worth reporting.
const MEMORY_WORTH: f64 = 0.005;

/// The smallest share of stalls that is worth reporting.
const STALLS_WORTH: f64 = 0.1;

/// One stall in more calls of the program than this is not worth reporting.
const CALLS_PER_STALL: f64 = 10_000.0;

/// The smallest share of driver time that is worth a setting, because driver time comes from a model.
const TIME_WORTH: f64 = 0.05;

/// The smallest difference in driver time for each call of the program that is worth a setting, in
/// milliseconds. A good policy itself takes that much.
const TIME_PER_CALL: f64 = 0.0005;

/// The smallest difference in driver time over the whole run that is worth a setting, in milliseconds. A
/// smaller difference is not noticeable.
const TIME_NOTICED: f64 = 10.0;

/// An advantage of one setting over another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum Gain {
    /// The program finishes under the new setting, but not under the old one.
    Fits,
    /// The program needs less memory.
    Needs {
        /// The difference between the smallest devices in bytes.
        bytes: u64,
    },
    /// The program waits less often for the device.
    Stalls {
        /// The number of stalls that are avoided.
        fewer: u64,
    },
    /// The modelled driver time is lower.
    DriverTime {
        /// Milliseconds.
        milliseconds: f64,
    },
}

/// Returns the memory that a trial needs, or its peak if its smallest device is unknown.
fn memory(trial: &Trial) -> u64 {
    trial.smallest_device_bytes.unwrap_or(trial.peak_reserved_bytes)
}

/// Returns the least memory of the trials that finish, or of all if none does.
pub(super) fn least_memory(trials: &[Trial]) -> u64 {
    let finished = trials.iter().filter(|t| t.fits).map(memory).min();
    finished.or_else(|| trials.iter().map(memory).min()).unwrap_or(0)
}

/// Orders trials, the best first. Trials that finish come first, and among them those with a smallest device. The next
/// criteria are the memory in steps of two per cent, the stalls, the driver time and the hit rate. Of two equal trials,
/// the simpler one is first.
pub(super) fn order(a: &Trial, b: &Trial, least: u64) -> Ordering {
    if !(a.fits && b.fits) {
        let further = b.served.cmp(&a.served);
        return b
            .fits
            .cmp(&a.fits)
            .then(further)
            .then(a.settings.cmp(&b.settings))
            .then_with(|| a.conf.cmp(&b.conf));
    }
    let unknown = |t: &Trial| t.smallest_device_bytes.is_none();
    let step = |t: &Trial| ((memory(t) as f64 / least.max(1) as f64 - 1.0) / ALIKE) as u64;
    unknown(a)
        .cmp(&unknown(b))
        .then(step(a).cmp(&step(b)))
        .then(a.stalls.cmp(&b.stalls))
        .then(a.modelled_driver_ms.total_cmp(&b.modelled_driver_ms))
        .then(b.hit_rate.total_cmp(&a.hit_rate))
        .then(a.settings.cmp(&b.settings))
        .then_with(|| a.conf.cmp(&b.conf))
}

/// Sorts trials, the best first.
pub(super) fn sort(trials: &mut [Trial]) {
    let least = least_memory(trials);
    trials.sort_by(|a, b| order(a, b, least));
}

/// Moves the recommended trial to the front. A longer setting among the others may be better by a negligible
/// difference. Returns the new index of the default trial.
pub(super) fn lead(trials: &mut [Trial], best: usize, default: usize) -> usize {
    trials[..=best].rotate_right(1);
    match default {
        at if at == best => 0,
        at if at < best => at + 1,
        at => at,
    }
}

/// Returns whether two settings gave the same result.
pub(super) fn same_outcome(a: &Trial, b: &Trial) -> bool {
    a.fits == b.fits
        && a.served == b.served
        && a.peak_reserved_bytes == b.peak_reserved_bytes
        && a.stalls == b.stalls
        && a.modelled_driver_ms == b.modelled_driver_ms
}

/// Returns the advantage of `new` over `old` if `new` is better overall. The first figure that differs enough
/// decides.
fn better(new: &Trial, old: &Trial) -> Option<Gain> {
    if new.fits != old.fits || !new.fits {
        return (new.fits && !old.fits).then_some(Gain::Fits);
    }
    let (new_bytes, old_bytes) = (memory(new), memory(old));
    let lower_by = |share: f64| new_bytes as f64 <= old_bytes as f64 * (1.0 - share);
    let higher_by = |share: f64| old_bytes as f64 <= new_bytes as f64 * (1.0 - share);
    let less = Gain::Needs {
        bytes: old_bytes.saturating_sub(new_bytes),
    };
    if lower_by(ALIKE) || higher_by(ALIKE) {
        return lower_by(ALIKE).then_some(less);
    }
    let (fewer, more) = (
        old.stalls.saturating_sub(new.stalls),
        new.stalls.saturating_sub(old.stalls),
    );
    let worth = (STALLS_WORTH * old.stalls as f64).max(old.served as f64 / CALLS_PER_STALL);
    if fewer.max(more) as f64 > worth {
        return (fewer > 0).then_some(Gain::Stalls { fewer });
    }
    if lower_by(MEMORY_WORTH) || higher_by(MEMORY_WORTH) {
        return lower_by(MEMORY_WORTH).then_some(less);
    }
    let milliseconds = old.modelled_driver_ms - new.modelled_driver_ms;
    let least = (TIME_PER_CALL * old.served as f64)
        .max(TIME_WORTH * old.modelled_driver_ms)
        .max(TIME_NOTICED);
    (milliseconds >= least).then_some(Gain::DriverTime { milliseconds })
}

/// Returns the setting to recommend, and its advantages over the defaults.
///
/// Simple settings are compared with the best so far before complicated ones, so that a longer setting is
/// recommended only for a difference that matters. If smallest devices are known, only settings that seldom stall
/// there are recommended.
pub(super) fn choose(trials: &[Trial], default: usize) -> (usize, Vec<Gain>) {
    let mut best = default;
    let any = trials.iter().any(|t| t.smallest_device_bytes.is_some());
    let most = trials.iter().map(|t| t.settings).max().unwrap_or(0);
    for length in 1..=most {
        for (index, trial) in trials.iter().enumerate() {
            if trial.settings == length
                && (trial.seldom_stalls || !any)
                && better(trial, &trials[best]).is_some()
            {
                best = index;
            }
        }
    }
    let mut gains = Vec::new();
    let (new, old) = (&trials[best], &trials[default]);
    gains.extend(better(new, old));
    if matches!(gains.first(), Some(Gain::Needs { .. })) && new.stalls < old.stalls {
        gains.push(Gain::Stalls {
            fewer: old.stalls - new.stalls,
        });
    }
    (best, gains)
}
