//! Records which pages of a range are backed, and by handles of which size.

/// The backed pages of one range, by index. A handle is only moved or returned whole.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    page: u64,
    /// For each page, the first page and the number of pages of its handle, or `None` if the page is not mapped.
    handles: Vec<Option<(u32, u32)>>,
}

impl Pages {
    pub(super) fn new(page: u64) -> Self {
        Self {
            page,
            handles: Vec::new(),
        }
    }

    fn index(&self, offset: u64) -> usize {
        (offset / self.page) as usize
    }

    /// Records new handles of `handle` bytes each.
    pub(super) fn map(&mut self, offset: u64, bytes: u64, handle: u64) {
        let (mut at, end) = (self.index(offset), self.index(offset + bytes));
        if self.handles.len() < end {
            self.handles.resize(end, None);
        }
        let pages = self.index(handle).max(1);
        while at < end {
            self.handles[at..at + pages].fill(Some((at as u32, pages as u32)));
            at += pages;
        }
    }

    /// Removes the handles mapped at `[offset, offset + bytes)`.
    pub(super) fn unmap(&mut self, offset: u64, bytes: u64) {
        let (first, end) = (self.index(offset), self.index(offset + bytes));
        self.handles[first..end].fill(None);
    }

    /// Returns the sizes of the handles mapped at `[offset, offset + bytes)`, in order.
    pub(super) fn sizes(&self, offset: u64, bytes: u64) -> Vec<u64> {
        let (mut at, end) = (self.index(offset), self.index(offset + bytes));
        let mut sizes = Vec::new();
        while at < end {
            let Some((first, pages)) = self.handles[at] else {
                debug_assert!(false, "page {at} is not mapped");
                break;
            };
            debug_assert_eq!(first as usize, at, "a handle is taken whole");
            sizes.push(u64::from(pages) * self.page);
            at += pages as usize;
        }
        sizes
    }

    /// Returns the start and end offset of the whole handles inside a mapped part, or `None` if there is no whole
    /// handle.
    pub(super) fn whole(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let (mut first, mut end) = (from.div_ceil(self.page) as usize, self.index(to));
        if first >= end {
            return None;
        }
        let (start, pages) = (*self.handles.get(first)?)?;
        if (start as usize) < first {
            first = (start + pages) as usize;
        }
        let (start, pages) = (*self.handles.get(end - 1)?)?;
        if (start + pages) as usize > end {
            end = start as usize;
        }
        (first < end).then(|| (first as u64 * self.page, end as u64 * self.page))
    }

    /// Returns the start and end offset of the handle that contains `offset`, or `None` if nothing is mapped there.
    pub(super) fn handle_at(&self, offset: u64) -> Option<(u64, u64)> {
        let (first, pages) = (*self.handles.get(self.index(offset))?)?;
        let start = u64::from(first) * self.page;
        Some((start, start + u64::from(pages) * self.page))
    }

    /// Returns the end of the shortest run of handles that begins at `from` and has at least `bytes`.
    pub(super) fn at_least(&self, from: u64, bytes: u64) -> u64 {
        let last = self.index(from + bytes.max(1) - 1);
        match self.handles.get(last).copied().flatten() {
            Some((start, pages)) => u64::from(start + pages) * self.page,
            None => from + bytes,
        }
    }

    /// Returns the start of a run of whole handles that ends at `to`. The run is as short as possible, but it has at
    /// least `bytes` if `from` and `most` allow this. It never begins before `from` or exceeds `most` bytes.
    pub(super) fn run_below(&self, from: u64, to: u64, bytes: u64, most: u64) -> u64 {
        let mut start = to;
        while start > from && to - start < bytes {
            let Some((first, _)) = self.handles.get(self.index(start) - 1).copied().flatten() else {
                break;
            };
            let next = u64::from(first) * self.page;
            if to - next > most {
                break;
            }
            start = next;
        }
        start
    }

    /// Asserts that handles are whole.
    pub(super) fn check(&self) {
        for (at, handle) in self.handles.iter().enumerate() {
            if let Some((first, pages)) = handle {
                let (first, end) = (*first as usize, (*first + *pages) as usize);
                assert!(first <= at && at < end, "page {at} names a handle elsewhere");
                assert!(
                    self.handles[first..end].iter().all(|h| h == handle),
                    "handle at page {first} is cut"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_handles_count() {
        let mut pages = Pages::new(10);
        pages.map(0, 60, 30);
        pages.map(60, 20, 20);
        assert_eq!(pages.whole(0, 80), Some((0, 80)));
        assert_eq!(pages.whole(5, 80), Some((30, 80)));
        assert_eq!(pages.whole(30, 75), Some((30, 60)));
        assert_eq!(pages.whole(31, 59), None);
        assert_eq!(pages.whole(4, 6), None);
        assert_eq!(pages.at_least(0, 31), 60);
        assert_eq!(pages.run_below(0, 80, 30, 80), 30);
        assert_eq!(pages.run_below(0, 80, 30, 49), 60);
        assert_eq!(pages.run_below(0, 80, 100, 80), 0);
        assert_eq!(pages.run_below(0, 80, 1, 10), 80);
        assert_eq!(pages.sizes(30, 50), [30, 20]);
        pages.unmap(30, 50);
        assert_eq!(pages.whole(0, 30), Some((0, 30)));
        pages.check();
    }
}
