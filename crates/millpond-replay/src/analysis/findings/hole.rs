//! Finds fragmentation that had a cost: a pool took more from its source, or refused a request, although it had
//! enough free bytes. They were not contiguous.

use super::super::shown;
use super::{Finding, Lint, Map, Who, WindowEnd, note_segment, size};
use crate::analysis::ledger::{Block, Ledger, Watch};
use crate::ranges::Ranges;
use millpond_trace::recording::{Kind, Row};

/// The smallest request that is reported, in bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// The holes had a cost if at least the reserved bytes divided by this number were free at the peak.
const COST: u128 = 100;

#[derive(Default)]
pub(super) struct Hole {
    segments: Map<u32, Ranges<()>>,
    /// The pools with a block in two segments. Holes of other pools end with their segment.
    joined: Vec<u32>,
    /// Whether the recorded program has begun. The rows before are the state at the start of the recording.
    has_begun: bool,
    /// The largest request that found no hole.
    worst: Option<Blocked>,
    /// The number of requests for which the pool had enough free bytes.
    times: u64,
}

struct Blocked {
    bytes: u64,
    at: u64,
    refused: bool,
    free: u128,
    holes: u64,
    largest: u64,
    /// The group and the bytes of the blocks on both sides of the largest hole.
    beside: Vec<(u32, u64)>,
}

/// The free bytes of a pool.
#[derive(Default)]
struct Free {
    bytes: u128,
    holes: u64,
    largest: u64,
    /// Indices of the blocks on both sides of the largest hole.
    beside: [Option<usize>; 2],
}

impl Hole {
    /// Notes whether a block continues in a second segment.
    fn placed(&mut self, row: &Row) {
        if row.address == 0 || self.joined.contains(&row.pool) {
            return;
        }
        let segments = self.segments.get_mut(&row.pool);
        if let Some((start, bytes, ())) = segments.and_then(|segments| segments.of(row.address))
            && row.address.saturating_add(row.bytes) > start.saturating_add(bytes)
        {
            self.joined.push(row.pool);
        }
    }

    fn wanted(&mut self, ledger: &Ledger<'_>, row: &Row, bytes: u64) {
        let Some(state) = ledger.pools.get(&row.pool) else {
            return;
        };
        let in_use = state.bytes + state.parked;
        let taken = if row.kind == Kind::Reserve { row.bytes } else { 0 };
        let before = state.reserved.unwrap_or(0).saturating_sub(u128::from(taken));
        if bytes < LEAST_BYTES || before.saturating_sub(in_use) < u128::from(bytes) {
            return;
        }
        self.times += 1;
        if self.worst.as_ref().is_some_and(|worst| bytes <= worst.bytes) {
            return;
        }
        let Some(segments) = self.segments.get(&row.pool) else {
            return;
        };
        let live = ledger
            .live
            .values()
            .filter(|block| block.pool == row.pool && block.address > 0);
        let parked = ledger.parked.values().map(|parked| &parked.block);
        let parked = parked.filter(|block| block.pool == row.pool && block.address > 0);
        let mut blocks: Vec<(u64, u64, u32)> = live
            .chain(parked)
            .map(|block| {
                (
                    block.address,
                    block.bytes,
                    block.groups[ledger.groups.usual() as usize],
                )
            })
            .collect();
        blocks.sort_unstable();
        let free = look(segments, &blocks, self.joined.contains(&row.pool));
        // If a hole is large enough, the pool had another reason not to use it.
        if free.bytes < u128::from(bytes) || free.largest >= bytes {
            return;
        }
        let beside = free
            .beside
            .into_iter()
            .flatten()
            .map(|at| (blocks[at].2, blocks[at].1));
        self.worst = Some(Blocked {
            bytes,
            at: ledger.time,
            refused: row.kind == Kind::Refused,
            free: free.bytes,
            holes: free.holes,
            largest: free.largest,
            beside: beside.collect(),
        });
    }
}

