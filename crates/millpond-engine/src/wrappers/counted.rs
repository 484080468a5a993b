//! A wrapper that counts the calls to a source and their bytes.

use super::held::HeldMemory;
use super::{CallKind, SourceEvent, SourceWrapper};
use crate::source::Source;
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
}

/// A source that counts calls, failures and bytes of each kind.
#[derive(Debug)]
pub struct Counted<S> {
    inner: S,
    counts: Counts,
    held: HeldMemory,
}

impl<S> Counted<S> {
    /// Wraps a source and starts to count.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            counts: Counts::default(),
            held: HeldMemory::default(),
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

impl<S: Source> SourceWrapper for Counted<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn after(&mut self, event: &SourceEvent<'_>) {
        let (taken, returned) = self.held.record(event);
        let bytes = match *event {
            SourceEvent::Reserve { bytes, .. }
            | SourceEvent::Move { bytes, .. }
            | SourceEvent::Alias { bytes, .. }
            | SourceEvent::Unmap { bytes, .. }
            | SourceEvent::Release { bytes, .. }
                if event.error().is_none() =>
            {
                bytes
            }
            _ => taken + returned,
        };
        let tally = &mut self.counts.by_kind[event.kind() as usize];
        tally.calls += 1;
        tally.failed += u64::from(event.error().is_some());
        tally.bytes += bytes;
        self.counts.held.add(taken);
        self.counts.held.sub(returned);
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
        let kept = [(34 * MIB, 2 * MIB)];
        source.relocate(&range, 34 * MIB, 2 * MIB, &kept).expect("fits");
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
        assert_eq!(counts.of(CallKind::Relocate), tally(1, 0, 4));
        assert_eq!(
            counts.iter().skip(10).map(|(_, t)| t.calls).collect::<Vec<_>>(),
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
