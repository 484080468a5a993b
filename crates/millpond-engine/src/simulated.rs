//! A simulated device with capacity, pages, events and injected failures.

use crate::error::SourceError;
use crate::source::{Event, Range, Segment, Source};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th call that [takes memory](crate::CallKind::takes_memory), counted from 0, fails with a lack of memory.
    OutOfMemoryAt(u64),
    /// The n-th call that [can fail](crate::CallKind::can_fail), counted from 0, fails with this driver code.
    DriverErrorAt(u64, i32),
}

/// A change of the memory behind addresses, as logged by a [`Simulated`] source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the addresses are backed by memory now.
    pub mapped: bool,
}

/// A simulated device, both plain and paged.
///
/// Plain segments get ascending addresses, unless a script of recorded addresses is given. An address is aligned to 2
/// MiB if the segment has at least that size, and to 512 bytes otherwise. The events of a stream complete at once,
/// unless [`hold_events`](Self::hold_events) is set.
#[derive(Debug)]
pub struct Simulated {
    capacity: Option<u64>,
    device: Option<u64>,
    used: u64,
    page: u64,
    paged: bool,
    next_address: u64,
    /// Committed handles: address to bytes.
    handles: BTreeMap<u64, u64>,
    /// Stale mappings: address to bytes.
    stale: BTreeMap<u64, u64>,
    aliases: bool,
    /// Allocated segments, to detect foreign ones: address to bytes.
    segments: BTreeMap<u64, u64>,
    script: VecDeque<(u64, u64)>,
    unscripted: u64,
    faults: Vec<Fault>,
    taking_calls: u64,
    failing_calls: u64,
    next_event: u64,
    hold_events: bool,
    pending_events: BTreeSet<Event>,
    captured: Option<u32>,
    log: Option<Vec<Change>>,
}

impl Simulated {
    /// Bytes of a page, as on current CUDA devices.
    pub const PAGE: u64 = 2 << 20;
    const FIRST_ADDRESS: u64 = 0x10_0000_0000;

