//! Counts every call that a policy makes to its source.
//!
//! A policy never accesses a [`Source`] directly. It uses a [`Supply`], which counts calls, handles, moved bytes and
//! stalls. The supply keeps the reserved bytes exact within a call and gives access to the blocks that wait for a
//! stream.

use crate::block::{Block, Stream};
use crate::deferred::Deferred;
use crate::error::SourceError;
use crate::meter::Meter;
use crate::source::{Event, Range, Segment, Source};
use crate::stale::Stale;

/// A policy's access to its source during one call.
pub struct Supply<'a> {
    source: &'a mut dyn Source,
    meter: &'a mut Meter,
    deferred: &'a mut Deferred,
    limit: Option<u64>,
}

/// Pages that are [mapped again](Supply::alias).
pub struct Aliased<'a> {
    /// The range of the pages.
    pub range: &'a Range,
    /// The offset of the first page in the range, in bytes.
    pub offset: u64,
    /// Bytes of the pages, which are whole handles.
    pub bytes: u64,
    /// The number of these handles.
    pub handles: u64,
}

impl<'a> Supply<'a> {
    /// Creates the access to a source. Calls are counted in `meter`.
    pub fn new(source: &'a mut dyn Source, meter: &'a mut Meter, deferred: &'a mut Deferred) -> Self {
        Self {
            source,
            meter,
            deferred,
            limit: None,
        }
    }

    /// Limits the reserved bytes for the duration of this call. The source receives no request beyond the limit.
    pub fn limit_to(&mut self, bytes: u64) {
        self.limit = Some(bytes);
    }

