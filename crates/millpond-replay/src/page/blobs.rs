//! What goes into the page compressed, and how much of it there is room for.

use millpond_trace::Trace;

use super::{
    encode::Blob,
    input::Run,
    places::{Threshold, address_blob, curve_blob},
    story::{self, Life},
};

/// The whole page stays below this, so that it opens at once and can be sent by mail.
pub(crate) const PAGE_BYTES: u64 = 15_000_000;

/// Every compressed part of a page.
#[derive(Debug)]
pub(crate) struct Blobs {
    pub(crate) story: Blob,
    pub(crate) tags: Blob,
    pub(crate) times: Option<Blob>,
    pub(crate) curves: Vec<Blob>,
    pub(crate) addresses: Vec<Blob>,
    pub(crate) threshold: Threshold,
}

impl Blobs {
    /// Encodes everything, leaving out the addresses of the smallest blocks if `room` is short, and
    /// the recorded times if they alone would not fit.
    ///
    /// The curves are always whole: what is cut is only which blocks are drawn one by one. So a
    /// recording far beyond a million events can still pass the limit.
    pub(crate) fn new(trace: &Trace, lives: &[Life], runs: &[Run<'_>], room: u64) -> Blobs {
        let story = story::blob(trace, lives);
        let tags = tags(trace);
        let times = story::times(trace);
        let curves: Vec<Blob> = runs
            .iter()
            .map(|run| curve_blob(trace, lives, run.placement))
            .collect();
        let fixed = [&story, &tags]
            .into_iter()
            .chain(&curves)
            .map(Blob::page_bytes)
            .sum::<u64>();
        let room = room.saturating_sub(fixed);
        let times = times.filter(|times| times.page_bytes() <= room);
        let room = room - times.as_ref().map_or(0, Blob::page_bytes);
        let encode = |threshold| -> Vec<Blob> {
            runs.iter()
                .map(|run| address_blob(trace, lives, run.placement, threshold))
                .collect()
        };
        let mut threshold = Threshold(0.0);
        let mut addresses = encode(threshold);
        let mut part = 1.0;
        loop {
            let taken = addresses.iter().map(Blob::page_bytes).sum::<u64>();
            if taken <= room || threshold == Threshold(f64::MAX) {
                break;
            }
            // Bytes follow the number of blocks closely; a little less ends the search sooner.
            part *= (0.95 * room as f64 / taken as f64).min(0.9);
            threshold = if part > 0.001 {
                keeping(lives, part)
            } else {
                Threshold(f64::MAX)
            };
            addresses = encode(threshold);
        }
        Blobs {
            story,
            tags,
            times,
            curves,
            addresses,
            threshold,
        }
    }
}

/// The threshold that keeps about `part` of all allocations, those that cover most.
fn keeping(lives: &[Life], part: f64) -> Threshold {
    let mut areas: Vec<f64> = lives.iter().map(Life::area).collect();
    if areas.is_empty() {
        return Threshold(0.0);
    }
    let keep = ((areas.len() as f64 * part) as usize).min(areas.len() - 1);
    let (_, &mut area, _) = areas.select_nth_unstable_by(keep, |a, b| b.total_cmp(a));
    // A little above: equals of the last one stay out together.
    Threshold(area * (1.0 + 1e-9) + 1.0)
}

fn tags(trace: &Trace) -> Blob {
    let names: Vec<&str> = trace.tags.iter().collect();
    let mut blob = Blob::default();
    blob.section(&serde_json::to_vec(&names).unwrap_or_default());
    blob
}
