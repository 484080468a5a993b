//! A simulated device that records the order of work between streams.
//!
//! Every stream has a clock that advances with each use of memory. A stream has *seen* another stream up to a clock
//! value if its later work starts after that point. An event holds the clocks that its stream had seen, and a wait
//! passes them on. All streams have seen the work for which the host has waited. By the contract of
//! [`Supply`](millpond_engine::Supply), the calls that return or move memory wait for the device. Calls that map pages at a second address
//! do not, and a stale mapping must not end before the work that uses it.

use super::contents::Contents;
use millpond_engine::{Event, Range, Segment, Simulated, Source, SourceError};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

type Clocks = BTreeMap<u32, u64>;

fn join(into: &mut Clocks, from: &Clocks) {
    for (stream, tick) in from {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*tick);
    }
}

/// A simulated device with checks.
pub(crate) struct Watch {
    pub(crate) device: Simulated,
    now: Clocks,
    seen: BTreeMap<u32, Clocks>,
    events: HashMap<Event, Clocks>,
    host: RefCell<Clocks>,
    /// Bytes that the device has provided and that were not returned, counted independently.
    pub(crate) held: u64,
    pub(crate) peak_held: u64,
    /// Number of calls that take or commit, and number of calls that can fail.
    pub(crate) taking_calls: u64,
    pub(crate) failing_calls: u64,
    /// Memory that was freed and not allocated again: start, end, and the clocks of its last users.
    freed: Vec<(u64, u64, Clocks)>,
    /// Stale mappings: start, end, and the clocks of the users of the memory there.
    stale: Vec<(u64, u64, Vec<Clocks>)>,
    pub(crate) contents: Contents,
}

impl Watch {
    pub(crate) fn new(device: Simulated) -> Self {
        Self {
            device,
            now: Clocks::new(),
            seen: BTreeMap::new(),
            events: HashMap::new(),
            host: RefCell::new(Clocks::new()),
            held: 0,
            peak_held: 0,
            taking_calls: 0,
            failing_calls: 0,
            freed: Vec::new(),
            stale: Vec::new(),
            contents: Contents::default(),
        }
    }

    /// Records the end of the last use of some memory by these streams.
    pub(crate) fn freed(&mut self, address: u64, bytes: u64, streams: impl IntoIterator<Item = u32>) {
        let mut users = Clocks::new();
        for stream in streams {
            let tick = self.now.entry(stream).or_default();
            *tick += 1;
            users.insert(stream, *tick);
        }
        self.freed.push((address, address + bytes, users));
    }

    /// Records that a stream gets some memory. Asserts that its work starts after every earlier use. Returns whether
    /// the memory was used before.
    pub(crate) fn handed_out(&mut self, address: u64, bytes: u64, taker: u32) -> bool {
        let end = address + bytes;
        let mut reused = false;
        let mut left = Vec::new();
        for (first, last, users) in std::mem::take(&mut self.freed) {
            if last <= address || end <= first {
                left.push((first, last, users));
                continue;
            }
            reused = true;
            for (stream, tick) in &users {
                let seen = self.seen.get(&taker).and_then(|s| s.get(stream)).copied();
                let by_host = self.host.borrow().get(stream).copied();
                assert!(
                    *stream == taker || seen.max(by_host) >= Some(*tick),
                    "{address:#x} goes to stream {taker} while stream {stream} may still use it"
                );
            }
            if first < address {
                left.push((first, address, users.clone()));
            }
            if end < last {
                left.push((end, last, users));
            }
        }
        self.freed = left;
        reused
    }

    fn took(&mut self, bytes: u64) {
        self.held += bytes;
        self.peak_held = self.peak_held.max(self.held);
        assert!(
            self.device.capacity().is_none_or(|c| self.held <= c),
            "more than there is"
        );
    }
}