    /// Returns an error if the limit does not allow `bytes` more.
    fn within_limit(&self, bytes: u64) -> Result<(), SourceError> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let free = limit.saturating_sub(self.reserved());
        if bytes <= free {
            return Ok(());
        }
        Err(SourceError::OutOfMemory {
            requested: bytes,
            free,
            capacity: limit,
        })
    }

    /// Returns the error for the policy. A policy reacts to a lack of memory with a wait, so the error is replaced
    /// while no wait is possible.
    fn refused(&self, error: SourceError, requested: u64) -> SourceError {
        if error.is_out_of_memory() && !self.can_wait() {
            return SourceError::Held { requested };
        }
        error
    }

    /// Returns the size of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.source.page_bytes()
    }

    /// Returns the number of pages for a size.
    fn pages(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.source.page_bytes().max(1))
    }

    /// Returns whether pages can be committed, moved and released.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        self.source.is_paged()
    }

    /// Returns the total bytes of the device, or `None` without a limit.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.source.capacity()
    }

    /// Returns the bytes of the whole device, as [`Source::device_bytes`] does.
    #[must_use]
    pub fn device_bytes(&self) -> Option<u64> {
        self.source.device_bytes()
    }

    /// Returns the bytes that can still be taken from the device within the [limit](Self::limit_to), or `None` if
    /// neither has a limit.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        let left = self.limit.map(|limit| limit.saturating_sub(self.reserved()));
        self.source.free_bytes().into_iter().chain(left).min()
    }

    /// Returns the bytes reserved from the source.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.meter.reserved.current
    }

    /// Returns the most bytes ever reserved from the source.
    #[must_use]
    pub fn peak_reserved(&self) -> u64 {
        self.meter.reserved.peak
    }

    /// Takes a whole segment.
    ///
    /// # Errors
    /// Returns an error if memory or addresses run out, or if the source is paged only.
    pub fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let refused = |error| self.refused(error, bytes);
        self.within_limit(bytes).map_err(refused)?;
        self.meter.calls.malloc += 1;
        let taken = self.source.take(bytes);
        let segment = taken.map_err(|error| self.refused(error, bytes))?;
        self.meter.pages.malloc += self.pages(segment.bytes());
        self.meter.took(segment.bytes());
        Ok(segment)
    }

    /// Returns a whole segment to the source and synchronises the device.
    pub fn give(&mut self, segment: Segment) {
        self.meter.calls.free += 1;
        self.meter.pages.free += self.pages(segment.bytes());
        self.meter.gave(segment.bytes());
        self.source.give(segment);
    }

    /// Reserves addresses.
    ///
    /// # Errors
    /// Returns an error if addresses run out, or if the source is plain only.
    pub fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.meter.calls.reserve += 1;
        self.source.reserve(bytes)
    }

    /// Reserves `most` contiguous addresses. Halves the number after each failure, but not below `least`. Rounds the
    /// number up to a multiple of `multiple`.
    ///
    /// This is for policies that reserve all the addresses that they could ever need. A device has pebibytes of
    /// addresses, but a process usually has only 128 TiB for everything.
    ///
    /// # Errors
    /// Returns the error of [`reserve`](Self::reserve) for `least`.
    pub fn reserve_up_to(&mut self, most: u64, least: u64, multiple: u64) -> Result<Range, SourceError> {
        let mut bytes = most.max(least);
        loop {
            let asked = bytes.checked_next_multiple_of(multiple).unwrap_or(bytes);
            match self.reserve(asked) {
                Err(SourceError::AddressSpace { .. }) if bytes > least => bytes = (bytes / 2).max(least),
                outcome => return outcome,
            }
        }
    }

    /// Returns reserved addresses to the source.
    pub fn release(&mut self, range: Range) {
        self.end_stale();
        self.source.release(range);
    }

    /// Backs a part of a range with new handles of `handle_bytes` each.
    ///
    /// # Errors
    /// Returns an error if memory runs out. The handles created until then are released again.
    pub fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        let refused = |error| self.refused(error, bytes);
        self.within_limit(bytes).map_err(refused)?;
        self.clear(range, offset, bytes)?;
        let handles = bytes.div_ceil(handle_bytes.max(1));
        let free = self.source.free_bytes();
        match self.source.commit(range, offset, bytes, handle_bytes) {
            Ok(()) => {
                let pages = self.pages(bytes);
                self.meter.calls.create += handles;
                self.meter.pages.create += pages;
                self.meter.handles.create += handles;
                self.meter.handle_operations += handles;
                self.meter.mapped(handles, pages);
                self.meter.took(bytes);
                Ok(())
            }
            Err(error) => {
                // The driver creates handles one by one. The handles for which there was memory were created, and are
                // released again.
                let made = free.map_or(0, |f| f / handle_bytes.max(1)).min(handles);
                self.meter.calls.create += (made + 1).min(handles);
                self.meter.calls.release += made;
                self.meter.handle_operations += 2 * made;
                Err(self.refused(error, bytes))
            }
        }
    }

    /// Releases the pages of a part of a range. The host waits for the device.
    pub fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) {
        self.end_stale();
        let handles = self.source.decommit(range, offset, bytes);
        let pages = self.pages(bytes);
        self.meter.calls.release += handles;
        self.meter.pages.release += pages;
        self.meter.handles.release += handles;
        self.meter.handle_operations += handles;
        self.meter.unmapped(handles, pages);
        self.meter.gave(bytes);
    }

    /// Moves the pages of one part of a range to another place. The host waits for the device.
    ///
    /// # Errors
    /// Returns an error if the driver refuses. The pages have not moved then.
    pub fn move_pages(
        &mut self,
        from: (&Range, u64),
        to: (&Range, u64),
        bytes: u64,
    ) -> Result<(), SourceError> {
        self.clear(to.0, to.1, bytes)?;
        let handles = self.source.move_pages(from, to, bytes)?;
        let pages = self.pages(bytes);
        self.meter.unmapped(handles, pages);
        self.meter.mapped(handles, pages);
        self.meter.moved_bytes += bytes;
        self.meter.waited();
        Ok(())
    }

    /// Returns whether pages can be [mapped again](Self::alias) without a wait.
    #[must_use]
    pub fn can_alias(&self) -> bool {
        self.source.can_alias()
    }

    /// Maps the pages of parts at another place, one part after the other. The host does not wait. The old mappings are
    /// stale, and end some time after `event`, which is complete when no work uses the old addresses any more.
    ///
    /// # Errors
    /// Returns an error if the driver refuses. Nothing has changed then.
    pub fn alias(
        &mut self,
        parts: &[Aliased<'_>],
        to: (&Range, u64),
        event: Event,
    ) -> Result<(), SourceError> {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        self.clear(to.0, to.1, bytes)?;
        let more = parts.iter().map(|part| part.handles).sum();
        if Stale::is_full(self.meter, more) && self.can_wait() {
            self.end_stale();
        }
        let places: Vec<_> = parts
            .iter()
            .map(|part| (part.range, part.offset, part.bytes))
            .collect();
        let handles = self.source.alias(&places, to)?;
        self.meter.mapped(handles, self.pages(bytes));
        self.meter.moved_bytes += bytes;
        self.meter.operated();
        for part in parts {
            let address = part.range.address() + part.offset;
            self.deferred
                .stale
                .push(address, part.bytes, part.handles, event, self.meter);
        }
        if self.can_wait() {
            self.deferred.stale.end_batch(self.source, self.meter);
        }
        Ok(())
    }

    /// Returns whether the pages under live blocks can be [replaced](Self::relocate).
    #[must_use]
    pub fn can_relocate(&self) -> bool {
        self.source.can_relocate()
    }

    /// Replaces one handle by handles of a page each under the kept parts, and returns the rest of the handle. The host
    /// waits for the device.
    ///
    /// # Errors
    /// Returns an error if the device has no memory for the kept parts, or if the driver refuses. Nothing has changed
    /// then.
    pub fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        let copied = kept.iter().map(|part| part.1).sum();
        self.within_limit(copied)?;
        self.end_stale();
        self.source.relocate(range, offset, bytes, kept)?;
        let pages = self.pages(copied);
        self.meter.calls.create += pages;
        self.meter.handles.create += pages;
        self.meter.pages.create += pages;
        self.meter.handle_operations += pages;
        // The new handles are mapped at a free place, filled there, and mapped again under the kept parts.
        for _ in 0..2 {
            self.meter.mapped(pages, pages);
        }
        self.meter.unmapped(pages + 1, pages + self.pages(bytes));
        self.meter.calls.release += 1;
        self.meter.handles.release += 1;
        self.meter.pages.release += self.pages(bytes);
        self.meter.handle_operations += 1;
        self.meter.took(copied);
        self.meter.gave(bytes);
        self.meter.relocated_bytes += copied;
        Ok(())
    }

    /// Ends the stale mappings that no work uses any more.
    pub fn end_idle_mappings(&mut self) {
        if !self.deferred.stale.is_empty() && self.can_wait() {
            self.deferred.stale.end_idle(self.source, self.meter);
        }
    }

    /// Ends the stale mappings in a part of a range. The host waits for the device if work still uses them.
    fn clear(&mut self, range: &Range, offset: u64, bytes: u64) -> Result<(), SourceError> {
        if self.deferred.stale.is_empty() {
            return Ok(());
        }
        let start = range.address() + offset;
        let end = start + bytes;
        if !self.deferred.stale.is_idle(self.source, start, end) {
            if !self.can_wait() {
                return Err(SourceError::Held { requested: bytes });
            }
            self.meter.waited();
            self.source.wait_for_mappings();
        }
        self.deferred
            .stale
            .end_within(self.source, self.meter, start, end);
        Ok(())
    }

    /// Ends every stale mapping. The host waits for the device if work still uses one.
    fn end_stale(&mut self) {
        if self.deferred.stale.is_empty() {
            return;
        }
        if !self.deferred.stale.is_idle(self.source, 0, u64::MAX) {
            self.meter.waited();
            self.source.wait_for_mappings();
        }
        self.deferred
            .stale
            .end_within(self.source, self.meter, 0, u64::MAX);
    }

    /// Records an event at the present end of a stream's work.
    pub fn record_event(&mut self, stream: Stream) -> Event {
        self.meter.calls.event_record += 1;
        self.source.record_event(stream.0)
    }

    /// Makes the stream `taker` wait on the device for the work of `owner` so far, so that `taker` may reuse memory of
    /// `owner`. Records an event unless `event` is given.
    pub fn order_after(&mut self, taker: Stream, owner: Stream, event: Option<Event>) {
        let event = match event {
            Some(event) => event,
            None => self.record_event(owner),
        };
        self.meter.calls.event_wait += 1;
        self.meter.cross_stream_waits += 1;
        self.source.wait_event(taker.0, event);
    }

    /// Returns whether a wait for the device is possible, as [`Source::can_wait`] does for all streams.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.source.can_wait(None)
    }

    /// Returns whether another stream can be made to wait for the work of `owner`, as far as this is known now.
    #[must_use]
    pub fn can_wait_for(&self, owner: Stream) -> bool {
        self.source.can_wait(Some(owner.0))
    }

    /// Waits for the device and returns the blocks that waited for a stream. They are free now. Blocks that wait for a
    /// stream for which no wait [is possible](Source::can_wait) are not included.
    #[must_use = "the blocks must be made free again"]
    pub fn synchronize(&mut self) -> Vec<Block> {
        self.meter.waited();
        self.source.synchronize();
        self.end_idle_mappings();
        self.deferred.ready(self.source)
    }

    /// Returns whether blocks wait for a stream.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulated;
    use crate::meter::Calls;

    const MIB: u64 = 1 << 20;

    #[test]
    fn old_mappings_are_limited_in_number() {
        let mut device = Simulated::new().hold_events();
        let (mut meter, mut deferred) = (Meter::default(), Deferred::default());
        let mut supply = Supply::new(&mut device, &mut meter, &mut deferred);
        let range = supply.reserve(64 << 30).expect("addresses");
        supply.commit(&range, 0, 2 * MIB, 2 * MIB).expect("fits");
        let mut waits = 0;
        for at in 0..10_000 {
            let part = Aliased {
                range: &range,
                offset: at * 2 * MIB,
                bytes: 2 * MIB,
                handles: 1,
            };
            let event = supply.record_event(Stream(0));
            supply
                .alias(&[part], (&range, (at + 1) * 2 * MIB), event)
                .expect("addresses");
            waits += u64::from(supply.meter.take_stalled());
        }
        // The addresses of an old mapping are used again after a wait.
        supply
            .commit(&range, 9_998 * 2 * MIB, 2 * MIB, 2 * MIB)
            .expect("fits");
        assert_eq!((waits, supply.meter.take_stalled()), (1, true));
        assert_eq!(meter.stale_mappings.peak, 8192);
    }

    #[test]
    fn pages_and_handles_are_counted_for_each_kind_of_call() {
        let mut device = Simulated::new().with_capacity(Some(64 * MIB));
        let (mut meter, mut deferred) = (Meter::default(), Deferred::default());
        let mut supply = Supply::new(&mut device, &mut meter, &mut deferred);
        let segment = supply.take(5 * MIB).expect("fits");
        assert!(supply.take(64 * MIB).is_err());
        supply.give(segment);
        let range = supply.reserve(256 * MIB).expect("addresses");
        supply.commit(&range, 0, 32 * MIB, 16 * MIB).expect("fits");
        assert!(supply.commit(&range, 64 * MIB, 64 * MIB, 16 * MIB).is_err());
        supply
            .move_pages((&range, 0), (&range, 128 * MIB), 16 * MIB)
            .expect("they move");
        supply.decommit(&range, 128 * MIB, 16 * MIB);
        let pages = Calls {
            malloc: 3,
            free: 3,
            create: 16,
            map: 16 + 8,
            set_access: 16 + 8,
            unmap: 8 + 8,
            release: 8,
            ..Calls::default()
        };
        assert_eq!(meter.pages, pages);
        // Two handles, and two of four before the driver refused the third. Those two were released, and one later.
        assert_eq!((meter.calls.create, meter.calls.release), (5, 3));
        assert_eq!(
            (meter.calls.map, meter.calls.set_access, meter.calls.unmap),
            (3, 2, 2)
        );
        // Two handles in one call, and one handle that was moved.
        assert_eq!(
            (meter.handles.map, meter.handles.set_access, meter.handles.unmap),
            (3, 3, 2)
        );
    }
}