/// Returns the free bytes of segments between blocks, both in order of addresses. `joined` says whether a hole can continue in the next
/// segment.
fn look(segments: &Ranges<()>, blocks: &[(u64, u64, u32)], joined: bool) -> Free {
    let mut free = Free::default();
    let mut next = 0;
    // The start and the end of the previous hole, for adjacent segments.
    let mut open: Option<(u64, u64, Option<usize>)> = None;
    let close = |free: &mut Free, from: u64, to: u64, left: Option<usize>, right: Option<usize>| {
        let bytes = to.saturating_sub(from);
        if bytes == 0 {
            return;
        }
        free.bytes += u128::from(bytes);
        free.holes += 1;
        if bytes > free.largest {
            free.largest = bytes;
            free.beside = [left, right];
        }
    };
    for (start, bytes, ()) in segments.iter() {
        let end = start + bytes;
        let (mut at, mut left) = match open.take() {
            // A hole continues into a segment that begins at its end.
            Some((from, to, left)) if joined && to == start => (from, left),
            Some((from, to, left)) => {
                close(&mut free, from, to, left, None);
                (start, None)
            }
            None => (start, None),
        };
        while let Some((address, bytes, _)) = blocks.get(next).filter(|block| block.0 < end) {
            if *address >= start {
                close(&mut free, at, *address, left, Some(next));
            }
            at = at.max(address.saturating_add(*bytes));
            left = Some(next);
            next += 1;
        }
        if at < end {
            open = Some((at, end, left));
        }
    }
    if let Some((from, to, left)) = open {
        close(&mut free, from, to, left, None);
    }
    free
}

impl Watch for Hole {
    fn opened(&mut self, _: &Ledger<'_>, block: &Block) {
        self.has_begun |= block.is_event;
    }

    fn closed(&mut self, _: &Ledger<'_>, _: &Block, by: Option<&Row>) {
        self.has_begun |= by.is_some();
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, _: Option<&str>) {
        match row.kind {
            Kind::Reserve if self.has_begun => self.wanted(ledger, row, row.bytes),
            Kind::Refused => self.wanted(ledger, row, row.requested.max(row.bytes)),
            Kind::Alloc | Kind::Live => self.placed(row),
            _ => {}
        }
        note_segment(&mut self.segments, row, ());
    }
}

impl Lint for Hole {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let worst = self.worst.as_ref()?;
        let summary = seen.summary;
        let reserved = summary.peak_reserved.map_or(0, |peak| u128::from(peak.bytes));
        let has_cost = reserved.saturating_sub(summary.peak.sum.bytes) >= reserved / COST;
        if !worst.refused && !has_cost {
            return None;
        }
        let happened = if worst.refused {
            format!("a request of {} was refused", size(worst.bytes.into()))
        } else {
            format!(
                "the pool took another {} from its source",
                size(worst.bytes.into())
            )
        };
        let times = match self.times {
            1 => String::new(),
            times => format!(" In all, {times} requests came when it had enough free bytes."),
        };
        let who = worst.beside.iter().map(|(group, bytes)| Who {
            name: seen
                .ledger
                .groups
                .name(seen.ledger.groups.usual(), *group)
                .to_owned(),
            bytes: *bytes,
            blocks: 1,
        });
        let beside = match worst.beside.is_empty() {
            true => "",
            false => " The blocks beside the largest hole follow",
        };
        Some(Finding {
            name: "no hole large enough",
            bytes: shown(worst.free),
            evidence: format!(
                "{happened} although it had {} free, in {} holes of at most {}.{times}{beside}",
                size(worst.free),
                worst.holes,
                size(worst.largest.into()),
            ),
            when: Some((worst.at, worst.at)),
            who: who.collect(),
            remedy: "Allocate long-lived blocks before short-lived ones. `millpond replay` shows whether another setting or policy \
                     needs less.",
        })
    }
}
