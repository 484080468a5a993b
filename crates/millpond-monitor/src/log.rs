//! All series: an exact summary since the start, and a history of decreasing resolution.

use super::report::SeriesReport;
use super::ring::{Point, Ring, Span};
use super::series::{Measured, Quantity, Subject, measured};
use super::snapshot::Snapshot;
use super::timeline::{Timeline, TimelinePoint, TimelineSeries};
use std::collections::HashMap;
use std::time::Duration;

/// The maximum number of series.
const MOST: usize = 512;

/// A series since its first sample.
#[derive(Debug)]
struct Followed {
    id: u64,
    of: Subject,
    quantity: Quantity,
    span: Span,
    /// The maximum, including the values between samples that the owner reports.
    peak: u64,
    /// The owner's peak at the last sample.
    high: Option<u64>,
    /// The number of the last sample that contains the series.
    seen: u64,
}

impl Followed {
    fn take_in(&mut self, next: &Measured, sample: u64) {
        self.span.join(Span::of(next.value));
        self.peak = self.peak.max(next.value);
        // If the owner's peak has risen, it has risen since the last sample. If it has fallen, it was reset.
        if let (Some(before), Some(now)) = (self.high, next.peak)
            && now > before
        {
            self.peak = self.peak.max(now);
        }
        self.high = next.peak;
        self.seen = sample;
    }

    fn report(&self) -> SeriesReport {
        SeriesReport {
            of: self.of.clone(),
            quantity: self.quantity,
            least: self.span.least,
            mean: self.span.mean(),
            peak: self.peak,
            last: self.span.last,
            samples: self.span.samples,
        }
    }
}

#[derive(Debug)]
pub(super) struct Log {
    ring: Ring,
    series: Vec<Followed>,
    places: HashMap<(Subject, Quantity), usize>,
    next: u64,
    samples: u64,
    dropped: u64,
}

