//! Moves pages from one part of memory in use to another.
//!
//! A block that grows to another place need not be copied: its pages are moved, and the origin is left without pages and
//! reads as zero. The system moves one piece per call. A part may consist of several pieces, for example after pages were
//! moved into it. Its seams record where these pieces begin.

use super::{Host, HugePages, VmaBoundaries};
use millpond_os::{self as os, Map, Part};

/// The place of an open part.
#[derive(Clone, Copy)]
pub(crate) enum Held {
    Range(u64),
    Segment(u64),
}

impl Host {
    /// Implements [`MemorySource::transfer`](crate::MemorySource::transfer).
    pub(super) fn transfer_pages(&mut self, from: u64, to: u64, bytes: u64) -> bool {
        // A locked part cannot be moved while it is locked, and explicit huge pages cannot be moved at all.
        let fixed = self.rules.lock || matches!(self.rules.huge, HugePages::Explicit(_));
        let whole = [from, to, bytes]
            .iter()
            .all(|at| at.is_multiple_of(os::page_bytes()));
        if fixed || !whole || bytes == 0 || from.abs_diff(to) < bytes {
            return false;
        }
        let (Some((origin, part)), Some((target, place))) =
            (self.open_part(from, bytes), self.open_part(to, bytes))
        else {
            return false;
        };
        let Some(pieces) = self.pieces(origin, part) else {
            return false;
        };
        // Each piece is put into the middle of a mapping, which makes two more mappings.
        if self.mappings.charge(2 * pieces.len() as u64).is_err() {
            return false;
        }
        let (Some(old), Some(new)) = (self.map_of(origin), self.map_of(target)) else {
            return false;
        };
        let at = |piece: Part| piece.offset - part.offset + place.offset;
        for (done, piece) in pieces.iter().enumerate() {
            // This call refuses the pages of a memfd, which may be mapped elsewhere too.
            // SAFETY: `open_part` has checked that both parts are open. The owner of the blocks in them calls this with exclusive access
            // to both, so no other thread accesses their bytes.
            let moved = unsafe { old.transfer_pages(*piece, new, at(*piece)) };
            if moved.is_ok() {
                continue;
            }
            if done == 0 {
                return false;
            }
            // Some of the pieces were already moved, so the rest is copied.
            // SAFETY: as above. A move that failed leaves both parts open.
            let _ = unsafe { old.copy(*piece, new, at(*piece)) };
            // SAFETY: as above.
            let _ = unsafe { old.clear(*piece) };
        }
        if let Some(seams) = self.seams_of(target) {
            for piece in pieces {
                seams.add(at(piece));
                seams.add(at(piece) + piece.bytes);
            }
        }
        true
    }

    /// Returns the memory of an open part to the system. The part stays open and reads as zero. A failed call changes
    /// nothing.
    pub(super) fn empty(&self, held: Held, part: Part) -> Option<()> {
        let map = self.map_of(held)?;
        let (Some(backing), Held::Range(start)) = (&self.backing, held) else {
            return map.empty(part).ok();
        };
        let page = os::page_bytes();
        if part.bytes == 0 || !part.offset.is_multiple_of(page) || !part.bytes.is_multiple_of(page) {
            return None;
        }
        for (done, run) in self.ranges.get(&start)?.runs.within(part).enumerate() {
            match backing.memfd.free(run.pages()) {
                Err(_) if done == 0 => return None,
                // SAFETY: `open_part` has found that the part is open. The owner of the blocks in it calls this with exclusive access to
                // them, so no other thread accesses their bytes.
                Err(_) => unsafe { map.clear(run.part) }.ok()?,
                Ok(()) => {}
            }
        }
        Some(())
    }

    /// Returns the open part at an address, if it belongs to this source and is fully open.
    pub(super) fn open_part(&self, address: u64, bytes: u64) -> Option<(Held, Part)> {
        let inside = |start: &u64, room: u64| {
            let offset = address - start;
            let end = offset.checked_add(bytes)?;
            (end <= room).then_some(Part { offset, bytes })
        };
        if let Some((start, reserved)) = self.ranges.range(..=address).next_back()
            && let Some(part) = inside(start, reserved.bytes)
        {
            let is_open = reserved.runs.covers(part)
                && !self
                    .backing
                    .as_ref()
                    .is_some_and(|backing| backing.memfd.is_inherited());
            return is_open.then_some((Held::Range(*start), part));
        }
        let (start, taken) = self.segments.range(..=address).next_back()?;
        let part = inside(start, taken.map.whole().bytes)?;
        Some((Held::Segment(*start), part))
    }

    /// Splits an open part into pieces that the system moves in one call each.
    fn pieces(&self, held: Held, part: Part) -> Option<Vec<Part>> {
        let mut cuts = match held {
            Held::Range(start) => {
                let reserved = self.ranges.get(&start)?;
                let mut cuts = reserved.runs.joints(part)?;
                cuts.extend(reserved.seams.inside(part));
                cuts
            }
            Held::Segment(start) => self.segments.get(&start)?.seams.inside(part).collect(),
        };
        cuts.extend([part.offset, part.end()]);
        cuts.sort_unstable();
        cuts.dedup();
        let piece = |ends: &[u64]| Part {
            offset: ends[0],
            bytes: ends[1] - ends[0],
        };
        Some(cuts.windows(2).map(piece).collect())
    }

    pub(super) fn map_of(&self, held: Held) -> Option<&Map> {
        match held {
            Held::Range(start) => self.ranges.get(&start).map(|reserved| &reserved.map),
            Held::Segment(start) => self.segments.get(&start).map(|taken| &taken.map),
        }
    }

    pub(super) fn seams_of(&mut self, held: Held) -> Option<&mut VmaBoundaries> {
        match held {
            Held::Range(start) => self.ranges.get_mut(&start).map(|reserved| &mut reserved.seams),
            Held::Segment(start) => self.segments.get_mut(&start).map(|taken| &mut taken.seams),
        }
    }
}
