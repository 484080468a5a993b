//! Sums up a recording by the origin of its blocks.

use super::events::{Event, Source};
use super::stacks::Origin;
use super::{At, ExportError};
use crate::hash::Map;
use crate::recording::Kind;

/// Bytes for a site and its entry in the table.
const SITE: u64 = 2 * (size_of::<Site>() + size_of::<(Origin, usize)>()) as u64;

/// Requested bytes, and the number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.blocks = self.blocks.saturating_sub(1);
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
            profile.enter(event, &mut places);
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

    fn enter(&mut self, event: &Event<'_>, places: &mut Map<Origin, usize>) {
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
        if row.kind == Kind::Alloc {
            site.total.add(row.requested);
            site.end.add(row.requested);
            site.lifetimes -= i128::from(event.began);
            if site.end.bytes > site.most.bytes {
                site.most = site.end;
            }
        } else {
            site.end.take(row.requested);
            site.lifetimes += i128::from(row.time);
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
