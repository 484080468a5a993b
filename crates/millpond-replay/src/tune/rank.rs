//! Which setting is better, and whether by enough to say so.

use super::Trial;
use serde::Serialize;
use std::cmp::Ordering;

/// Peaks closer together than this are alike while one costs more stalls: a device is not bought by the
/// per cent, and a program that waits is slower every step.
const ALIKE: f64 = 0.02;

/// Less than this share of the peak is not worth a word.
const PEAK_WORTH: f64 = 0.005;

/// Nor are fewer stalls than this share of them.
const STALLS_WORTH: f64 = 0.1;

/// Nor is one in so many calls of the program.
const CALLS_PER_STALL: f64 = 10_000.0;

/// Driver time is a model: less than this share of it is not worth a setting.
const TIME_WORTH: f64 = 0.05;

/// Nor is less than this for each call of the program, in milliseconds: what a good policy itself takes.
const TIME_PER_CALL: f64 = 0.0005;

/// Nor is less than this over the whole run, in milliseconds: nobody would notice.
const TIME_NOTICED: f64 = 10.0;

/// What one setting has over another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum Gain {
    /// The program finishes, and did not before.
    Fits,
    /// So many bytes less at the peak.
    Peak {
        /// Bytes.
        bytes: u64,
    },
    /// So many waits for the device less.
    Stalls {
        /// Fewer by so many.
        fewer: u64,
    },
    /// So much less modelled driver time.
    DriverTime {
        /// Milliseconds.
        milliseconds: f64,
    },
}

/// The least peak of those that finish, or of all where none does.
pub(super) fn least_peak(trials: &[Trial]) -> u64 {
    let finished = trials
        .iter()
        .filter(|t| t.fits)
        .map(|t| t.peak_reserved_bytes)
        .min();
    finished
        .or_else(|| trials.iter().map(|t| t.peak_reserved_bytes).min())
        .unwrap_or(0)
}

/// Best first: what fits, then the peak in steps of two per cent, stalls, driver time, hit rate, and
/// of two that are alike the simpler.
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
    let step = |t: &Trial| ((t.peak_reserved_bytes as f64 / least.max(1) as f64 - 1.0) / ALIKE) as u64;
    step(a)
        .cmp(&step(b))
        .then(a.stalls.cmp(&b.stalls))
        .then(a.modelled_driver_ms.total_cmp(&b.modelled_driver_ms))
        .then(b.hit_rate.total_cmp(&a.hit_rate))
        .then(a.settings.cmp(&b.settings))
        .then_with(|| a.conf.cmp(&b.conf))
}

/// Best first.
pub(super) fn sort(trials: &mut [Trial]) {
    let least = least_peak(trials);
    trials.sort_by(|a, b| order(a, b, least));
}

/// Puts the setting to use before the others, among which a longer line may be better by a difference that does not
/// matter; answers where the defaults are then.
pub(super) fn lead(trials: &mut [Trial], best: usize, default: usize) -> usize {
    trials[..=best].rotate_right(1);
    match default {
        at if at == best => 0,
        at if at < best => at + 1,
        at => at,
    }
}

/// Whether two settings came to the same.
pub(super) fn same_outcome(a: &Trial, b: &Trial) -> bool {
    a.fits == b.fits
        && a.served == b.served
        && a.peak_reserved_bytes == b.peak_reserved_bytes
        && a.stalls == b.stalls
        && a.modelled_driver_ms == b.modelled_driver_ms
}

/// What `new` has over `old`, if it is better on the whole; the first that differs by enough decides.
fn better(new: &Trial, old: &Trial) -> Option<Gain> {
    if new.fits != old.fits || !new.fits {
        return (new.fits && !old.fits).then_some(Gain::Fits);
    }
    let (new_peak, old_peak) = (new.peak_reserved_bytes as f64, old.peak_reserved_bytes as f64);
    let lower_by = |share: f64| new_peak <= old_peak * (1.0 - share);
    let higher_by = |share: f64| old_peak <= new_peak * (1.0 - share);
    let peak = Gain::Peak {
        bytes: old.peak_reserved_bytes.saturating_sub(new.peak_reserved_bytes),
    };
    if lower_by(ALIKE) || higher_by(ALIKE) {
        return lower_by(ALIKE).then_some(peak);
    }
    let (fewer, more) = (
        old.stalls.saturating_sub(new.stalls),
        new.stalls.saturating_sub(old.stalls),
    );
    let worth = (STALLS_WORTH * old.stalls as f64).max(old.served as f64 / CALLS_PER_STALL);
    if fewer.max(more) as f64 > worth {
        return (fewer > 0).then_some(Gain::Stalls { fewer });
    }
    if lower_by(PEAK_WORTH) || higher_by(PEAK_WORTH) {
        return lower_by(PEAK_WORTH).then_some(peak);
    }
    let milliseconds = old.modelled_driver_ms - new.modelled_driver_ms;
    let least = (TIME_PER_CALL * old.served as f64)
        .max(TIME_WORTH * old.modelled_driver_ms)
        .max(TIME_NOTICED);
    (milliseconds >= least).then_some(Gain::DriverTime { milliseconds })
}

/// The setting to use, and what it has over the defaults.
///
/// Simple settings are tried against the best so far before complicated ones, so that a longer line is
/// only recommended for a difference that matters.
pub(super) fn choose(trials: &[Trial], default: usize) -> (usize, Vec<Gain>) {
    let mut best = default;
    let most = trials.iter().map(|t| t.settings).max().unwrap_or(0);
    for length in 1..=most {
        for (index, trial) in trials.iter().enumerate() {
            if trial.settings == length && better(trial, &trials[best]).is_some() {
                best = index;
            }
        }
    }
    let mut gains = Vec::new();
    let (new, old) = (&trials[best], &trials[default]);
    gains.extend(better(new, old));
    if matches!(gains.first(), Some(Gain::Peak { .. })) && new.stalls < old.stalls {
        gains.push(Gain::Stalls {
            fewer: old.stalls - new.stalls,
        });
    }
    (best, gains)
}
