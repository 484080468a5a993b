//! Applies the memory settings (`madvise`, `mbind`, `mlock`) to new mappings.

use super::transfer::Held;
use super::{Host, HugePages, locking};
use millpond_engine::{Range, SourceError};
pub(crate) use millpond_os::{self as os, Errno, Map, Part};

impl Host {
    /// Opens a closed part of a range, with the memory that was taken for it, and applies the memory settings. The part is
    /// closed again if that fails.
    pub(super) fn open(&mut self, range: u64, part: Part, pages: u64) -> Result<(), SourceError> {
        let Some(reserved) = self.ranges.get(&range) else {
            return Ok(());
        };
        let (call, opened) = match &self.backing {
            Some(backing) => ("mmap", backing.memfd.open(&reserved.map, part, pages)),
            None => ("mprotect", reserved.map.open(part)),
        };
        opened.map_err(|error| self.refused(call, part.bytes, error))?;
        let locking = self.rules.lock.then(locking::shared);
        let dressed = self.dress(&reserved.map, part);
        drop(locking);
        if dressed.is_err()
            && let Some(reserved) = self.ranges.get_mut(&range)
        {
            // Nothing is charged for the part: the caller takes its charge back.
            self.used -= reserved.close(part, 0);
        }
        dressed
    }

    /// Advises the system not to rebuild the huge pages in which `part` begins and ends, because it was emptied. Without the
    /// advice, the system would eventually back these huge pages with memory again. No advice is given if the process may make
    /// no more mappings.
    pub(super) fn keep_small(&mut self, held: Held, part: Part) {
        if !self.may_be_huge() {
            return;
        }
        let huge = os::transparent_huge_page();
        let mut last = None;
        for edge in [part.offset, part.end()] {
            let page = Part {
                offset: edge & !(huge - 1),
                bytes: huge,
            };
            if edge == page.offset || last == Some(page.offset) || self.mappings.charge(2).is_err() {
                continue;
            }
            last = Some(page.offset);
            // The system refuses this if the page extends beyond this source's memory. In that case it is not a huge page.
            let advised = self.map_of(held).map(|map| map.advise_small(page));
            if let (Some(Ok(())), Some(seams)) = (advised, self.seams_of(held)) {
                seams.add(page.offset);
                seams.add(page.end());
            }
        }
    }

    /// Applies the memory settings to an open, fresh part.
    pub(super) fn dress(&self, map: &Map, part: Part) -> Result<(), SourceError> {
        let refused = |call, error| self.refused(call, part.bytes, error);
        if let Some(node) = self.rules.node {
            map.bind(part, node.number(), node.is_only())
                .map_err(|error| refused("mbind", error))?;
        }
        if self.is_huge(part) && (self.rules.huge == HugePages::Transparent || !self.faults_are_slow()) {
            // This is advice: a system built without huge pages refuses it, and the memory can still be used.
            let _ = map.advise_huge(part);
        }
        if self.rules.lock {
            map.lock(part)
                .map_err(|error| self.not_locked(part.bytes, error))?;
        } else if self.rules.populate {
            match map.populate(part) {
                // SAFETY: `dress` is called only with parts that were just opened. They hold zeros, and no other thread knows them.
                Err(Errno::INVAL) => unsafe { map.zero(part) },
                // This is how the system reports a lack of memory for a memfd.
                Err(Errno::FAULT) => Err(Errno::NOMEM),
                outcome => outcome,
            }
            .map_err(|error| refused("madvise", error))?;
        }
        Ok(())
    }

    /// Returns whether the system is slow to find huge pages. Returns false for a memfd: the system gives it huge pages only if it was
    /// configured to do so.
    pub(super) fn faults_are_slow(&self) -> bool {
        if self.backing.is_some() {
            return false;
        }
        let mut faults = self.faults.get();
        let slow = faults.are_slow();
        self.faults.set(faults);
        slow
    }

    /// Returns the error for memory that could not be locked.
    pub(super) fn not_locked(&self, requested: u64, error: Errno) -> SourceError {
        let (limit, locked) = (os::locked_limit(), os::locked_bytes().unwrap_or(0));
        match limit {
            // If the system got as far as faulting pages in, the count already includes the failed call.
            Some(limit) if error == Errno::PERM || locked.saturating_add(requested) > limit => {
                SourceError::Locked {
                    requested,
                    locked,
                    limit,
                }
            }
            _ => self.refused("mlock", requested, error),
        }
    }

    /// Tries again to close the parts inside `part` that could not be closed.
    pub(super) fn close_over(&mut self, range: &Range, part: Part) {
        if let Some(reserved) = self.ranges.get_mut(&range.address())
            && !reserved.unclosed.is_empty()
        {
            self.used -= reserved.close_over(part);
        }
    }
}
