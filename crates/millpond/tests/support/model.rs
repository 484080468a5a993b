//! A simple model of a source: the places of the handles, and the number of used pages.

use std::collections::BTreeMap;

/// One committed handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) pages: u64,
    /// The value that was written into it.
    pub(crate) value: u64,
}

/// One range: its pages, and its handles by the page they begin at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Range {
    pub(crate) pages: u64,
    pub(crate) handles: BTreeMap<u64, Handle>,
    /// Old mappings of handles that are mapped elsewhere now, by the page they begin at.
    pub(crate) stale: BTreeMap<u64, Handle>,
}

impl Range {
    pub(crate) fn is_free(&self, page: u64, pages: u64) -> bool {
        let apart = |(at, handle): (&u64, &Handle)| at + handle.pages <= page || page + pages <= *at;
        page + pages <= self.pages && self.handles.iter().chain(&self.stale).all(apart)
    }

    /// Returns the n-th handle and at most `most` that follow it without a gap: first page, pages, handles.
    pub(crate) fn row(&self, which: usize, most: usize) -> Option<(u64, u64, u64)> {
        let nth = which.checked_rem(self.handles.len())?;
        let (mut pages, mut count) = (0, 0);
        let (first, _) = self.handles.iter().nth(nth)?;
        for (at, handle) in self.handles.range(first..).take(most) {
            if *at != first + pages {
                break;
            }
            pages += handle.pages;
            count += 1;
        }
        Some((*first, pages, count))
    }

    pub(crate) fn remove(&mut self, page: u64, pages: u64) -> Vec<(u64, Handle)> {
        let found: Vec<_> = self
            .handles
            .range(page..page + pages)
            .map(|(at, h)| (*at, *h))
            .collect();
        self.handles.retain(|at, _| *at < page || page + pages <= *at);
        found
    }
}
