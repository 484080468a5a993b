//! Giving free memory back with time.
//!
//! Time comes in as ticks. From the first one on each page notes the tick in which a block in it was last freed; the
//! page handles that nothing has touched for [`decay`](crate::RetainConf::decay) ticks are those the program did not
//! need in that whole time, at its height neither. They go back at a tick, never in an allocation or free, and placing
//! goes on as if they had never been there. Until the first tick nothing is noted.
//!
//! A low point of all free bytes was no measure: what is free at the program's height lies in pieces between live
//! blocks, and what is free as whole handles at a tick may all be needed again.
//!
//! Free blocks of two streams that share a handle keep it: only a compaction joins them.

#[cfg(test)]
mod tests;

use super::{Held, Millpond};
use crate::index::Entry;
use crate::space::BlockId;
use crate::supply::Supply;

/// When pages were last used.
#[derive(Default)]
pub(super) struct Retain {
    /// Ticks so far.
    now: u32,
    /// By segment and page, the tick in which a block in it was last freed; 0 where that is not known.
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
    /// Whether time passes here.
    #[inline]
    pub(super) fn notes_use(&self) -> bool {
        self.retain.now > 0
    }

    /// Notes that a block was used until now.
    pub(super) fn note_use(&mut self, id: BlockId) {
        let (start, end) = (self.lists.space.address(id), self.lists.space.end(id));
        self.stamp(self.lists.space.segment(id), start, end, self.retain.now);
    }

    /// Forgets when these addresses were used: other pages may come here.
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

    /// The pages that hold a byte of these addresses. A plain segment goes only whole, and is one.
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

    /// So many ticks have passed.
    pub(super) fn pass_time(&mut self, supply: &mut Supply<'_>, ticks: u32) {
        self.retain.now = self.retain.now.saturating_add(ticks);
        let conf = &self.conf.retain;
        let cached = supply.reserved().saturating_sub(self.live);
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

    /// Gives back no more than so many bytes, longest unused and highest first.
    fn give_back_idle(&mut self, supply: &mut Supply<'_>, mut idle: Vec<Idle>, most: u64) {
        idle.sort_by_key(|handle| (handle.used, std::cmp::Reverse(handle.start)));
        let mut left = most;
        idle.retain(|handle| {
            let fits = handle.bytes() <= left;
            left -= if fits { handle.bytes() } else { 0 };
            fits
        });
        // Back to front: the front part of a block keeps its name.
        idle.sort_by_key(|handle| std::cmp::Reverse(handle.start));
        let mut handles = idle.into_iter().peekable();
        while let Some(mut run) = handles.next() {
            while let Some(before) = handles.next_if(|h| h.block == run.block && h.end == run.start) {
                run.start = before.start;
            }
            self.give_back(supply, run.block, run.start, run.end);
        }
    }

    /// Whole free handles and free segments. Those of which nothing is known yet count as used now.
    fn idle_handles(&mut self) -> Vec<Idle> {
        let mut parts: Vec<(Entry, u64, u64)> = Vec::new();
        for (number, _) in self.lists.iter() {
            // Larger ones come first.
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

    /// The end of the handle that begins here; none on a device without pages.
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
