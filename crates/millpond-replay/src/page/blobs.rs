//! Encodes the compressed parts of a page within its size limit.

use millpond_trace::{Trace, split_tag, tag_site};

use super::{
    encode::Blob,
    input::Run,
    places::{Threshold, address_blob, curve_blob},
    story::{self, Life},
};

/// The limit for the whole page, so that it opens at once and can be sent by mail.
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
    /// Encodes everything. If `room` is too small, it leaves out the addresses of the blocks that cover the
    /// least area, and the recorded times if they alone would not fit.
    ///
    /// The curves are always complete. Only the list of blocks that are drawn one by one is cut. So a
    /// recording of far more than a million events can still exceed the limit.
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
            // The size is nearly proportional to the number of blocks. Aiming slightly lower ends the search
            // sooner.
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

/// Returns the threshold that keeps about `part` of all allocations, those that cover most area.
fn keeping(lives: &[Life], part: f64) -> Threshold {
    let mut areas: Vec<f64> = lives.iter().map(Life::area).collect();
    if areas.is_empty() {
        return Threshold(0.0);
    }
    let keep = ((areas.len() as f64 * part) as usize).min(areas.len() - 1);
    let (_, &mut area, _) = areas.select_nth_unstable_by(keep, |a, b| b.total_cmp(a));
    // The threshold is slightly higher, so that all allocations of equal area are left out together.
    Threshold(area * (1.0 + 1e-9) + 1.0)
}

/// Returns the tags and the call site of each.
fn tags(trace: &Trace) -> Blob {
    let names: Vec<&str> = trace.tags.iter().collect();
    let mut blob = Blob::default();
    blob.section(&serde_json::to_vec(&names).unwrap_or_default());
    let sites: Vec<&str> = names.iter().map(|tag| tag_site(split_tag(tag).1)).collect();
    blob.section(&serde_json::to_vec(&sites).unwrap_or_default());
    blob
}
