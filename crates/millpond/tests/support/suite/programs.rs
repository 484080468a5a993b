//! Compares random programs with the model after each call.

use super::super::memory::{is_stamped, stamp};
use super::super::model::{self, Handle};
use super::super::program::{Op, program};
use super::of_pages;
use millpond::engine::{Range, Segment, Source};
use millpond::source::MemorySource;
use proptest::test_runner::{Config, TestRunner};

/// The pages of a source in these tests.
pub(crate) const PAGES: u64 = 40;
/// The most stale mappings that a program leaves.
const STALE: usize = 4;

/// The functions with which a run accesses memory, for sources with memory.
pub(crate) struct Eyes<S> {
    pub(crate) write: fn(&S, u64, u64, u64),
    pub(crate) holds: fn(&S, u64, u64, u64) -> bool,
}

/// A source and its model, which receive the same calls.
pub(crate) struct Pair<S> {
    pub(crate) source: S,
    page: u64,
    eyes: Eyes<S>,
    /// The number of used pages.
    used: u64,
    next_value: u64,
    ranges: Vec<(Range, model::Range)>,
    segments: Vec<(Segment, Handle)>,
    /// True if a call that the model allows may fail.
    pub(crate) may_fail: bool,
    pub(crate) failures: u64,
}

impl<S: Source> Pair<S> {
    pub(crate) fn new(source: S, page: u64, eyes: Eyes<S>) -> Self {
        let (ranges, segments) = (Vec::new(), Vec::new());
        Self {
            source,
            page,
            eyes,
            used: 0,
            next_value: 1,
            ranges,
            segments,
            may_fail: false,
            failures: 0,
        }
    }

    /// Returns true if an outcome agrees with the model. Injected failures are counted.
    fn agrees<T, E: std::fmt::Debug>(&mut self, outcome: &Result<T, E>, allowed: bool, op: &Op) -> bool {
        if self.may_fail && allowed && outcome.is_err() {
            self.failures += 1;
            return false;
        }
        assert_eq!(outcome.is_ok(), allowed, "{op:?}: {:?}", outcome.as_ref().err());
        allowed
    }

    pub(crate) fn step(&mut self, op: &Op) {
        let page = self.page;
        let fits = |pages: u64, used: u64| used + pages <= PAGES;
        self.next_value += 1;
        let value = self.next_value << 32;
        match *op {
            Op::Take { pages } => {
                let outcome = self.source.take(pages * page);
                if self.agrees(&outcome, fits(pages, self.used), op)
                    && let Ok(segment) = outcome
                {
                    (self.eyes.write)(&self.source, segment.address(), pages * page, value);
                    self.used += pages;
                    self.segments.push((segment, Handle { pages, value }));
                }
            }
            Op::Give { which } => {
                if let Some(nth) = which.checked_rem(self.segments.len()) {
                    let (segment, handle) = self.segments.swap_remove(nth);
                    self.used -= handle.pages;
                    self.source.give(segment);
                }
            }
            Op::Reserve { pages } if self.source.is_paged() && self.ranges.len() < 6 => {
                let outcome = self.source.reserve(pages * page);
                if self.agrees(&outcome, true, op)
                    && let Ok(range) = outcome
                {
                    self.ranges.push((
                        range,
                        model::Range {
                            pages,
                            ..model::Range::default()
                        },
                    ));
                }
            }
            Op::Release { which } => {
                if let Some(nth) = which.checked_rem(self.ranges.len())
                    && self.ranges[nth].1.handles.is_empty()
                {
                    self.end_stale(0);
                    self.source.release(self.ranges.swap_remove(nth).0);
                }
            }
            Op::Commit {
                which,
                page: at,
                handles,
                handle,
            } => self.commit((which, at, handles, handle), value, op),
            Op::Decommit { which, handles } => {
                if let Some(nth) = which.checked_rem(self.ranges.len())
                    && let Some((at, pages, count)) = self.ranges[nth].1.row(which / 7, handles)
                {
                    self.end_stale(0);
                    let (range, model) = &mut self.ranges[nth];
                    assert_eq!(self.source.decommit(range, at * page, pages * page), count);
                    model.remove(at, pages);
                    self.used -= pages;
                }
            }
            Op::Move {
                which,
                handles,
                to,
                page: target,
            } => self.move_pages((which, handles), (to, target), op),
            Op::Relocate { which, kept } => self.relocate(which, kept, op),
            Op::Reserve { .. } => {}
        }
        self.look(op);
    }

    fn commit(&mut self, (which, at, handles, handle): (usize, u64, u64, u64), value: u64, op: &Op) {
        let Some(nth) = which.checked_rem(self.ranges.len()) else {
            return;
        };
        let (page, pages) = (self.page, handles * handle);
        let (range, model) = &self.ranges[nth];
        // Overlapping ranges are misuse, which simulated devices assert against.
        if !model.is_free(at, pages) {
            return;
        }
        let outcome = self.source.commit(range, at * page, pages * page, handle * page);
        let address = range.address();
        if !self.agrees(&outcome, self.used + pages <= PAGES, op) {
            return;
        }
        for n in 0..handles {
            let (first, value) = (at + n * handle, value + n);
            (self.eyes.write)(&self.source, address + first * page, handle * page, value);
            self.ranges[nth]
                .1
                .handles
                .insert(first, Handle { pages: handle, value });
        }
        self.used += pages;
    }