impl Log {
    pub(super) fn new(points: usize) -> Self {
        Self {
            ring: Ring::new(points),
            series: Vec::new(),
            places: HashMap::new(),
            next: 0,
            samples: 0,
            dropped: 0,
        }
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of series that were removed for others or never stored.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn take_in(&mut self, at: Duration, now: &Snapshot, before: Option<&Snapshot>) {
        self.samples += 1;
        let mut values = Vec::new();
        for next in measured(now, before) {
            if let Some(id) = self.follow(&next) {
                values.push((id, Span::of(next.value)));
            }
        }
        values.sort_unstable_by_key(|(id, _)| *id);
        self.ring.push(Point {
            from: at,
            to: at,
            samples: 1,
            values,
        });
    }

    fn follow(&mut self, next: &Measured) -> Option<u64> {
        let key = (next.of.clone(), next.quantity);
        if let Some(place) = self.places.get(&key) {
            let series = self.series.get_mut(*place)?;
            series.take_in(next, self.samples);
            return Some(series.id);
        }
        let id = self.next;
        let new = Followed {
            id,
            of: next.of.clone(),
            quantity: next.quantity,
            span: Span::of(next.value),
            peak: next.value,
            high: next.peak,
            seen: self.samples,
        };
        let place = if self.series.len() < MOST {
            self.series.push(new);
            self.series.len() - 1
        } else {
            self.dropped += 1;
            // The series that ended first is replaced. If none has ended, the new one is not stored.
            let oldest = self.series.iter().enumerate().min_by_key(|(_, of)| of.seen);
            let (place, gone) = oldest.filter(|(_, of)| of.seen + 1 < self.samples)?;
            self.places.remove(&(gone.of.clone(), gone.quantity));
            self.series[place] = new;
            place
        };
        self.next += 1;
        self.places.insert(key, place);
        Some(id)
    }

    /// Returns the reports in the order of their subjects.
    pub(super) fn reports(&self) -> Vec<SeriesReport> {
        let mut reports: Vec<SeriesReport> = self.series.iter().map(Followed::report).collect();
        reports.sort_by(|a, b| (&a.of, a.quantity).cmp(&(&b.of, b.quantity)));
        reports
    }

    pub(super) fn timeline(&self) -> Timeline {
        let course = |of: &Followed| TimelineSeries {
            of: of.of.clone(),
            quantity: of.quantity,
            points: self.course(of.id).collect(),
        };
        let mut series: Vec<TimelineSeries> = self.series.iter().map(course).collect();
        series.sort_by(|a, b| (&a.of, a.quantity).cmp(&(&b.of, b.quantity)));
        Timeline { series }
    }

    fn course(&self, id: u64) -> impl DoubleEndedIterator<Item = TimelinePoint> {
        self.ring.points().filter_map(move |point| {
            let span = point.get(id)?;
            Some(TimelinePoint {
                from: point.from,
                to: point.to,
                least: span.least,
                mean: span.mean(),
                most: span.most,
                last: span.last,
                samples: span.samples,
            })
        })
    }

    /// Returns the last values of one series, at most `most`, the oldest first.
    pub(super) fn latest(&self, of: &Subject, quantity: Quantity, most: usize) -> Vec<u64> {
        let Some(place) = self.places.get(&(of.clone(), quantity)) else {
            return Vec::new();
        };
        let id = self.series[*place].id;
        let mut values: Vec<u64> = self.course(id).rev().take(most).map(|point| point.last).collect();
        values.reverse();
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolReading;
    use millpond_account::MemoryKind;
    use millpond_account::stats::PoolStats;
    use millpond_engine::Gauge;
    use millpond_os::Device;

    fn pool(id: u64, current: u64, peak: u64) -> PoolReading {
        let mut stats = PoolStats::default();
        stats.requested = Gauge { current, peak };
        PoolReading {
            id,
            name: format!("pool {id}"),
            device: Device::Host,
            kind: MemoryKind::Host,
            policy: String::new(),
            stats,
            stalls: 0,
            limit: None,
            stale: false,
        }
    }

    fn requested(log: &Log, id: u64) -> Option<SeriesReport> {
        let of = Subject::Pool(id, format!("pool {id}"));
        let mut reports = log.reports().into_iter();
        reports.find(|report| report.of == of && report.quantity == Quantity::Requested)
    }

    #[test]
    fn a_peak_between_two_samples_counts_and_one_before_the_first_does_not() {
        let mut log = Log::new(16);
        let mut empty = Snapshot::take();
        empty.pools.clear();
        for (at, (current, peak)) in [(10, 1000), (20, 1000), (30, 5000), (5, 5000), (7, 7), (8, 9)]
            .into_iter()
            .enumerate()
        {
            let mut now = empty.clone();
            now.pools.push(pool(1, current, peak));
            log.take_in(Duration::from_secs(at as u64), &now, None);
            let peaks = [10, 20, 5000, 5000, 5000, 5000];
            assert_eq!(requested(&log, 1).map(|of| of.peak), Some(peaks[at]));
        }
        let of = requested(&log, 1).expect("followed");
        assert_eq!((of.least, of.mean, of.last, of.samples), (5, 13, 8, 6));
    }

    #[test]
    fn series_of_new_pools_replace_those_of_pools_that_ended() {
        let mut log = Log::new(16);
        let mut empty = Snapshot::take();
        empty.pools.clear();
        for at in 0..1000 {
            let mut now = empty.clone();
            now.pools.push(pool(0, at, at));
            now.pools.push(pool(1 + at, 1, 1));
            log.take_in(Duration::from_secs(at), &now, None);
        }
        assert!(log.series.len() <= MOST && log.places.len() <= MOST);
        assert!(log.dropped() > 1000);
        assert_eq!(
            requested(&log, 0).map(|of| of.samples),
            Some(1000),
            "what goes on is kept"
        );
        assert!(requested(&log, 1000).is_some() && requested(&log, 5).is_none());
    }
}
