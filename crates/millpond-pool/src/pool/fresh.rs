//! The memory that nobody has written since the source gave it.

use std::collections::BTreeMap;

/// Parts of a pool's memory that still read as zero. They neither overlap nor touch.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    /// The end of each part, by its start.
    parts: BTreeMap<u64, u64>,
}

impl Fresh {
    /// Records that the source has given these bytes or discarded their contents.
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

    /// Records that these bytes may no longer be zero.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        self.use_up(start, end, |_, _| {});
    }

    /// Records that these bytes may no longer be zero. Calls `written` with the start and the end of each part that might
    /// already have been non-zero.
    pub(crate) fn use_up(&mut self, start: u64, end: u64, mut written: impl FnMut(u64, u64)) {
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
                written(at, from);
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
            written(at, end);
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
            let mut fresh = Fresh::default();
            let mut model = [false; 64];
            for (add, start, bytes) in steps {
                let end = start + bytes;
                let part = start as usize..end as usize;
                if add {
                    fresh.add(start, end);
                    model[part].fill(true);
                } else {
                    let mut told = [false; 64];
                    fresh.use_up(start, end, |from, until| told[from as usize..until as usize].fill(true));
                    for at in part {
                        prop_assert_eq!(told[at], !model[at], "at {}", at);
                        model[at] = false;
                    }
                }
                let mut last = None;
                for (from, until) in &fresh.parts {
                    prop_assert!(from < until && last.is_none_or(|end| end < *from));
                    prop_assert!(model[*from as usize..*until as usize].iter().all(|zero| *zero));
                    last = Some(*until);
                }
                let known: u64 = fresh.parts.iter().map(|(from, until)| until - from).sum();
                prop_assert_eq!(known, model.iter().filter(|zero| **zero).count() as u64);
            }
        }
    }
}
