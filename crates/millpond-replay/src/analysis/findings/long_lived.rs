//! Finds blocks that outlive all their neighbours and keep their whole segment from being released.

use super::super::shown;
use super::{Finding, Lint, Map, WindowEnd, note_segment, percent, size, who};
use crate::analysis::ledger::{Block, Ledger, Watch};
use crate::ranges::Ranges;
use millpond_trace::recording::Row;

/// The smallest segment that is examined, in bytes.
const LEAST_BYTES: u64 = 1 << 20;
/// At most one part in this many of a segment may still be in use, and at least half of it must have been.
const ONE_IN: u128 = 10;
/// The smallest kept free memory that is reported: one part in this many of all reserved bytes.
const WORTH_ONE_IN: u128 = 20;

#[derive(Default)]
pub(super) struct LongLived {
    segments: Map<u32, Ranges<Segment>>,
}

#[derive(Clone, Copy, Default)]
struct Segment {
    since: u64,
    live: u128,
    most: u128,
}

impl LongLived {
    fn change(&mut self, block: &Block, change: impl Fn(u128, u128) -> u128) {
        if block.address == 0 {
            return;
        }
        let Some(segments) = self.segments.get_mut(&block.pool) else {
            return;
        };
        if let Some((_, _, segment)) = segments.of(block.address) {
            segment.live = change(segment.live, u128::from(block.bytes));
            segment.most = segment.most.max(segment.live);
        }
    }
}

impl Watch for LongLived {
    fn opened(&mut self, _: &Ledger<'_>, block: &Block) {
        self.change(block, |now, bytes| now + bytes);
    }

    fn closed(&mut self, _: &Ledger<'_>, block: &Block, _: Option<&Row>) {
        self.change(block, u128::saturating_sub);
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, _: Option<&str>) {
        let segment = Segment {
            since: ledger.time,
            ..Segment::default()
        };
        note_segment(&mut self.segments, row, segment);
    }
}

/// Returns whether a segment is kept by a small part of its former contents.
fn is_kept_by_little(bytes: u64, segment: &Segment) -> bool {
    let bytes_wide = u128::from(bytes);
    bytes >= LEAST_BYTES
        && segment.live > 0
        && segment.live * ONE_IN <= bytes_wide
        && segment.most * 2 >= bytes_wide
        // A segment with more bytes than it can hold is really several segments.
        && segment.most <= bytes_wide
}

impl Lint for LongLived {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let mut kept: Map<(u32, u64), (u64, u64)> = Map::default();
        let (mut free, mut since) = (0u128, u64::MAX);
        for (pool, segments) in &self.segments {
            for (address, bytes, segment) in segments.iter() {
                if is_kept_by_little(bytes, segment) {
                    kept.insert((*pool, address), (bytes, segment.since));
                    free += u128::from(bytes) - segment.live;
                    since = since.min(segment.since);
                }
            }
        }
        let reserved = seen.ledger.reserved.unwrap_or(0);
        if kept.is_empty() || free * WORTH_ONE_IN < reserved {
            return None;
        }
        let mut holders: Map<u32, (u128, u64)> = Map::default();
        let (mut used, mut blocks) = (0u128, 0u64);
        for block in seen.ledger.live.values() {
            let Some(segments) = self.segments.get(&block.pool) else {
                continue;
            };
            let Some(address) = segments.start_of(block.address) else {
                continue;
            };
            if kept.contains_key(&(block.pool, address)) {
                let of = holders
                    .entry(block.groups[seen.ledger.groups.usual() as usize])
                    .or_default();
                of.0 += u128::from(block.bytes);
                of.1 += 1;
                used += u128::from(block.bytes);
                blocks += 1;
            }
        }
        let plural = |n: u64, noun: &str| {
            if n == 1 {
                format!("1 {noun}")
            } else {
                format!("{n} {noun}s")
            }
        };
        Some(Finding {
            name: "long-lived block in a short-lived segment",
            bytes: shown(free),
            evidence: format!(
                "{} in {} are free but stay reserved ({} of all reserved memory), because {} in {} are still in use",
                size(free),
                plural(kept.len() as u64, "segment"),
                percent(free, reserved),
                size(used),
                plural(blocks, "block"),
            ),
            when: Some((since, seen.summary.to)),
            who: who(seen.ledger, &holders),
            remedy: "Allocate these blocks before the short-lived ones around them, or from a pool of their own.",
        })
    }
}
