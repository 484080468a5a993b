//! The mapped parts of a range, and the sizes of their handles.

use millpond_os::Part;
use std::collections::BTreeMap;

/// A mapped part with handles of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) part: Part,
    pub(super) handle: u64,
    /// The offset of its memory in the source's memfd. It has no meaning without a memfd.
    pub(super) pages: u64,
    /// Whether this is an old mapping. The handles belong to other addresses now.
    pub(super) stale: bool,
}

impl Run {
    /// Creates a run in use.
    pub(super) fn new(part: Part, handle: u64, pages: u64) -> Self {
        Self {
            part,
            handle,
            pages,
            stale: false,
        }
    }

    pub(super) fn handles(self) -> u64 {
        self.part.bytes / self.handle
    }

    /// Returns the part of the source's memfd that is mapped in the run.
    pub(super) fn pages(self) -> Part {
        Part {
            offset: self.pages,
            bytes: self.part.bytes,
        }
    }

    /// Returns the piece of the run from `offset` to `end`.
    fn piece(self, offset: u64, end: u64) -> Self {
        Self {
            part: Part {
                offset,
                bytes: end - offset,
            },
            pages: self.pages + (offset - self.part.offset),
            ..self
        }
    }

    /// Returns whether a piece of the run consists of whole handles.
    fn is_whole(self, piece: Self) -> bool {
        let offset = piece.part.offset - self.part.offset;
        offset.is_multiple_of(self.handle) && piece.part.bytes.is_multiple_of(self.handle)
    }
}

/// The mapped parts of one range.
///
/// Invariant: runs do not overlap, and each is in one piece: one system call opened it or moved it to its place, so that
/// one call can move any part of it. Neighbours are therefore never merged.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// By offset.
    runs: BTreeMap<u64, Run>,
}

impl Runs {
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.values().copied()
    }

    /// Returns whether nothing is mapped in a part.
    pub(super) fn is_free(&self, part: Part) -> bool {
        let below = self.runs.range(..part.end()).next_back();
        below.is_none_or(|(_, run)| run.part.end() <= part.offset)
    }

    /// Returns whether every byte of a part is mapped.
    pub(super) fn covers(&self, part: Part) -> bool {
        let mut at = part.offset;
        while at < part.end() {
            let run = self.runs.range(..=at).next_back();
            match run.map(|(_, run)| run.part.end()) {
                Some(end) if end > at => at = end,
                _ => return false,
            }
        }
        part.end() >= part.offset
    }

    /// Returns the runs in a part, each with its piece inside the part.
    fn cut(&self, part: Part) -> impl Iterator<Item = (Run, Run)> + '_ {
        let first = self.runs.range(..=part.offset).next_back();
        let first = first.map_or(part.offset, |(first, _)| *first);
        let runs = self.runs.range(first..part.end().max(first)).map(|(_, run)| *run);
        runs.filter(move |run| run.part.overlaps(part)).map(move |run| {
            let (offset, end) = (run.part.offset.max(part.offset), run.part.end().min(part.end()));
            (run, run.piece(offset, end))
        })
    }

    /// Returns the pieces of runs inside a part, in use or stale.
    pub(super) fn within(&self, part: Part) -> impl Iterator<Item = Run> + '_ {
        self.cut(part).map(|(_, piece)| piece)
    }

    /// Returns the pieces of stale runs inside a part that consist of whole handles.
    pub(super) fn stale(&self, part: Part) -> Vec<Run> {
        let whole = |(run, piece): (Run, Run)| (run.stale && run.is_whole(piece)).then_some(piece);
        self.cut(part).filter_map(whole).collect()
    }

    /// Returns the runs in a part, or `None` if the part has a gap or a stale run or its ends split a handle.
    pub(super) fn whole(&self, part: Part) -> Option<Vec<Run>> {
        let mut at = part.offset;
        let mut found = Vec::new();
        for (run, piece) in self.cut(part) {
            if piece.part.offset > at || run.stale || !run.is_whole(piece) {
                return None;
            }
            at = piece.part.end();
            found.push(piece);
        }
        (at == part.end()).then_some(found)
    }

    /// Returns the offsets inside a part at which runs begin, without its ends, or `None` if the part is not fully
    /// mapped.
    pub(super) fn joints(&self, part: Part) -> Option<Vec<u64>> {
        let (mut at, mut joints) = (part.offset, Vec::new());
        for piece in self.within(part) {
            let offset = piece.part.offset;
            if offset > at {
                return None;
            }
            if offset > part.offset {
                joints.push(offset);
            }
            at = piece.part.end();
        }
        (at >= part.end()).then_some(joints)
    }

    pub(super) fn insert(&mut self, run: Run) {
        self.runs.insert(run.part.offset, run);
    }

    /// Removes pieces of runs, splitting runs if necessary.
    pub(crate) fn remove(&mut self, pieces: &[Run]) {
        for piece in pieces {
            let (first, last) = (piece.part.offset, piece.part.end());
            let Some((&offset, &run)) = self.runs.range(..=first).next_back() else {
                continue;
            };
            self.runs.remove(&offset);
            if offset < first {
                self.insert(run.piece(offset, first));
            }
            if last < run.part.end() {
                self.insert(run.piece(last, run.part.end()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, bytes: u64) -> Part {
        Part { offset, bytes }
    }

    #[test]
    fn only_whole_handles_are_found() {
        let mut runs = Runs::default();
        runs.insert(Run::new(part(0, 60), 30, 0));
        runs.insert(Run::new(part(60, 20), 20, 0));
        runs.insert(Run::new(part(100, 10), 10, 0));
        let handles = |p| {
            runs.whole(p)
                .map(|found| found.iter().map(|r| r.handles()).sum::<u64>())
        };
        assert_eq!(handles(part(0, 80)), Some(3));
        assert_eq!(handles(part(30, 50)), Some(2));
        assert_eq!(handles(part(10, 50)), None);
        assert_eq!(handles(part(30, 40)), None);
        assert_eq!(handles(part(60, 50)), None);
        assert_eq!(handles(part(80, 10)), None);
        assert_eq!(handles(part(200, 10)), None);
        assert!(runs.covers(part(5, 70)) && runs.covers(part(100, 10)) && runs.covers(part(500, 0)));
        assert!(!runs.covers(part(70, 40)) && !runs.covers(part(0, 81)) && !runs.covers(part(90, 5)));
        assert!(runs.is_free(part(80, 20)) && runs.is_free(part(110, 5)));
        assert!(!runs.is_free(part(79, 2)) && !runs.is_free(part(99, 2)) && !runs.is_free(part(0, 500)));
        assert_eq!(runs.joints(part(10, 65)), Some(vec![60]));
        assert_eq!(runs.joints(part(60, 20)), Some(vec![]));
        assert_eq!(runs.joints(part(60, 21)), None);
        assert_eq!(runs.joints(part(80, 25)), None);
        assert_eq!(runs.joints(part(110, 1)), None);
        let found = runs.whole(part(30, 30)).expect("whole");
        runs.remove(&found);
        assert_eq!(
            runs.iter().map(|r| r.part).collect::<Vec<_>>(),
            [part(0, 30), part(60, 20), part(100, 10)]
        );
    }
}
