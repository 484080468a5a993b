//! Returns unused free memory to the source after some time.
//!
//! Time is counted in ticks. From the first tick on, each page records the tick in which a block in it was last freed.
//! A page handle that was not used for [`decay`](crate::RetainConf::decay) ticks was not needed in that time, even at
//! the program's peak, so it is returned. Handles are returned at a tick, never in an allocation or a free. Placement
//! then continues as if they had never existed. Before the first tick nothing is recorded.
//!
//! The lowest number of free bytes in a period is not a suitable measure. At the program's peak, the free memory lies
//! in pieces between live blocks. At a tick, the free whole handles may all be needed again.
//!
//! A handle that is shared by free blocks of two streams is kept, because only a compaction joins the blocks.

#[cfg(test)]
mod tests;

use super::{Held, Millpond};
use crate::index::Entry;
use crate::space::BlockId;
use crate::supply::Supply;

/// The time of last use of pages.
#[derive(Default)]
pub(super) struct Retain {
    /// Number of ticks so far.
    now: u32,
    /// The tick in which a block was last freed, by segment and page. 0 means unknown.
    used: Vec<Vec<u32>>,
}

/// A whole free handle, or a free segment.
struct Idle {
    block: BlockId,
    start: u64,
    end: u64,
    used: u32,
}

impl Idle {
    fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

impl Millpond {
    /// Returns whether at least one tick has passed.
    #[inline]
    pub(super) fn notes_use(&self) -> bool {
        self.retain.now > 0
    }

    /// Records that a block was used until now.
    pub(super) fn note_use(&mut self, id: BlockId) {
        let (start, end) = (self.lists.space.address(id), self.lists.space.end(id));
        self.stamp(self.lists.space.segment(id), start, end, self.retain.now);
    }

    /// Clears the time of last use of these addresses, because other pages may be mapped there.
    pub(super) fn forget_use(&mut self, segment: u32, start: u64, end: u64) {
        self.stamp(segment, start, end, 0);
    }

    fn stamp(&mut self, segment: u32, start: u64, end: u64, tick: u32) {
        let (first, end) = self.pages_of(segment, start, end);
        let used = &mut self.retain.used;
        let segment = segment as usize;
        if used.len() <= segment {
            used.resize_with(segment + 1, Vec::new);
        }
        if used[segment].len() < end {
            used[segment].resize(end, 0);
        }
        used[segment][first..end].fill(tick);
    }

    /// Returns the pages that these addresses overlap. A plain segment is only returned whole, so it counts as one
    /// page.
    fn pages_of(&self, segment: u32, start: u64, end: u64) -> (usize, usize) {
        match &self.held[segment as usize] {
            Held::Paged { range, .. } => {
                let page = |offset: u64| (offset / self.page) as usize;
                let base = range.address();
                (page(start - base), page(end - 1 - base) + 1)
            }
            Held::Plain(_) | Held::Gone => (0, 1),
        }
    }

    /// Advances the time by `ticks` and returns idle memory to the source.
    pub(super) fn pass_time(&mut self, supply: &mut Supply<'_>, ticks: u32) {
        self.retain.now = self.retain.now.saturating_add(ticks);
        let conf = &self.conf.retain;
        let cached = supply.reserved().saturating_sub(self.live + self.lent);
        let low = conf.low_water.of(self.peak);
        let flooded = conf.high_water.is_some_and(|high| cached > high.of(self.peak));
        let decay = conf.decay;
        if ticks == 0 || cached <= low || (decay == 0 && !flooded) {
            return;
        }
        let now = u64::from(self.retain.now);
        let mut idle = self.idle_handles();
        idle.retain(|handle| flooded || u64::from(handle.used) + decay < now);
        if idle.is_empty() || !supply.can_wait() {
            return;
        }
        self.give_back_idle(supply, idle, cached - low);
    }

    /// Returns at most `most` bytes to the source. The handles that were unused for the longest time are chosen first,
    /// and among equals those with the highest addresses.
    fn give_back_idle(&mut self, supply: &mut Supply<'_>, mut idle: Vec<Idle>, most: u64) {
        idle.sort_by_key(|handle| (handle.used, std::cmp::Reverse(handle.start)));
        let mut left = most;
        idle.retain(|handle| {
            let fits = handle.bytes() <= left;
            left -= if fits { handle.bytes() } else { 0 };
            fits
        });
        // The highest handles are returned first, because the front part of a block keeps its identifier.
        idle.sort_by_key(|handle| std::cmp::Reverse(handle.start));
        let mut handles = idle.into_iter().peekable();
        while let Some(mut run) = handles.next() {
            while let Some(before) = handles.next_if(|h| h.block == run.block && h.end == run.start) {
                run.start = before.start;
            }
            self.give_back(supply, run.block, run.start, run.end);
        }
    }

    /// Returns the whole free handles and free segments. Those without a recorded use count as used now.
    fn idle_handles(&mut self) -> Vec<Idle> {
        let mut parts: Vec<(Entry, u64, u64)> = Vec::new();
        for (number, _) in self.lists.iter() {
            // The list is ordered with larger blocks first.
            let large = self
                .lists
                .free(number)
                .take_while(|entry| entry.bytes >= self.page);
            parts.extend(large.filter_map(|entry| {
                let (start, end) = self.returnable(&entry)?;
                Some((entry, start, end))
            }));
        }
        let mut idle = Vec::new();
        for (entry, start, end) in parts {
            let segment = self.lists.space.segment(entry.id);
            let mut at = start;
            while at < end {
                let next = self.end_of_handle(segment, at).unwrap_or(end).min(end);
                let used = match self.last_use(segment, at, next) {
                    0 => {
                        self.stamp(segment, at, next, self.retain.now);
                        self.retain.now
                    }
                    tick => tick,
                };
                idle.push(Idle {
                    block: entry.id,
                    start: at,
                    end: next,
                    used,
                });
                at = next;
            }
        }
        idle
    }

    /// Returns the end of the handle that begins at `at`, or `None` on a device without pages.
    fn end_of_handle(&self, segment: u32, at: u64) -> Option<u64> {
        let Held::Paged { range, pages } = &self.held[segment as usize] else {
            return None;
        };
        let base = range.address();
        Some(base + pages.at_least(at - base, 1))
    }

    fn last_use(&self, segment: u32, start: u64, end: u64) -> u32 {
        let (first, end) = self.pages_of(segment, start, end);
        let used = self.retain.used.get(segment as usize);
        let pages = used.and_then(|used| used.get(first..end.min(used.len())));
        pages.and_then(|pages| pages.iter().copied().max()).unwrap_or(0)
    }
}
