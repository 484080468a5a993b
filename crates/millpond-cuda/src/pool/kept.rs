//! A source that retains returned memory, for memory whose addresses a graph has recorded.

use millpond_engine::{
    Event, Range, Segment, Source, SourceError, forward_bytes, forward_defaults, forward_streams,
};
use std::collections::{BTreeMap, BTreeSet};

/// A wrapper of a source. It either forwards all calls, or it takes only whole segments and retains them for later requests.
pub(crate) struct Kept<S> {
    inner: S,
    /// The retained free memory, from address to bytes, with adjacent parts joined. `None` if all calls are forwarded.
    ///
    /// The inner source owns all of it, and gives it back when it is dropped.
    kept: Option<BTreeMap<u64, u64>>,
    /// The addresses at which segments of the source begin. Parts are not joined across them, even if the addresses are adjacent.
    begins: BTreeSet<u64>,
}

impl<S: Source> Kept<S> {
    pub(super) fn new(inner: S, keeps: bool) -> Self {
        Self {
            inner,
            kept: keeps.then(BTreeMap::new),
            begins: BTreeSet::new(),
        }
    }

    pub(super) fn inner(&self) -> &S {
        &self.inner
    }

    pub(super) fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn is_passed(&self) -> bool {
        self.kept.is_none()
    }
}

/// Takes `bytes` bytes from the smallest retained part that is large enough.
fn carve(kept: &mut BTreeMap<u64, u64>, bytes: u64) -> Option<u64> {
    let fitting = kept.iter().filter(|(_, room)| **room >= bytes);
    let (&address, &room) = fitting.min_by_key(|(_, room)| **room)?;
    kept.remove(&address);
    if room > bytes {
        kept.insert(address + bytes, room - bytes);
    }
    Some(address)
}

/// Inserts a part and joins it with its neighbours.
fn join(kept: &mut BTreeMap<u64, u64>, begins: &BTreeSet<u64>, mut address: u64, mut bytes: u64) {
    if !begins.contains(&address)
        && let Some((&before, &room)) = kept.range(..address).next_back()
        && before + room == address
    {
        kept.remove(&before);
        (address, bytes) = (before, room + bytes);
    }
    let end = address + bytes;
    if !begins.contains(&end)
        && let Some(room) = kept.remove(&end)
    {
        bytes += room;
    }
    kept.insert(address, bytes);
}

impl<S: Source> Source for Kept<S> {
    forward_bytes!();
    forward_streams!();
    forward_defaults!();

    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    fn is_paged(&self) -> bool {
        self.is_passed() && self.inner.is_paged()
    }

    fn is_complete(&self, event: Event) -> bool {
        self.inner.is_complete(event)
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        match self.kept.as_mut().and_then(|kept| carve(kept, bytes)) {
            Some(address) => Ok(Segment::new(address, bytes)),
            None => {
                let segment = self.inner.take(bytes)?;
                if self.kept.is_some() {
                    self.begins.insert(segment.address());
                }
                Ok(segment)
            }
        }
    }

    fn give(&mut self, segment: Segment) {
        match &mut self.kept {
            None => self.inner.give(segment),
            Some(kept) => join(kept, &self.begins, segment.address(), segment.bytes()),
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        if self.is_passed() {
            return self.inner.reserve(bytes);
        }
        Err(SourceError::Unsupported {
            operation: "reserve addresses: memory of a graph consists of whole segments",
        })
    }

    fn commit(&mut self, range: &Range, offset: u64, bytes: u64, handle: u64) -> Result<(), SourceError> {
        self.inner.commit(range, offset, bytes, handle)
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.inner.decommit(range, offset, bytes)
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.inner.move_pages(from, to, bytes)
    }

    fn release(&mut self, range: Range) {
        self.inner.release(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::Simulated;

    fn used(source: &Kept<Simulated>) -> u64 {
        (1 << 30) - source.inner().free_bytes().expect("a size")
    }

    #[test]
    fn returned_memory_is_retained_and_reused() {
        let mut source = Kept::new(Simulated::new().with_capacity(Some(1 << 30)), true);
        assert!(!source.is_paged());
        let first = source.take(4096).expect("memory");
        let second = source.take(4096).expect("memory");
        let (at, next) = (first.address(), second.address());
        assert_eq!(used(&source), 8192);
        source.give(first);
        assert_eq!(used(&source), 8192, "nothing goes back");
        let half = source.take(1024).expect("of what is kept");
        assert_eq!((half.address(), used(&source)), (at, 8192));
        let rest = source.take(3072).expect("of what is kept");
        source.give(rest);
        source.give(half);
        let whole = source.take(4096).expect("joined again");
        assert_eq!((whole.address(), used(&source)), (at, 8192));
        source.give(whole);
        source.give(second);
        // Two segments are not joined, even if they are adjacent.
        let large = source.take(8192).expect("more");
        assert_eq!(used(&source), 16384);
        assert!(large.address() != at && large.address() != next);
        assert!(source.reserve(4096).is_err());
    }

    #[test]
    fn calls_are_forwarded_if_no_memory_is_retained() {
        let mut source = Kept::new(Simulated::new().with_capacity(Some(1 << 30)), false);
        assert!(source.is_paged());
        let segment = source.take(4096).expect("memory");
        source.give(segment);
        assert_eq!(used(&source), 0);
    }
}
