//! The profiler's figures, as values and as text.

use super::profiler;
use crate::limits::Site;
use crate::pools::PoolsBlock;
use millpond_account::ledger::{LeakReport, Stack};
use millpond_account::memory::MemoryKind;
use millpond_account::registry::live_pools;
use millpond_account::stats::PoolStats;
use millpond_account::tags::Tag;
use millpond_account::tally::{Figures, Outcome, at_peak, by_place};
use millpond_engine::display_size;
use millpond_os::device::Device;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// The number of lines of each part of a summary.
const LINES: usize = 5;

/// The figures of one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagPeak {
    /// The tag.
    pub tag: Tag,
    /// The bytes that were live at the peak of all tags together. The peaks of all tags add up to the total peak.
    pub peak: u64,
    /// The bytes that are live.
    pub live: u64,
    /// The bytes of all blocks that were allocated.
    pub total: u64,
    /// The number of blocks that were allocated.
    pub allocations: u64,
    /// The number of blocks that were freed by the next memory operation of their thread.
    pub temporary: u64,
}

/// The figures of one pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolUse {
    /// The name of the pool.
    pub name: String,
    /// The device of its memory.
    pub device: Device,
    /// The kind of its memory.
    pub kind: MemoryKind,
    /// The number of allocations since the profiler was turned on.
    pub allocations: u64,
    /// The number of those for which the source was not called.
    pub hits: u64,
    /// The current statistics of the pool.
    pub stats: PoolStats,
}

impl PoolUse {
    /// Returns hits divided by allocations since the profiler was turned on, or 0 before the first allocation.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        match self.allocations {
            0 => 0.0,
            all => self.hits as f64 / all as f64,
        }
    }
}

/// The operations of all threads while the profiler was on. Bytes are those of blocks. Live blocks are those that were allocated
/// since the profiler was turned on.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProfilerReport {
    /// The most bytes that were live at once.
    pub peak: u64,
    /// The bytes that are live.
    pub live: u64,
    /// The bytes of all blocks that were allocated.
    pub total: u64,
    /// The number of blocks that were allocated.
    pub allocations: u64,
    /// The number of blocks that were freed by the next memory operation of their thread.
    pub temporary: u64,
    /// The places that allocated blocks, by tag and call site. Those with the most bytes at the peak come first.
    pub sites: Vec<Site>,
    /// The pools that exist now. The figures of a pool that was created later begin with its creation.
    pub pools: Vec<PoolUse>,
}

impl ProfilerReport {
    pub(super) fn new(outcome: Option<&Outcome>, before: &[(u64, PoolStats)]) -> Self {
        let Figures {
            live,
            peak,
            total,
            temporary,
        } = outcome.map(|of| of.figures).unwrap_or_default();
        Self {
            peak: peak.bytes,
            live: live.bytes,
            total: total.bytes,
            allocations: total.blocks,
            temporary,
            sites: outcome.map(|of| by_place(&of.sites)).unwrap_or_default(),
            pools: pools(before),
        }
    }

    /// Returns the figures of each tag, those with the most bytes at the peak first.
    #[must_use]
    pub fn by_tag(&self) -> Vec<TagPeak> {
        let mut tags: BTreeMap<Tag, TagPeak> = BTreeMap::new();
        for site in &self.sites {
            let of = tags.entry(site.tag).or_insert(TagPeak {
                tag: site.tag,
                peak: 0,
                live: 0,
                total: 0,
                allocations: 0,
                temporary: 0,
            });
            of.peak += site.peak_bytes;
            of.live += site.live_bytes;
            of.total += site.total;
            of.allocations += site.allocations;
            of.temporary += site.temporary;
        }
        let mut tags: Vec<TagPeak> = tags.into_values().collect();
        tags.sort_by_key(|of| Reverse((of.peak, of.total)));
        tags
    }

    /// Returns the blocks that were live at the peak, by tag and call site.
    #[must_use]
    pub fn at_peak(&self) -> LeakReport {
        at_peak(&self.sites)
    }

    /// Returns the places that allocated the most bytes, at most `n`.
    #[must_use]
    pub fn most_allocated(&self, n: usize) -> Vec<&Site> {
        self.most(n, |site| site.total)
    }

