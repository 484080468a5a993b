//! Finds memory that was freed and waits for a stream. It uses the recorded free requests and their
//! completions, or the sampled statistics of pools if these show more waiting bytes.

use super::super::shown;
use super::{Finding, Lint, Map, Who, WindowEnd, percent, size, who, who_pools};
use crate::analysis::ledger::{Ledger, Parked, Watch};
use millpond_trace::recording::{Gauge, Kind, Row};

/// The fewest bytes waiting at once that are reported.
const LEAST_BYTES: u128 = 1 << 20;
/// The smallest reported share: one part in this many of the peak.
const ONE_IN: u128 = 20;

#[derive(Default)]
pub(super) struct ParkedLong {
    most: u128,
    at: u64,
    /// Waiting blocks by holder, counted near the maximum.
    by_holder: Map<u32, (u128, u64)>,
    /// The waiting bytes when `by_holder` was counted.
    counted: u128,
    longest: u64,
    /// For pools that report it: the bytes in blocks that callers hold, and the bytes that wait.
    told: Map<u32, (u64, u64)>,
    /// The time of the sample that is being read, until it is complete.
    telling: Option<u64>,
    /// The waiting bytes of each pool at the sample with the largest sum. Empty if the recorded requests show more.
    by_pool: Vec<(u32, u64)>,
}

impl ParkedLong {
    fn look(&mut self, ledger: &Ledger<'_>) {
        let waiting = ledger.parked_bytes;
        if waiting <= self.most {
            return;
        }
        self.most = waiting;
        self.at = ledger.time;
        self.by_pool.clear();
        // Counting visits each block. So it is repeated only after a clear increase.
        if waiting < self.counted + self.counted / 32 {
            return;
        }
        self.counted = waiting;
        self.by_holder.clear();
        for parked in ledger.parked.values() {
            let of = self
                .by_holder
                .entry(parked.block.groups[ledger.groups.usual() as usize])
                .or_default();
            of.0 += u128::from(parked.block.bytes);
            of.1 += 1;
        }
    }

    /// Reads one gauge. The statistics of pools are a sequence of gauges with the same time.
    fn measure(&mut self, row: &Row) {
        let told = self.told.entry(row.pool).or_default();
        match Gauge::from_number(row.tag) {
            Some(Gauge::Allocated) => told.0 = row.bytes,
            Some(Gauge::Active) => {
                told.1 = row.bytes.saturating_sub(told.0);
                self.telling = Some(row.time);
            }
            _ => {}
        }
    }

    /// Sums the waiting bytes after all pools have reported for one time.
    fn add_up(&mut self, time: u64) {
        let waiting = self.told.values().map(|(_, waits)| u128::from(*waits)).sum();
        if waiting > self.most {
            self.most = waiting;
            self.at = time;
            self.by_pool = self
                .told
                .iter()
                .map(|(pool, (_, waits))| (*pool, *waits))
                .collect();
        }
    }

    fn who(&self, seen: &WindowEnd<'_>) -> Vec<Who> {
        if self.by_pool.is_empty() {
            return who(seen.ledger, &self.by_holder);
        }
        let pools = self.by_pool.iter();
        who_pools(
            seen.history,
            pools.map(|(pool, waits)| (*pool, u128::from(*waits), 0)),
        )
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
        if let Some(time) = self.telling
            && (row.kind != Kind::Gauge || row.time != time)
        {
            self.telling = None;
            self.add_up(time);
        }
        match row.kind {
            Kind::FreeRequested => self.look(ledger),
            Kind::Gauge if row.pool != 0 => self.measure(row),
            _ => {}
        }
    }
}

impl Lint for ParkedLong {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let peak = seen.summary.peak.sum.bytes;
        if self.most < LEAST_BYTES || self.most * ONE_IN < peak {
            return None;
        }
        let longest = match self.longest {
            _ if !self.by_pool.is_empty() => " when pools were looked at".to_owned(),
            0 => String::new(),
            time => format!("; the longest waited {:.3} ms", time as f64 / 1e6),
        };
        Some(Finding {
            name: "memory parked by streams",
            bytes: shown(self.most),
            evidence: format!(
                "{} of freed memory wait for streams at the same time ({} of the peak in use){longest}",
                size(self.most),
                percent(self.most, peak),
            ),
            when: Some((self.at, self.at)),
            who: self.who(seen),
            remedy: "Free on the stream that used the block last, or let that stream wait for the other one's event before the free.",
        })
    }
}