    /// Creates a paged device without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self {
            capacity: None,
            device: None,
            used: 0,
            page: Self::PAGE,
            paged: true,
            next_address: Self::FIRST_ADDRESS,
            handles: BTreeMap::new(),
            stale: BTreeMap::new(),
            aliases: true,
            segments: BTreeMap::new(),
            script: VecDeque::new(),
            unscripted: 0,
            faults: Vec::new(),
            taking_calls: 0,
            failing_calls: 0,
            next_event: 0,
            hold_events: false,
            pending_events: BTreeSet::new(),
            captured: None,
            log: None,
        }
    }

    /// Limits the bytes that the device provides.
    #[must_use]
    pub fn with_capacity(mut self, bytes: Option<u64>) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets the bytes of the whole device. The capacity may be only a part of them, because of a limit or other
    /// programs. By default they are unknown.
    #[must_use]
    pub fn with_device_bytes(mut self, bytes: Option<u64>) -> Self {
        self.device = bytes;
        self
    }

    /// Sets whether the device is both plain and paged, or plain only.
    #[must_use]
    pub fn with_paging(mut self, paged: bool) -> Self {
        self.paged = paged;
        self
    }

    /// Sets whether handles can be mapped at a second address. CUDA devices support this, and the pages of a host do
    /// not. The default is `true`.
    #[must_use]
    pub fn with_aliases(mut self, aliases: bool) -> Self {
        self.aliases = aliases;
        self
    }

    /// Uses these (address, bytes) for plain segments, in order. An entry is used only if its size equals the request.
    #[must_use]
    pub fn with_script(mut self, segments: impl IntoIterator<Item = (u64, u64)>) -> Self {
        self.script = segments.into_iter().collect();
        self
    }

    /// Injects failures.
    #[must_use]
    pub fn with_faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults = faults.into_iter().collect();
        self
    }

    /// Keeps events pending until [`complete`](Self::complete) or a synchronisation.
    #[must_use]
    pub fn hold_events(mut self) -> Self {
        self.hold_events = true;
        self
    }

    /// Sets the stream that is being captured, if any. No wait for this stream or for the device is possible meanwhile.
    pub fn set_captured(&mut self, stream: Option<u32>) {
        self.captured = stream;
    }

    /// Logs changes of the memory behind addresses, for [`take_log`](Self::take_log).
    #[must_use]
    pub fn with_log(mut self) -> Self {
        self.log = Some(Vec::new());
        self
    }

    /// Returns the changes since the last call. Empty without a log.
    pub fn take_log(&mut self) -> Vec<Change> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Sets whether events recorded from now on wait for [`complete`](Self::complete).
    pub fn set_holding(&mut self, hold: bool) {
        self.hold_events = hold;
    }

    /// Returns the number of segments that were not served from the script although it had entries left.
    #[must_use]
    pub fn unscripted(&self) -> u64 {
        self.unscripted
    }

    /// Counts a segment that existed before the simulation began.
    pub fn adopt(&mut self, address: u64, bytes: u64) -> Segment {
        self.used += bytes;
        self.segments.insert(address, bytes);
        self.next_address = self.next_address.max(address.saturating_add(bytes));
        self.note(address, bytes, true);
        Segment::new(address, bytes)
    }

    /// Completes an event.
    pub fn complete(&mut self, event: Event) {
        self.pending_events.remove(&event);
    }

    /// Returns the event that the next call of `record_event` will create.
    #[must_use]
    pub fn next_event(&self) -> Event {
        Event(self.next_event)
    }

    fn out_of_memory(&self, requested: u64) -> SourceError {
        let capacity = self.capacity.unwrap_or(u64::MAX);
        SourceError::OutOfMemory {
            requested,
            free: capacity.saturating_sub(self.used),
            capacity,
        }
    }

    fn fault(&mut self, call: &'static str, takes: bool, requested: u64) -> Result<(), SourceError> {
        let (taking, failing) = (self.taking_calls, self.failing_calls);
        self.taking_calls += u64::from(takes);
        self.failing_calls += 1;
        for fault in &self.faults {
            match *fault {
                Fault::OutOfMemoryAt(n) if takes && n == taking => {
                    return Err(self.out_of_memory(requested));
                }
                Fault::DriverErrorAt(n, code) if n == failing => {
                    return Err(SourceError::Driver { call, code });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn charge(&mut self, bytes: u64) -> Result<(), SourceError> {
        let used = self
            .used
            .checked_add(bytes)
            .filter(|used| self.capacity.is_none_or(|c| *used <= c));
        self.used = used.ok_or_else(|| self.out_of_memory(bytes))?;
        Ok(())
    }

    fn new_addresses(&mut self, bytes: u64) -> Result<u64, SourceError> {
        let unit = if bytes >= self.page { self.page } else { 512 };
        let start = self.next_address.checked_next_multiple_of(unit);
        let end = start.and_then(|s| s.checked_add(bytes));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(SourceError::AddressSpace { requested: bytes });
        };
        self.next_address = end;
        Ok(start)
    }

    fn note(&mut self, address: u64, bytes: u64, mapped: bool) {
        if let Some(log) = &mut self.log {
            log.push(Change {
                address,
                bytes,
                mapped,
            });
        }
    }

    /// Returns whether no mapping begins in an address range.
    fn is_bare(&self, start: u64, bytes: u64) -> bool {
        let begins = |mappings: &BTreeMap<u64, u64>| mappings.range(start..start + bytes).next().is_some();
        !begins(&self.handles) && !begins(&self.stale)
    }

    fn remove_handles(&mut self, start: u64, bytes: u64) -> Vec<(u64, u64)> {
        let found: Vec<(u64, u64)> = self
            .handles
            .range(start..start + bytes)
            .map(|(a, b)| (*a, *b))
            .collect();
        debug_assert_eq!(
            found.iter().map(|h| h.1).sum::<u64>(),
            bytes,
            "pages taken that are not whole handles"
        );
        for (address, _) in &found {
            self.handles.remove(address);
        }
        found
    }
}

impl Default for Simulated {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for Simulated {
    fn page_bytes(&self) -> u64 {
        self.page
    }

    fn is_paged(&self) -> bool {
        self.paged
    }

    fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    fn device_bytes(&self) -> Option<u64> {
        self.device
    }

    fn free_bytes(&self) -> Option<u64> {
        self.capacity.map(|c| c.saturating_sub(self.used))
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.fault("malloc", true, bytes)?;
        self.charge(bytes)?;
        let scripted = match self.script.front() {
            Some(&(address, recorded)) if recorded == bytes => {
                self.script.pop_front();
                Some(address)
            }
            Some(_) => {
                self.unscripted += 1;
                None
            }
            None => None,
        };
        let address = match scripted {
            Some(address) => address,
            None => self.new_addresses(bytes).inspect_err(|_| self.used -= bytes)?,
        };
        self.segments.insert(address, bytes);
        self.note(address, bytes, true);
        Ok(Segment::new(address, bytes))
    }

    fn give(&mut self, segment: Segment) {
        let known = self.segments.remove(&segment.address());
        debug_assert_eq!(
            known,
            Some(segment.bytes()),
            "the segment was not taken from this source"
        );
        self.used -= known.unwrap_or(0);
        self.note(segment.address(), segment.bytes(), false);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        if !self.paged {
            return Err(SourceError::Unsupported {
                operation: "reserve addresses",
            });
        }
        self.fault("reserve", false, bytes)?;
        let address = self.new_addresses(bytes.max(self.page))?;
        Ok(Range::new(address, bytes))
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        if !self.paged {
            return Err(SourceError::Unsupported {
                operation: "commit pages",
            });
        }
        debug_assert!(
            handle_bytes > 0 && handle_bytes.is_multiple_of(self.page),
            "handles are whole pages"
        );
        debug_assert!(
            bytes.is_multiple_of(handle_bytes) && offset + bytes <= range.bytes(),
            "commit outside its range"
        );
        self.fault("create", true, bytes)?;
        self.charge(bytes)?;
        let start = range.address() + offset;
        debug_assert!(self.is_bare(start, bytes), "pages committed onto a mapping");
        let mut at = start;
        while at < start + bytes {
            self.handles.insert(at, handle_bytes);
            at += handle_bytes;
        }
        self.note(start, bytes, true);
        Ok(())
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let removed = self.remove_handles(range.address() + offset, bytes);
        self.used -= removed.iter().map(|h| h.1).sum::<u64>();
        self.note(range.address() + offset, bytes, false);
        removed.len() as u64
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.fault("map", false, bytes)?;
        let (source, target) = (from.0.address() + from.1, to.0.address() + to.1);
        debug_assert!(self.is_bare(target, bytes), "pages moved onto a mapping");
        let moved = self.remove_handles(source, bytes);
        for (address, handle) in &moved {
            self.handles.insert(address - source + target, *handle);
        }
        self.note(source, bytes, false);
        self.note(target, bytes, true);
        Ok(moved.len() as u64)
    }

    fn can_alias(&self) -> bool {
        self.paged && self.aliases
    }

    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        if !self.can_alias() {
            return Err(SourceError::Unsupported {
                operation: "map pages at a second address",
            });
        }
        let mut target = to.0.address() + to.1;
        let all = parts.iter().map(|part| part.2).sum();
        self.fault("map", false, all)?;
        debug_assert!(self.is_bare(target, all), "pages mapped onto a mapping");
        let mut handles = 0;
        for (range, offset, bytes) in parts {
            let source = range.address() + offset;
            for (address, handle) in self.remove_handles(source, *bytes) {
                self.stale.insert(address, handle);
                self.handles.insert(address - source + target, handle);
                handles += 1;
            }
            self.note(source, *bytes, false);
            self.note(target, *bytes, true);
            target += bytes;
        }
        Ok(handles)
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        let found: Vec<u64> = self.stale.range(address..address + bytes).map(|h| *h.0).collect();
        let ended: u64 = found.iter().filter_map(|at| self.stale.remove(at)).sum();
        debug_assert_eq!(ended, bytes, "mappings ended that are not stale");
        found.len() as u64
    }

    fn can_relocate(&self) -> bool {
        self.can_alias()
    }

    fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        let copied = kept.iter().map(|part| part.1).sum();
        self.fault("create", true, copied)?;
        self.charge(copied)?;
        let start = range.address() + offset;
        let removed = self.remove_handles(start, bytes);
        debug_assert_eq!(removed.len(), 1, "one handle is replaced at a time");
        self.used -= bytes;
        self.note(start, bytes, false);
        for (offset, bytes) in kept {
            let start = range.address() + offset;
            for at in (start..start + bytes).step_by(self.page as usize) {
                self.handles.insert(at, self.page);
            }
            self.note(start, *bytes, true);
        }
        Ok(())
    }

    fn release(&mut self, range: Range) {
        debug_assert!(
            self.is_bare(range.address(), range.bytes()),
            "addresses released under a mapping"
        );
    }

    fn record_event(&mut self, _stream: u32) -> Event {
        let event = Event(self.next_event);
        self.next_event += 1;
        if self.hold_events {
            self.pending_events.insert(event);
        }
        event
    }

    fn is_complete(&self, event: Event) -> bool {
        !self.pending_events.contains(&event)
    }

    fn wait_event(&mut self, _stream: u32, _event: Event) {}

    fn synchronize(&mut self) {
        if self.can_wait(None) {
            self.pending_events.clear();
        }
    }

    fn can_wait(&self, stream: Option<u32>) -> bool {
        match (self.captured, stream) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(captured), Some(stream)) => captured != stream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_the_capacity_is_refused_and_changes_nothing() {
        let mut device = Simulated::new().with_capacity(Some(10 << 20));
        let first = device.take(6 << 20).expect("fits");
        let refused = device.take(6 << 20).expect_err("too much");
        assert_eq!(
            refused,
            SourceError::OutOfMemory {
                requested: 6 << 20,
                free: 4 << 20,
                capacity: 10 << 20
            }
        );
        assert_eq!(device.free_bytes(), Some(4 << 20));
        device.give(first);
        assert_eq!(device.free_bytes(), Some(10 << 20));
    }

    #[test]
    fn handles_move_whole_and_keep_their_bytes() {
        let mut device = Simulated::new().with_capacity(Some(8 << 20));
        let range = device.reserve(64 << 20).expect("addresses");
        device.commit(&range, 0, 8 << 20, 4 << 20).expect("fits");
        assert_eq!(device.move_pages((&range, 0), (&range, 32 << 20), 4 << 20), Ok(1));
        assert_eq!(device.free_bytes(), Some(0));
        assert_eq!(device.decommit(&range, 32 << 20, 4 << 20), 1);
        assert_eq!(device.free_bytes(), Some(4 << 20));
        assert!(device.commit(&range, 0, 4 << 20, 2 << 20).is_ok());
    }

    #[test]
    fn a_stale_mapping_keeps_its_addresses_until_it_ends() {
        let mut device = Simulated::new().with_capacity(Some(8 << 20));
        let range = device.reserve(64 << 20).expect("addresses");
        device.commit(&range, 0, 8 << 20, 4 << 20).expect("fits");
        let parts = [(&range, 4 << 20, 4 << 20), (&range, 0, 4 << 20)];
        assert_eq!(device.alias(&parts, (&range, 32 << 20)), Ok(2));
        assert_eq!(device.free_bytes(), Some(0), "the pages are the same");
        assert!(!device.is_bare(range.address(), 1));
        assert_eq!(device.unmap(range.address(), 8 << 20), 2);
        assert!(device.is_bare(range.address(), 1));
        assert_eq!(device.decommit(&range, 32 << 20, 8 << 20), 2);
        assert_eq!(device.free_bytes(), Some(8 << 20));
        let mut host = Simulated::new().with_aliases(false);
        assert!(!host.can_alias() && host.alias(&[], (&range, 0)).is_err());
    }

    #[test]
    fn faults_make_the_chosen_calls_fail() {
        let mut device =
            Simulated::new().with_faults([Fault::OutOfMemoryAt(1), Fault::DriverErrorAt(2, 700)]);
        let _kept = device.take(1 << 20).expect("call 0");
        assert!(device.take(1 << 20).expect_err("call 1").is_out_of_memory());
        assert_eq!(
            device.take(1 << 20),
            Err(SourceError::Driver {
                call: "malloc",
                code: 700
            })
        );
        assert!(device.take(1 << 20).is_ok());
    }

    #[test]
    fn held_events_complete_only_on_request() {
        let mut device = Simulated::new().hold_events();
        let event = device.record_event(3);
        assert!(!device.is_complete(event));
        device.complete(event);
        assert!(device.is_complete(event));
    }
}
