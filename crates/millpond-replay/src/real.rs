//! Adapts a real source to a replay.

use crate::paced::Paced;
use millpond_engine::{Counted, Counts, Event, Limit, Limited, Range, Segment, Source, SourceError};
use std::collections::{BTreeMap, BTreeSet};

/// Creates a stream of the source for the recording's stream with the given number, and returns the new
/// stream's number in the source. The stream must live as long as the source.
pub type Meet<S> = Box<dyn FnMut(&mut S, u32) -> u32>;

/// A real source, such as a GPU's memory, for the time of one replay.
///
/// It reports to the policy the same limit as a simulated [`Device`](crate::Device) of that size, and nothing
/// else about the memory. The real capacity shows only when the source refuses a request. An event completes
/// where the recording says, and not before the source has completed it. Each stream of the recording gets a
/// stream of the source when it is first ordered against another one.
pub struct Real<S> {
    source: Limited<Counted<S>>,
    limited: bool,
    meet: Meet<S>,
    /// Maps stream numbers of the recording to stream numbers of the source.
    streams: BTreeMap<u32, u32>,
    holding: bool,
    held: BTreeSet<Event>,
    last: Option<Event>,
}

impl<S: Source> Real<S> {
    /// Wraps a source. The program may use `bytes` of it, or all of it if `bytes` is `None`.
    pub fn new(source: S, bytes: Option<u64>, meet: Meet<S>) -> Self {
        Self {
            source: Limited::new(Counted::new(source), Limit::new(bytes.unwrap_or(u64::MAX))),
            limited: bytes.is_some(),
            meet,
            streams: BTreeMap::new(),
            holding: false,
            held: BTreeSet::new(),
            last: None,
        }
    }

    /// Returns the wrapped source.
    #[must_use]
    pub fn source(&self) -> &S {
        self.source.inner().inner()
    }

    /// Returns the counts of calls that reached the source, and of memory that is held from it.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.source.inner().counts()
    }

    /// Returns the number of streams that were created.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    fn stream(&mut self, number: u32) -> u32 {
        if let Some(known) = self.streams.get(&number) {
            return *known;
        }
        let met = (self.meet)(self.source.inner_mut().inner_mut(), number);
        self.streams.insert(number, met);
        met
    }
}

impl<S: Source> Paced for Real<S> {
    fn set_holding(&mut self, hold: bool) {
        self.holding = hold;
    }

    fn last_event(&self) -> Option<Event> {
        self.last
    }

    fn complete(&mut self, event: Event) {
        self.held.remove(&event);
        // The recorded device had completed the event here. This device may need a moment longer, but the
        // block must become free at this call.
        if !self.source.is_complete(event) {
            self.source.synchronize();
        }
    }
}

impl<S: Source> Source for Real<S> {
    fn page_bytes(&self) -> u64 {
        self.source.page_bytes()
    }

    fn is_paged(&self) -> bool {
        self.source.is_paged()
    }

    fn capacity(&self) -> Option<u64> {
        self.limited.then(|| self.source.limit().bytes())
    }

    fn device_bytes(&self) -> Option<u64> {
        self.source.device_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.limited.then(|| self.source.limit().remaining())
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.source.take(bytes)
    }

    fn give(&mut self, segment: Segment) {
        self.source.give(segment);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.source.reserve(bytes)
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        self.source.commit(range, offset, bytes, handle_bytes)
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.source.decommit(range, offset, bytes)
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.source.move_pages(from, to, bytes)
    }

    fn release(&mut self, range: Range) {
        self.source.release(range);
    }

    fn record_event(&mut self, stream: u32) -> Event {
        let stream = self.stream(stream);
        let event = self.source.record_event(stream);
        if self.holding {
            self.held.insert(event);
        }
        self.last = Some(event);
        event
    }

    fn is_complete(&self, event: Event) -> bool {
        !self.held.contains(&event) && self.source.is_complete(event)
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        let stream = self.stream(stream);
        self.source.wait_event(stream, event);
    }

    fn synchronize(&mut self) {
        self.source.synchronize();
        self.held.clear();
    }

    fn wait_for_mappings(&mut self) {
        self.source.wait_for_mappings();
    }

    fn can_alias(&self) -> bool {
        self.source.can_alias()
    }

    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        self.source.alias(parts, to)
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        self.source.unmap(address, bytes)
    }

    fn can_relocate(&self) -> bool {
        self.source.can_relocate()
    }

    fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        self.source.relocate(range, offset, bytes, kept)
    }

    fn can_wait(&self, stream: Option<u32>) -> bool {
        match stream {
            None => self.source.can_wait(None),
            Some(number) => {
                let met = self.streams.get(&number);
                met.is_none_or(|met| self.source.can_wait(Some(*met)))
            }
        }
    }
}
