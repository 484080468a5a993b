//! Sums up a recording by the origin of its blocks. If only a sample of the blocks was recorded with stacks, the sums are estimates:
//! see [`History::represents`](crate::history::History::represents).

use super::events::{Event, Source};
use super::stacks::Origin;
use super::{At, ExportError};
use crate::hash::Map;
use crate::recording::{Kind, Row};

/// Bytes for a site and its entry in the table.
const SITE: u64 = 2 * (size_of::<Site>() + size_of::<(Origin, usize)>()) as u64;

/// Requested bytes, and the number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl Sum {
    /// Returns the sum of the blocks that the block of a row represents.
    fn of(source: &Source<'_>, row: &Row) -> Self {
        let represents = source.history.represents(row);
        Self {
            // The conversions saturate.
            bytes: match represents == 1.0 {
                true => row.requested,
                false => (row.requested as f64 * represents) as u64,
            },
            blocks: represents.round() as u64,
        }
    }

    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    fn take(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.blocks = self.blocks.saturating_sub(other.blocks);
    }
}

/// The sums of the blocks of one origin.
#[derive(Clone, Debug, Default)]
pub(super) struct Site {
    pub(super) origin: Origin,
    /// All blocks of the recording.
    pub(super) total: Sum,
    /// The blocks at the time of the site's own maximum.
    pub(super) most: Sum,
    /// The blocks that were live at the peak of all sites together.
    pub(super) peak: Sum,
    /// The live blocks. After the last event, these are the blocks live at the end.
    pub(super) end: Sum,
    /// Sum of all lifetimes in nanoseconds. Each block subtracts its start and adds its end.
    pub(super) lifetimes: i128,
}

impl Site {
    /// Returns the blocks that a profile counts.
    pub(super) fn at(&self, at: At) -> Sum {
        match at {
            At::Peak => self.peak,
            At::Total => self.total,
            At::End => self.end,
        }
    }
}

/// The sums of a whole recording.
#[derive(Default)]
pub(super) struct Profile {
    /// The sites in the order of their first allocation.
    pub(super) sites: Vec<Site>,
    pub(super) events: u64,
    /// The time when the most bytes were requested at once.
    pub(super) peak_time: u64,
    /// The time of the last event.
    pub(super) end_time: u64,
}

impl Profile {
    /// Reads the events twice, because the peak is known only at the end.
    pub(super) fn of(source: &Source<'_>) -> Result<Self, ExportError> {
        let peak = peak(source)?;
        let mut profile = Self::default();
        let mut places: Map<Origin, usize> = Map::default();
        let mut step = 0;
        source.walk(|event| {
            let before = profile.sites.len();
            profile.enter(source, event, &mut places);
            source.keep(SITE * (profile.sites.len() - before) as u64);
            if step == peak {
                profile.snapshot(event.row.time);
            }
            step += 1;
            Ok(())
        })?;
        profile.close();
        Ok(profile)
    }

    fn enter(&mut self, source: &Source<'_>, event: &Event<'_>, places: &mut Map<Origin, usize>) {
        let row = &event.row;
        self.events += 1;
        self.end_time = self.end_time.max(row.time);
        if !matches!(row.kind, Kind::Alloc | Kind::Free | Kind::FreeRequested) {
            return;
        }
        let origin = Origin::of(row);
        let next = self.sites.len();
        let place = *places.entry(origin).or_insert(next);
        if place == next {
            self.sites.push(Site {
                origin,
                ..Site::default()
            });
        }
        let site = &mut self.sites[place];
        let sum = Sum::of(source, row);
        let blocks = i128::from(sum.blocks);
        if row.kind == Kind::Alloc {
            site.total.add(sum);
            site.end.add(sum);
            site.lifetimes -= i128::from(event.began) * blocks;
            if site.end.bytes > site.most.bytes {
                site.most = site.end;
            }
        } else {
            site.end.take(sum);
            site.lifetimes += i128::from(row.time) * blocks;
        }
    }

    fn snapshot(&mut self, time: u64) {
        self.peak_time = time;
        for site in &mut self.sites {
            site.peak = site.end;
        }
    }

    fn close(&mut self) {
        for site in &mut self.sites {
            site.lifetimes += i128::from(self.end_time) * i128::from(site.end.blocks);
        }
    }

    /// Returns the bytes of all sites.
    pub(super) fn bytes(&self, at: At) -> u64 {
        let bytes = self.sites.iter().map(|site| site.at(at).bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

/// Returns the index of the event after which the most bytes were requested at once.
fn peak(source: &Source<'_>) -> Result<u64, ExportError> {
    let (mut live, mut most) = (0_u64, 0);
    let (mut step, mut peak) = (0, 0);
    source.walk(|event| {
        match event.row.kind {
            Kind::Alloc => live = live.saturating_add(event.row.requested),
            Kind::Free | Kind::FreeRequested => live = live.saturating_sub(event.row.requested),
            _ => {}
        }
        if live > most {
            (most, peak) = (live, step);
        }
        step += 1;
        Ok(())
    })?;
    Ok(peak)
}

/// Describes what a profile counts.
pub(super) fn counted(at: At) -> &'static str {
    match at {
        At::Peak => "bytes live at the peak",
        At::Total => "bytes allocated",
        At::End => "bytes live at the end",
    }
}

/// Returns words that say whether the sums of a profile are estimates.
pub(super) fn estimated(source: &Source<'_>) -> String {
    match source.history.bytes_per_stack() {
        None => String::new(),
        Some(bytes) => format!(", estimated from one stack for each {bytes} bytes"),
    }
}
