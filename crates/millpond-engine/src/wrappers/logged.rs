//! A wrapper that passes every call to a callback.

use super::{SourceEvent, SourceWrapper};
use crate::source::Source;
use std::fmt;

/// A source that passes every call to a callback after the call has finished.
///
/// A panic in the callback propagates to the caller. Memory that the call took is lost until the source is dropped. The
/// panic leaves an [`Engine`](crate::Engine) over the source half changed, so the engine must not be used again. A pool
/// detects this and stops using its engine.
///
/// ```
/// use millpond_engine::{Logged, Simulated, Source, SourceEvent};
///
/// let mut lines = Vec::new();
/// let mut source = Logged::new(Simulated::new(), |event: &SourceEvent<'_>| lines.push(event.to_string()));
/// let segment = source.take(512)?;
/// source.give(segment);
/// drop(source);
/// assert_eq!(lines, ["take 512 at 0x1000000000", "give 512 at 0x1000000000"]);
/// # Ok::<(), millpond_engine::SourceError>(())
/// ```
pub struct Logged<S, F> {
    inner: S,
    sink: F,
}

impl<S: fmt::Debug, F> fmt::Debug for Logged<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, F: FnMut(&SourceEvent<'_>)> Logged<S, F> {
    /// Wraps a source and passes every call to `sink`.
    pub fn new(inner: S, sink: F) -> Self {
        Self { inner, sink }
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

impl<S: Source, F: FnMut(&SourceEvent<'_>)> SourceWrapper for Logged<S, F> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn after(&mut self, event: &SourceEvent<'_>) {
        (self.sink)(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulated;

    #[test]
    fn each_call_is_shown_with_its_outcome() {
        let mut lines = Vec::new();
        let device = Simulated::new().with_capacity(Some(4 << 20));
        let mut source = Logged::new(device, |event: &SourceEvent<'_>| {
            lines.push((event.kind(), event.error().is_some(), event.to_string()));
        });
        let range = source.reserve(16 << 20).expect("addresses");
        source.commit(&range, 0, 4 << 20, 2 << 20).expect("fits");
        assert!(source.commit(&range, 8 << 20, 2 << 20, 2 << 20).is_err());
        source
            .move_pages((&range, 0), (&range, 8 << 20), 2 << 20)
            .expect("moves");
        source.decommit(&range, 8 << 20, 2 << 20);
        let event = source.record_event(3);
        source.wait_event(4, event);
        source.synchronize();
        drop(source);
        let kinds: Vec<_> = lines.iter().map(|(kind, failed, _)| (*kind, *failed)).collect();
        use crate::CallKind::{Commit, Decommit, Move, RecordEvent, Reserve, Synchronize, WaitEvent};
        let streams = [(RecordEvent, false), (WaitEvent, false), (Synchronize, false)];
        let pages = [
            (Reserve, false),
            (Commit, false),
            (Commit, true),
            (Move, false),
            (Decommit, false),
        ];
        assert_eq!(kinds, [&pages[..], &streams[..]].concat());
        let text: Vec<&str> = lines.iter().map(|(_, _, line)| line.as_str()).collect();
        assert_eq!(text[1], "commit 4194304 at 0x1000000000 in handles of 2097152");
        assert!(text[2].ends_with("failed: 2.00 MiB requested, but the device has 0 B of 4.00 MiB left"));
        assert_eq!(
            text[3],
            "move 2097152 from 0x1000000000 to 0x1000800000, 1 handles"
        );
        assert_eq!(text[6], "wait_event 0 on stream 4");
    }
}
