//! A wrapper that counts the calls to a source and their bytes.

use super::CallKind;
use super::held::Held;
use crate::error::SourceError;
use crate::source::{Event, Range, Segment, Source};
use crate::stats::Gauge;

/// Counts of one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of calls, including those that failed.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Bytes of the calls that did not fail. Always 0 for calls about streams.
    pub bytes: u64,
}

/// Counts of every kind of call, and the bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_kind: [Tally; CallKind::ALL.len()],
    held: Gauge,
}

impl Counts {
    /// Returns the counts of a kind of call.
    #[must_use]
    pub fn of(&self, kind: CallKind) -> Tally {
        self.by_kind[kind as usize]
    }

    /// Returns every kind with its counts.
    pub fn iter(&self) -> impl Iterator<Item = (CallKind, Tally)> + '_ {
        CallKind::ALL.into_iter().map(|kind| (kind, self.of(kind)))
    }

    /// Returns the bytes held from the source, taken or committed, and their peak.
    #[must_use]
    pub fn held(&self) -> Gauge {
        self.held
    }

    fn count(&mut self, kind: CallKind, bytes: u64) {
        let tally = &mut self.by_kind[kind as usize];
        tally.calls += 1;
        tally.bytes += bytes;
    }

    fn count_outcome<T>(&mut self, kind: CallKind, bytes: u64, outcome: &Result<T, SourceError>) {
        self.count(kind, if outcome.is_ok() { bytes } else { 0 });
        self.by_kind[kind as usize].failed += u64::from(outcome.is_err());
    }
}

/// A source that counts calls, failures and bytes of each kind.
#[derive(Debug)]
pub struct Counted<S> {
    inner: S,
    counts: Counts,
    held: Held,
}

impl<S> Counted<S> {
    /// Wraps a source and starts to count.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            counts: Counts::default(),
            held: Held::default(),
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the inner source.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Returns the inner source for calls that the wrapper does not support. The wrapper does not see these calls.
    #[doc(hidden)]
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S: Source> Source for Counted<S> {
    crate::forward_facts!();
    crate::forward_bytes!();

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let outcome = self.inner.take(bytes);
        self.counts.count_outcome(CallKind::Take, bytes, &outcome);
        if let Ok(segment) = &outcome {
            self.held.took(segment);
            self.counts.held.add(segment.bytes());
        }
        outcome
    }

    fn give(&mut self, segment: Segment) {
        let bytes = self.held.gave(&segment);
        self.inner.give(segment);
        self.counts.count(CallKind::Give, bytes);
        self.counts.held.sub(bytes);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        let outcome = self.inner.reserve(bytes);
        self.counts.count_outcome(CallKind::Reserve, bytes, &outcome);
        if let Ok(range) = &outcome {
            self.held.reserved(range);
        }
        outcome
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        let outcome = self.inner.commit(range, offset, bytes, handle_bytes);
        self.counts.count_outcome(CallKind::Commit, bytes, &outcome);
        if outcome.is_ok() {
            self.held.committed(range, bytes);
            self.counts.held.add(bytes);
        }
        outcome
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let handles = self.inner.decommit(range, offset, bytes);
        let bytes = if handles > 0 { bytes } else { 0 };
        self.held.decommitted(range, bytes);
        self.counts.count(CallKind::Decommit, bytes);
        self.counts.held.sub(bytes);
        handles
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let outcome = self.inner.move_pages(from, to, bytes);
        self.counts.count_outcome(CallKind::Move, bytes, &outcome);
        if outcome.is_ok() {
            self.held.moved(from.0, to.0, bytes);
        }
        outcome
    }

    fn release(&mut self, range: Range) {
        let committed = self.held.released(&range);
        self.counts.count(CallKind::Release, range.bytes());
        self.counts.held.sub(committed);
        self.inner.release(range);
    }

    fn record_event(&mut self, stream: u32) -> Event {
        self.counts.count(CallKind::RecordEvent, 0);
        self.inner.record_event(stream)
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        self.counts.count(CallKind::WaitEvent, 0);
        self.inner.wait_event(stream, event);
    }

    fn synchronize(&mut self) {
        self.counts.count(CallKind::Synchronize, 0);
        self.inner.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulated;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_call_is_counted_once() {
        let mut source = Counted::new(Simulated::new().with_capacity(Some(20 * MIB)));
        let segment = source.take(6 * MIB).expect("fits");
        assert!(source.take(60 * MIB).is_err());
        let range = source.reserve(64 * MIB).expect("addresses");
        source.commit(&range, 0, 8 * MIB, 2 * MIB).expect("fits");
        source
            .move_pages((&range, 0), (&range, 32 * MIB), 4 * MIB)
            .expect("moves");
        source.decommit(&range, 32 * MIB, 2 * MIB);
        source.give(segment);
        let event = source.record_event(0);
        source.wait_event(1, event);
        source.synchronize();
        let counts = *source.counts();
        let tally = |calls, failed, mib| Tally {
            calls,
            failed,
            bytes: mib * MIB,
        };
        assert_eq!(counts.of(CallKind::Take), tally(2, 1, 6));
        assert_eq!(counts.of(CallKind::Give), tally(1, 0, 6));
        assert_eq!(counts.of(CallKind::Reserve), tally(1, 0, 64));
        assert_eq!(counts.of(CallKind::Commit), tally(1, 0, 8));
        assert_eq!(counts.of(CallKind::Move), tally(1, 0, 4));
        assert_eq!(counts.of(CallKind::Decommit), tally(1, 0, 2));
        assert_eq!(
            counts.iter().skip(7).map(|(_, t)| t.calls).collect::<Vec<_>>(),
            [1, 1, 1]
        );
        assert_eq!((counts.held().current, counts.held().peak), (6 * MIB, 14 * MIB));
        source.decommit(&range, 4 * MIB, 4 * MIB);
        source.decommit(&range, 34 * MIB, 2 * MIB);
        source.release(range);
        assert_eq!(source.counts().of(CallKind::Release), tally(1, 0, 64));
        assert_eq!(source.counts().held().current, 0);
    }
}
