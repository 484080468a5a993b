//! The committed parts of a range, and the sizes of their handles.

use millpond_os::Part;
use std::collections::BTreeMap;

/// A committed part with handles of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) part: Part,
    pub(super) handle: u64,
}

impl Run {
    pub(super) fn handles(self) -> u64 {
        self.part.bytes / self.handle
    }
}

/// The committed parts of one range.
///
/// Invariant: runs do not overlap, and each is in one piece: one system call opened it or moved it to its place, so that
/// one call can move any part of it. Neighbours are therefore never merged.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// By offset: bytes, and bytes of a handle.
    runs: BTreeMap<u64, (u64, u64)>,
}

impl Runs {
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let run = |(offset, (bytes, handle)): (&u64, &(u64, u64))| Run {
            part: Part {
                offset: *offset,
                bytes: *bytes,
            },
            handle: *handle,
        };
        self.runs.iter().map(run)
    }

    /// Returns whether nothing in a part is committed.
    pub(super) fn is_free(&self, part: Part) -> bool {
        let below = self.runs.range(..part.end()).next_back();
        below.is_none_or(|(offset, (bytes, _))| offset + bytes <= part.offset)
    }

    /// Returns whether every byte of a part is committed.
    pub(super) fn covers(&self, part: Part) -> bool {
        let mut at = part.offset;
        while at < part.end() {
            let run = self.runs.range(..=at).next_back();
            match run.map(|(offset, (bytes, _))| offset + bytes) {
                Some(end) if end > at => at = end,
                _ => return false,
            }
        }
        part.end() >= part.offset
    }

    /// Returns the runs in a part, or `None` if the part has a gap or its ends split a handle.
    pub(super) fn whole(&self, part: Part) -> Option<Vec<Run>> {
        let (&first, _) = self.runs.range(..=part.offset).next_back()?;
        let mut at = part.offset;
        let mut found = Vec::new();
        for (offset, (bytes, handle)) in self.runs.range(first..part.end()) {
            let end = (offset + bytes).min(part.end());
            // There is a gap before this run, or the part begins behind it.
            if *offset > at || end <= at {
                return None;
            }
            if !(at - offset).is_multiple_of(*handle) || !(end - at).is_multiple_of(*handle) {
                return None;
            }
            found.push(Run {
                part: Part {
                    offset: at,
                    bytes: end - at,
                },
                handle: *handle,
            });
            at = end;
        }
        (at == part.end()).then_some(found)
    }

    /// Returns the offsets inside a part at which runs begin, without its ends, or `None` if the part is not fully
    /// committed.
    pub(super) fn joints(&self, part: Part) -> Option<Vec<u64>> {
        let (&first, _) = self.runs.range(..=part.offset).next_back()?;
        let (mut at, mut joints) = (part.offset, Vec::new());
        for (offset, (bytes, _)) in self.runs.range(first..part.end()) {
            if *offset > at || offset + bytes <= at {
                return None;
            }
            if *offset > part.offset {
                joints.push(*offset);
            }
            at = offset + bytes;
        }
        (at >= part.end()).then_some(joints)
    }

    pub(super) fn insert(&mut self, run: Run) {
        self.runs.insert(run.part.offset, (run.part.bytes, run.handle));
    }

    /// Removes the runs that [`whole`](Self::whole) returned, splitting runs if necessary.
    pub(crate) fn remove(&mut self, found: &[Run]) {
        for run in found {
            let Some((&offset, &(bytes, handle))) = self.runs.range(..=run.part.offset).next_back() else {
                continue;
            };
            let (end, cut) = (offset + bytes, run.part.end());
            self.runs.remove(&offset);
            if offset < run.part.offset {
                self.runs.insert(offset, (run.part.offset - offset, handle));
            }
            if cut < end {
                self.runs.insert(cut, (end - cut, handle));
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
        runs.insert(Run {
            part: part(0, 60),
            handle: 30,
        });
        runs.insert(Run {
            part: part(60, 20),
            handle: 20,
        });
        runs.insert(Run {
            part: part(100, 10),
            handle: 10,
        });
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