impl Source for Watch {
    fn page_bytes(&self) -> u64 {
        self.device.page_bytes()
    }
    fn is_paged(&self) -> bool {
        self.device.is_paged()
    }
    fn capacity(&self) -> Option<u64> {
        self.device.capacity()
    }
    fn device_bytes(&self) -> Option<u64> {
        self.device.device_bytes()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.device.free_bytes()
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.taking_calls += 1;
        self.failing_calls += 1;
        let segment = self.device.take(bytes)?;
        self.took(segment.bytes());
        self.contents
            .map(segment.address(), segment.bytes(), segment.bytes());
        Ok(segment)
    }
    fn give(&mut self, segment: Segment) {
        self.synchronize_host();
        self.held -= segment.bytes();
        self.contents.unmap(segment.address(), segment.bytes());
        self.device.give(segment);
    }
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.failing_calls += u64::from(self.is_paged());
        self.device.reserve(bytes)
    }
    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        self.taking_calls += 1;
        self.failing_calls += 1;
        self.device.commit(range, offset, bytes, handle_bytes)?;
        self.took(bytes);
        self.contents.map(range.address() + offset, bytes, handle_bytes);
        Ok(())
    }
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.synchronize_host();
        self.held -= bytes;
        self.contents.unmap(range.address() + offset, bytes);
        self.device.decommit(range, offset, bytes)
    }
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.failing_calls += 1;
        self.synchronize_host();
        let handles = self.device.move_pages(from, to, bytes)?;
        let (start, target) = (from.0.address() + from.1, to.0.address() + to.1);
        self.contents.carry(start, target, bytes);
        Ok(handles)
    }
    fn can_alias(&self) -> bool {
        self.device.can_alias()
    }
    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        self.failing_calls += 1;
        let handles = self.device.alias(parts, to)?;
        let mut target = to.0.address() + to.1;
        for (range, offset, bytes) in parts {
            let start = range.address() + offset;
            self.contents.carry(start, target, *bytes);
            let end = start + bytes;
            let within = self
                .freed
                .iter()
                .filter(|(first, last, _)| *first < end && start < *last);
            let within: Vec<_> = within
                .map(|(first, last, users)| ((*first).max(start), (*last).min(end), users.clone()))
                .collect();
            // The pages were used at their old addresses, so their users are those of the new addresses too.
            for (first, last, users) in &within {
                self.freed
                    .push((first - start + target, last - start + target, users.clone()));
            }
            self.stale
                .push((start, end, within.into_iter().map(|part| part.2).collect()));
            target += bytes;
        }
        // Otherwise, pages that are mapped back and forth would double their records each time.
        self.freed.sort_unstable();
        self.freed.dedup();
        Ok(handles)
    }
    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        let end = address + bytes;
        let ended = |(start, last, _): &mut (u64, u64, Vec<Clocks>)| address <= *start && *last <= end;
        for (start, _, users) in self.stale.extract_if(.., ended) {
            for (stream, tick) in users.iter().flatten() {
                assert!(
                    self.host.borrow().get(stream) >= Some(tick),
                    "the mapping at {start:#x} ends while stream {stream} may still use it"
                );
            }
        }
        self.device.unmap(address, bytes)
    }
    fn can_relocate(&self) -> bool {
        self.device.can_relocate()
    }
    fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        self.taking_calls += 1;
        self.failing_calls += 1;
        self.synchronize_host();
        self.device.relocate(range, offset, bytes, kept)?;
        // The old handle is released after the new ones exist.
        self.took(kept.iter().map(|part| part.1).sum());
        self.held -= bytes;
        let address = |offset| range.address() + offset;
        let page = self.device.page_bytes();
        let kept: Vec<_> = kept.iter().map(|(at, bytes)| (address(*at), *bytes)).collect();
        self.contents.relocate(address(offset), bytes, &kept, page);
        Ok(())
    }
    fn release(&mut self, range: Range) {
        self.device.release(range);
    }
    fn record_event(&mut self, stream: u32) -> Event {
        let event = self.device.record_event(stream);
        let mut clocks = self.seen.get(&stream).cloned().unwrap_or_default();
        clocks.insert(stream, self.now.get(&stream).copied().unwrap_or(0));
        self.events.insert(event, clocks);
        event
    }
    fn is_complete(&self, event: Event) -> bool {
        let complete = self.device.is_complete(event);
        if complete && let Some(clocks) = self.events.get(&event) {
            join(&mut self.host.borrow_mut(), clocks);
        }
        complete
    }
    fn wait_event(&mut self, stream: u32, event: Event) {
        if let Some(clocks) = self.events.get(&event) {
            join(self.seen.entry(stream).or_default(), clocks);
        }
        self.device.wait_event(stream, event);
    }
    fn synchronize(&mut self) {
        self.synchronize_host();
        self.device.synchronize();
    }
    fn can_wait(&self, stream: Option<u32>) -> bool {
        self.device.can_wait(stream)
    }
}

impl Watch {
    fn synchronize_host(&mut self) {
        assert!(self.can_wait(None), "a wait while a stream is captured");
        join(&mut self.host.borrow_mut(), &self.now);
    }
}
