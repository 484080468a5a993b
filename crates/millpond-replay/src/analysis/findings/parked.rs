//! Memory that was given back and waits for a stream, from the request to free it to its completion.

use super::super::shown;
use super::{By, Finding, Lint, Map, Seen, percent, size, who};
use crate::analysis::ledger::{Ledger, Parked, Watch};
use millpond_trace::recording::{Kind, Row};

/// Bytes waiting at once that are worth a word.
const LEAST_BYTES: u128 = 1 << 20;
/// One part in so many of the peak.
const ONE_IN: u128 = 20;

#[derive(Default)]
pub(super) struct ParkedLong {
    most: u128,
    at: u64,
    /// By tag, when about the most was waiting.
    by_tag: Map<u32, (u128, u64)>,
    /// What was waiting when `by_tag` was counted.
    counted: u128,
    longest: u64,
}

impl ParkedLong {
    fn look(&mut self, ledger: &Ledger<'_>) {
        let waiting = ledger.parked_bytes;
        if waiting <= self.most {
            return;
        }
        self.most = waiting;
        self.at = ledger.time;
        // Counting takes a look at each block: not at each byte more.
        if waiting < self.counted + self.counted / 32 {
            return;
        }
        self.counted = waiting;
        self.by_tag.clear();
        for parked in ledger.parked.values() {
            let of = self
                .by_tag
                .entry(parked.block.groups[By::Tag as usize])
                .or_default();
            of.0 += u128::from(parked.block.bytes);
            of.1 += 1;
        }
    }
}

impl Watch for ParkedLong {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        self.look(ledger);
    }

    fn passed(&mut self, _: &Ledger<'_>, block: &Parked, by: &Row) {
        self.longest = self.longest.max(by.time.saturating_sub(block.since));
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, _: Option<&str>) {
        if row.kind == Kind::FreeRequested {
            self.look(ledger);
        }
    }
}

impl Lint for ParkedLong {
    fn told(&self, seen: &Seen<'_>) -> Option<Finding> {
        let peak = seen.summary.peak.sum.bytes;
        if self.most < LEAST_BYTES || self.most * ONE_IN < peak {
            return None;
        }
        let longest = match self.longest {
            0 => String::new(),
            time => format!("; the longest waited {:.3} ms", time as f64 / 1e6),
        };
        Some(Finding {
            name: "memory parked by streams",
            bytes: shown(self.most),
            evidence: format!(
                "{} that were given back wait for streams at once ({} of the peak in use){longest}",
                size(self.most),
                percent(self.most, peak),
            ),
            when: Some((self.at, self.at)),
            who: who(seen.ledger, By::Tag, &self.by_tag),
            remedy: "Free on the stream that used the block last, or let that stream wait for the other one's event before the free.",
        })
    }
}
