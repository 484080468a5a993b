//! A coarse overview of every curve, small enough to be painted before anything is decoded.

use millpond_trace::Trace;
use serde::Serialize;

use super::{input::Run, places::Curve};

/// Buckets of the overview, about one for each pixel of a narrow screen.
const BUCKETS: usize = 640;

/// Steps between zero and the highest value.
const STEPS: f64 = 4095.0;

/// Lowest and highest value of each curve in each bucket of events.
#[derive(Debug, Serialize)]
pub(crate) struct Glance {
    buckets: usize,
    /// Bytes of the highest step.
    scale: u64,
    requested: Vec<u16>,
    reserved: Vec<Vec<u16>>,
}

impl Glance {
    /// Summarises the curves of `trace`: the requested bytes, and the reserved bytes of each run.
    pub(crate) fn new(trace: &Trace, requested: &[u64], runs: &[Run<'_>]) -> Glance {
        let events = trace.events.len();
        let peaks = runs.iter().map(|run| run.peak_reserved());
        let scale = peaks.chain(requested.iter().copied()).max().unwrap_or(0).max(1);
        let reserved = runs.iter().map(|run| {
            let end = run
                .placement
                .stopped_at
                .map_or(events, |event| event as usize)
                .min(events);
            let mut curve = Curve::new(&run.placement.reserved);
            let values: Vec<u64> = (0..end).map(|event| curve.after(event)).collect();
            quantise(&values, events, scale)
        });
        Glance {
            buckets: BUCKETS,
            scale,
            reserved: reserved.collect(),
            requested: quantise(requested, events, scale),
        }
    }
}

/// Returns the lowest and the highest value of each bucket in turn. The list ends where the values end.
fn quantise(values: &[u64], events: usize, scale: u64) -> Vec<u16> {
    let mut steps = Vec::with_capacity(2 * BUCKETS);
    for bucket in 0..BUCKETS {
        let from = bucket * events / BUCKETS;
        let to = ((bucket + 1) * events / BUCKETS).max(from + 1).min(values.len());
        let Some(part) = values.get(from..to).filter(|part| !part.is_empty()) else {
            break;
        };
        let low = part.iter().min().copied().unwrap_or(0);
        let high = part.iter().max().copied().unwrap_or(0);
        for value in [low, high] {
            steps.push((value as f64 / scale as f64 * STEPS).round() as u16);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overview_keeps_extremes_and_ends_with_the_run() {
        let mut values = vec![10; 64_000];
        values[31_000] = 100;
        let steps = quantise(&values, 64_000, 100);
        assert_eq!(steps.len(), 2 * BUCKETS);
        assert_eq!(steps.iter().max(), Some(&4095));
        assert_eq!(quantise(&values[..32_000], 64_000, 100).len(), BUCKETS);
        assert!(quantise(&[], 0, 1).is_empty());
        assert_eq!(quantise(&[7], 1, 7), quantise(&[7], 1, 7));
    }
}