    /// Returns the places that allocated the most temporary blocks, at most `n`.
    #[must_use]
    pub fn most_temporary(&self, n: usize) -> Vec<&Site> {
        self.most(n, |site| site.temporary)
    }

    fn most(&self, n: usize, of: impl Fn(&Site) -> u64) -> Vec<&Site> {
        let mut sites: Vec<&Site> = self.sites.iter().filter(|site| of(site) > 0).collect();
        sites.sort_by_key(|site| Reverse(of(site)));
        sites.truncate(n);
        sites
    }

    /// Returns a short summary, which includes the largest blocks that are live now.
    #[must_use]
    pub fn summary(&self) -> ProfilerSummary<'_> {
        ProfilerSummary {
            report: self,
            largest: profiler().largest(LINES).blocks,
        }
    }
}

/// Returns the live pools, with the operations of each since `before`.
fn pools(before: &[(u64, PoolStats)]) -> Vec<PoolUse> {
    let mut pools = Vec::new();
    for pool in live_pools() {
        let (label, stats) = (pool.label(), pool.stats());
        let then = before.iter().find(|(number, _)| *number == label.id);
        let then = then.map(|(_, stats)| *stats).unwrap_or_default();
        pools.push(PoolUse {
            name: label.name.to_string(),
            device: pool.device(),
            kind: label.kind,
            allocations: stats.allocations.saturating_sub(then.allocations),
            hits: stats.hits.saturating_sub(then.hits),
            stats,
        });
    }
    pools
}

/// A summary of a [report](ProfilerReport).
#[derive(Clone, Debug)]
pub struct ProfilerSummary<'a> {
    report: &'a ProfilerReport,
    largest: Vec<PoolsBlock>,
}

/// The innermost frame of a place.
struct Place<'a>(Tag, Option<&'a Stack>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let frames = self.1.map(Stack::user_frames).unwrap_or_default();
        match frames.first() {
            Some(frame) => write!(f, ", at {frame}"),
            None => Ok(()),
        }
    }
}

fn size(bytes: u64) -> String {
    display_size(bytes).to_string()
}

impl fmt::Display for ProfilerSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        write!(
            f,
            "peak {}, live {}; {} allocated in {} blocks, {} of them temporary",
            size(report.peak),
            size(report.live),
            size(report.total),
            report.allocations,
            report.temporary
        )?;
        self.write_tags(f)?;
        self.write_sites(f, "most allocated:", &report.most_allocated(LINES))?;
        self.write_sites(f, "most temporary:", &report.most_temporary(LINES))?;
        self.write_largest(f)?;
        self.write_pools(f)
    }
}

impl ProfilerSummary<'_> {
    fn write_tags(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tags = self.report.by_tag();
        if !tags.is_empty() {
            f.write_str("\nat the peak, by tag:")?;
        }
        for of in tags.iter().take(LINES) {
            write!(f, "\n{:>11}  {}, live {}", size(of.peak), of.tag, size(of.live))?;
        }
        Ok(())
    }

    fn write_sites(&self, f: &mut fmt::Formatter<'_>, head: &str, sites: &[&Site]) -> fmt::Result {
        if !sites.is_empty() {
            write!(f, "\n{head}")?;
        }
        for site in sites {
            let place = Place(site.tag, site.stack.as_ref());
            let (total, blocks, temporary) = (size(site.total), site.allocations, site.temporary);
            write!(f, "\n{total:>11}  in {blocks}, {temporary} temporary: {place}")?;
        }
        Ok(())
    }

    fn write_largest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.largest.is_empty() {
            f.write_str("\nlargest live blocks:")?;
        }
        for PoolsBlock { pool, block } in &self.largest {
            let place = Place(block.tag, block.stack());
            write!(f, "\n{:>11}  in {pool}: {place}", size(block.bytes as u64))?;
        }
        Ok(())
    }

    fn write_pools(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.report.pools.iter().filter(|of| of.allocations > 0);
        for of in used {
            write!(
                f,
                "\npool {}: {:.1} % hits of {} allocations, {} in use of {} reserved",
                of.name,
                100.0 * of.hit_rate(),
                of.allocations,
                size(of.stats.allocated.current),
                size(of.stats.reserved.current)
            )?;
        }
        Ok(())
    }
}