    fn move_pages(&mut self, (which, handles): (usize, usize), (to, target): (usize, u64), op: &Op) {
        let Some(from) = which.checked_rem(self.ranges.len()) else {
            return;
        };
        let to = to % self.ranges.len();
        let Some((at, pages, count)) = self.ranges[from].1.row(which / 7, handles) else {
            return;
        };
        if !self.ranges[to].1.is_free(target, pages) {
            return;
        }
        let (origin, place) = (&self.ranges[from].0, &self.ranges[to].0);
        let page = self.page;
        let place = (place, target * page);
        let aliases = which.is_multiple_of(2) && self.source.can_alias();
        let outcome = if aliases {
            self.source.alias(&[(origin, at * page, pages * page)], place)
        } else {
            self.source.move_pages((origin, at * page), place, pages * page)
        };
        if !self.agrees(&outcome, true, op) {
            return;
        }
        assert_eq!(outcome, Ok(count));
        for (first, handle) in self.ranges[from].1.remove(at, pages) {
            self.ranges[to].1.handles.insert(first - at + target, handle);
            if aliases {
                self.ranges[from].1.stale.insert(first, handle);
            }
        }
        self.end_stale(STALE);
    }

    fn relocate(&mut self, which: usize, kept: u8, op: &Op) {
        let Some(nth) = which
            .checked_rem(self.ranges.len())
            .filter(|_| self.source.can_relocate())
        else {
            return;
        };
        let Some((at, pages, _)) = self.ranges[nth].1.row(which / 7, 1) else {
            return;
        };
        let kept: Vec<u64> = (0..pages)
            .filter(|page| kept & 1 << page != 0)
            .map(|n| at + n)
            .collect();
        if kept.is_empty() {
            return;
        }
        self.end_stale(0);
        let page = self.page;
        let parts: Vec<_> = kept.iter().map(|at| (at * page, page)).collect();
        let range = &self.ranges[nth].0;
        let outcome = self.source.relocate(range, at * page, pages * page, &parts);
        let more = kept.len() as u64;
        if !self.agrees(&outcome, self.used + more <= PAGES, op) {
            return;
        }
        let model = &mut self.ranges[nth].1;
        for (_, handle) in model.remove(at, pages) {
            let value = handle.value;
            model
                .handles
                .extend(kept.iter().map(|at| (*at, Handle { pages: 1, value })));
        }
        self.used = self.used + more - pages;
    }

    /// Ends stale mappings until at most `left` of them are left.
    fn end_stale(&mut self, left: usize) {
        let mut stale: usize = self.ranges.iter().map(|(_, model)| model.stale.len()).sum();
        for (range, model) in &mut self.ranges {
            while stale > left
                && let Some((at, handle)) = model.stale.pop_first()
            {
                let address = range.address() + at * self.page;
                assert_eq!(self.source.unmap(address, handle.pages * self.page), 1);
                stale -= 1;
            }
        }
    }

    /// Compares the whole state with the model.
    fn look(&self, op: &Op) {
        let page = self.page;
        assert_eq!(
            self.source.free_bytes(),
            Some((PAGES - self.used) * page),
            "{op:?}"
        );
        for (segment, handle) in &self.segments {
            let held = (self.eyes.holds)(&self.source, segment.address(), handle.pages * page, handle.value);
            assert!(held, "a segment changed: {op:?}");
        }
        for (range, model) in &self.ranges {
            for (at, handle) in model.handles.iter().chain(&model.stale) {
                let address = range.address() + at * page;
                let held = (self.eyes.holds)(&self.source, address, handle.pages * page, handle.value);
                assert!(held, "page {at} changed: {op:?}");
            }
        }
    }

    /// Frees everything, and checks that nothing was lost.
    pub(crate) fn end(mut self) {
        for (segment, _) in self.segments.drain(..) {
            self.source.give(segment);
        }
        self.end_stale(0);
        for (range, model) in self.ranges.drain(..) {
            for (at, handle) in model.handles {
                assert_eq!(
                    self.source
                        .decommit(&range, at * self.page, handle.pages * self.page),
                    1
                );
            }
            self.source.release(range);
        }
        assert_eq!(
            self.source.free_bytes(),
            Some(PAGES * self.page),
            "bytes are lost"
        );
    }
}

pub(crate) fn blind<S>() -> Eyes<S> {
    Eyes {
        write: |_, _, _, _| {},
        holds: |_, _, _, _| true,
    }
}

pub(crate) fn seeing<S: MemorySource>() -> Eyes<S> {
    Eyes {
        write: stamp,
        holds: is_stamped,
    }
}

fn agree<S: Source>(make: impl Fn(Option<u64>) -> Option<S>, eyes: fn() -> Eyes<S>) {
    if of_pages(&make, PAGES).is_none() {
        return;
    }
    let config = Config {
        cases: 48,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&program(80), |ops| {
        let Some((source, page)) = of_pages(&make, PAGES) else {
            return Ok(());
        };
        let mut pair = Pair::new(source, page, eyes());
        ops.iter().for_each(|op| pair.step(op));
        pair.end();
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn random_programs_agree_with_the_model<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    agree(make, blind);
}

pub(crate) fn random_programs_keep_contents<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    agree(make, seeing);
}
