//! A set of ranges of addresses.

use std::collections::BTreeMap;

/// The parts of a pool's memory that have a property, for example that they still read as zero. They neither overlap nor touch.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    /// The end of each part, by its start.
    parts: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds these bytes.
    pub(crate) fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        if let Some((&before, &until)) = self.parts.range(..start).next_back()
            && until == start
        {
            self.parts.remove(&before);
            start = before;
        }
        if let Some(until) = self.parts.remove(&end) {
            end = until;
        }
        self.parts.insert(start, end);
    }

    /// Removes these bytes. Returns the number of bytes that were in the set.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> u64 {
        let mut missing = 0;
        self.remove_telling(start, end, |from, until| missing += until - from);
        end.saturating_sub(start) - missing
    }

    /// Removes these bytes. Calls `missing` with the start and the end of each part that was not in the set.
    pub(crate) fn remove_telling(&mut self, start: u64, end: u64, mut missing: impl FnMut(u64, u64)) {
        if start >= end {
            return;
        }
        let mut at = start;
        let below = self.parts.range(..start).next_back();
        let mut next = below.filter(|(_, until)| **until > start);
        if next.is_none() {
            next = self.parts.range(start..end).next();
        }
        while let Some((&from, &until)) = next {
            if from > at {
                missing(at, from);
            }
            at = until.min(end);
            self.parts.remove(&from);
            if from < start {
                self.parts.insert(from, start);
            }
            if until > end {
                self.parts.insert(end, until);
            }
            next = self.parts.range(at..end).next();
        }
        if at < end {
            missing(at, end);
        }
    }

    /// Calls `each` with the start and the end of each part of these bytes that is in the set.
    pub(crate) fn within(&self, start: u64, end: u64, mut each: impl FnMut(u64, u64)) {
        if start >= end {
            return;
        }
        let below = self.parts.range(..start).next_back();
        for (from, until) in below.into_iter().chain(self.parts.range(start..end)) {
            if *until > start {
                each(start.max(*from), end.min(*until));
            }
        }
    }

    /// Returns the start and the end of each part of these bytes that is not in the set.
    pub(crate) fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut at, mut missing) = (start, Vec::new());
        self.within(start, end, |from, until| {
            if at < from {
                missing.push((at, from));
            }
            at = until;
        });
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// Moves the parts inside the `bytes` bytes at `from` to `to`, and replaces the parts there.
    pub(crate) fn shift(&mut self, from: u64, to: u64, bytes: u64) {
        let mut moved = Vec::new();
        self.within(from, from + bytes, |start, end| {
            moved.push((start - from, end - from));
        });
        self.remove(from, from + bytes);
        self.remove(to, to + bytes);
        for (start, end) in moved {
            self.add(to + start, to + end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_byte_map(steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..60)) {
            let mut parts = RangeSet::default();
            let mut model = [false; 64];
            for (add, start, bytes) in steps {
                let end = start + bytes;
                let part = start as usize..end as usize;
                if add {
                    parts.add(start, end);
                    model[part].fill(true);
                } else {
                    let mut told = [false; 64];
                    let missing = parts.missing(start, end);
                    let mut within = 0;
                    parts.within(start, end, |from, until| within += until - from);
                    prop_assert_eq!(within, model[part.clone()].iter().filter(|there| **there).count() as u64);
                    let mut removed = Vec::new();
                    parts.remove_telling(start, end, |from, until| removed.push((from, until)));
                    prop_assert_eq!(missing, removed.clone());
                    for (from, until) in removed {
                        told[from as usize..until as usize].fill(true);
                    }
                    for at in part {
                        prop_assert_eq!(told[at], !model[at], "at {}", at);
                        model[at] = false;
                    }
                }
                let mut last = None;
                for (from, until) in &parts.parts {
                    prop_assert!(from < until && last.is_none_or(|end| end < *from));
                    prop_assert!(model[*from as usize..*until as usize].iter().all(|there| *there));
                    last = Some(*until);
                }
                let known: u64 = parts.parts.iter().map(|(from, until)| until - from).sum();
                prop_assert_eq!(known, model.iter().filter(|there| **there).count() as u64);
            }
        }
    }

    #[test]
    fn parts_move_with_their_gaps() {
        let mut parts = RangeSet::default();
        parts.add(10, 20);
        parts.add(30, 50);
        parts.add(104, 130);
        // The parts at the target are replaced.
        parts.shift(15, 100, 20);
        let mut found = Vec::new();
        parts.within(0, 200, |start, end| found.push((start, end)));
        assert_eq!(found, [(10, 15), (35, 50), (100, 105), (115, 130)]);
    }
}
