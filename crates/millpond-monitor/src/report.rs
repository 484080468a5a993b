//! The report of a monitor, formatted as a table.

use super::series::{Quantity, Subject};
use super::threshold::Crossing;
use millpond_account::table::write_table;
use millpond_engine::display_size;
use std::fmt;
use std::time::Duration;

/// The summary of one series over all samples.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeriesReport {
    /// The subject.
    pub of: Subject,
    /// The quantity.
    pub quantity: Quantity,
    /// The minimum of all samples.
    pub least: u64,
    /// The mean of all samples.
    pub mean: u64,
    /// The maximum. For subjects with a peak of their own (the process, pools, budgets), it includes values between
    /// samples.
    pub peak: u64,
    /// The last sample.
    pub last: u64,
    /// The number of samples.
    pub samples: u64,
}

/// The observations of a monitor since its start. It is displayed as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonitorReport {
    /// The time from the start to the last sample.
    pub elapsed: Duration,
    /// The number of samples.
    pub samples: u64,
    /// The series in the order of their subjects.
    pub series: Vec<SeriesReport>,
    /// The first 1000 threshold crossings, the oldest first.
    pub crossings: Vec<(Duration, Crossing)>,
    /// The number of all threshold crossings.
    pub crossed: u64,
    /// The number of callbacks that panicked.
    pub panics: u64,
    /// The number of samples that were skipped because memory was short.
    pub missed: u64,
    /// The number of series that are missing because there were too many.
    pub dropped: u64,
}

impl MonitorReport {
    /// Returns the series of one quantity by the name of its subject.
    ///
    /// ```
    /// use millpond::{Monitor, monitor::Quantity};
    ///
    /// let monitor = Monitor::builder().start()?;
    /// let report = monitor.stop();
    /// let resident = report.get("process", Quantity::Resident);
    /// assert!(resident.is_some_and(|of| of.least <= of.mean && of.mean <= of.peak));
    /// # Ok::<(), millpond::monitor::MonitorError>(())
    /// ```
    #[must_use]
    pub fn get(&self, of: &str, quantity: Quantity) -> Option<&SeriesReport> {
        let mut series = self.series.iter();
        series.find(|series| series.quantity == quantity && series.of.to_string() == of)
    }
}

/// Formats a value.
fn shown(quantity: Quantity, value: u64) -> String {
    if quantity.is_bytes() {
        display_size(value).to_string()
    } else {
        format!("{}.{} %", value / 100, value % 100 / 10)
    }
}

impl fmt::Display for MonitorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |of: &SeriesReport| {
            let of_value = |value| shown(of.quantity, value);
            [
                of.of.to_string(),
                of.quantity.to_string(),
                of_value(of.least),
                of_value(of.mean),
                of_value(of.peak),
                of_value(of.last),
                of.samples.to_string(),
            ]
        };
        let head = ["", "", "least", "mean", "peak", "last", "samples"].map(str::to_owned);
        let mut rows = vec![head];
        rows.extend(self.series.iter().map(row));
        writeln!(f, "{} samples in {:.1?}", self.samples, self.elapsed)?;
        write_table(f, 2, &rows)?;
        for (at, crossing) in &self.crossings {
            write!(f, "\nafter {at:.1?} {crossing}")?;
        }
        let more = self.crossed.saturating_sub(self.crossings.len() as u64);
        for (count, what) in [
            (more, "more times a threshold was exceeded"),
            (self.panics, "callbacks panicked"),
            (self.missed, "samples left out for lack of memory"),
            (self.dropped, "series left out: there were too many"),
        ] {
            if count > 0 {
                write!(f, "\n{count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signal;
    use millpond_os::pressure::Share;

    #[test]
    fn a_report_is_formatted_as_a_table() {
        let series = |of, quantity, least, mean, peak, last| SeriesReport {
            of,
            quantity,
            least,
            mean,
            peak,
            last,
            samples: 12,
        };
        let pool = || Subject::Pool(3, "weights".to_owned());
        let crossing = Crossing {
            of: pool(),
            signal: Signal::PoolLimit,
            at: Share::percent(80),
            share: Share::hundredths(8765),
            used: 7 << 20,
            whole: 8 << 20,
        };
        let report = MonitorReport {
            elapsed: Duration::from_millis(1234),
            samples: 12,
            series: vec![
                series(
                    Subject::Process,
                    Quantity::Resident,
                    1 << 20,
                    2 << 20,
                    30 << 20,
                    2 << 20,
                ),
                series(pool(), Quantity::HitRate, 0, 5000, 10_000, 9990),
            ],
            crossings: vec![(Duration::from_millis(100), crossing)],
            crossed: 2,
            panics: 1,
            missed: 0,
            dropped: 0,
        };
        let expected = "\
12 samples in 1.2s
                      least      mean      peak      last  samples
process  resident  1.00 MiB  2.00 MiB  30.0 MiB  2.00 MiB       12
weights  hit rate     0.0 %    50.0 %   100.0 %    99.9 %       12
after 100.0ms weights: 87.6 % of its limit is reserved (7.00 MiB of 8.00 MiB)
1 more times a threshold was exceeded
1 callbacks panicked";
        assert_eq!(report.to_string(), expected);
    }
}
