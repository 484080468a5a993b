//! Where memory comes from, as the engine sees it: ranges of integers.

use crate::error::SourceError;

/// A range taken from a plain source. Cannot be copied; consumed when given back.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a segment that is dropped is never given back"]
pub struct Segment {
    address: u64,
    bytes: u64,
}

impl Segment {
    /// Made by a source for a range it hands out.
    pub fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Reserved addresses of a paged source, backed by pages only where committed. Cannot be copied.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a range that is dropped is never released"]
pub struct Range {
    address: u64,
    bytes: u64,
}

impl Range {
    /// Made by a source for addresses it reserves.
    pub fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of addresses, committed or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A point in a stream's work; complete once the device has passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub u64);

/// Gives and takes address ranges of one kind of memory on one device.
///
/// *Plain* calls hand out whole segments; *paged* calls reserve addresses first and commit pages, in
/// handles of a size the policy chooses, later. A source may offer either or both. A failed call
/// changes nothing.
pub trait Source {
    /// Bytes of a page: committed sizes and offsets are multiples of it.
    fn page_bytes(&self) -> u64;

    /// Whether addresses and pages come apart here.
    fn is_paged(&self) -> bool;

    /// Bytes the device has in all for this source; none where it has no limit.
    fn capacity(&self) -> Option<u64>;

    /// Bytes the device could still give; none where it has no limit.
    fn free_bytes(&self) -> Option<u64>;

    /// Takes a whole segment.
    ///
    /// # Errors
    /// When memory or addresses run out, or the source is paged only.
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError>;

    /// Gives a whole segment back, after the device has passed all work given to it before.
    fn give(&mut self, segment: Segment);

    /// Reserves addresses.
    ///
    /// # Errors
    /// When addresses run out, or the source is plain only.
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError>;

    /// Backs `[offset, offset + bytes)` with new handles of `handle_bytes` each.
    ///
    /// # Errors
    /// When memory runs out.
    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError>;

    /// Takes back the pages of `[offset, offset + bytes)`, whole handles; answers how many handles there were.
    ///
    /// Returns only when the device has passed all work given to it before: unmapping takes no stream, and
    /// policies count on it.
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64;

    /// Moves the pages of a committed part to an uncommitted one, whole handles; answers how many there were.
    ///
    /// Like [`decommit`](Self::decommit), waits until the device has passed all work given to it before.
    ///
    /// # Errors
    /// When the driver refuses; the pages are where they were.
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError>;

    /// Gives reserved addresses back; no page may be committed there.
    fn release(&mut self, range: Range);

    /// Marks the present end of a stream's work.
    fn record_event(&mut self, stream: u32) -> Event;

    /// Whether the device has passed an event.
    fn is_complete(&self, event: Event) -> bool;

    /// Makes a stream wait, on the device, for an event.
    fn wait_event(&mut self, stream: u32, event: Event);

    /// Waits until the device has passed every event.
    fn synchronize(&mut self);

    /// Whether the work of a stream, or of all of them, can be waited for now. Others may be capturing a stream: then nobody can
    /// until they have done.
    ///
    /// Where it cannot, nothing is asked that takes a wait. What is free stays, a request that wants room is refused
    /// ([`SourceError::Held`]), and what is done all the same may be done later only.
    fn can_wait(&self, stream: Option<u32>) -> bool {
        let _ = stream;
        true
    }
}

/// What stands for a source, passed on.
macro_rules! stands_for_a_source {
    ($of:ty) => {
        impl<T: Source + ?Sized> Source for $of {
            fn page_bytes(&self) -> u64 {
                (**self).page_bytes()
            }
            fn is_paged(&self) -> bool {
                (**self).is_paged()
            }
            fn capacity(&self) -> Option<u64> {
                (**self).capacity()
            }
            fn free_bytes(&self) -> Option<u64> {
                (**self).free_bytes()
            }
            fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
                (**self).take(bytes)
            }
            fn give(&mut self, segment: Segment) {
                (**self).give(segment);
            }
            fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
                (**self).reserve(bytes)
            }
            fn commit(
                &mut self,
                range: &Range,
                offset: u64,
                bytes: u64,
                handle_bytes: u64,
            ) -> Result<(), SourceError> {
                (**self).commit(range, offset, bytes, handle_bytes)
            }
            fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
                (**self).decommit(range, offset, bytes)
            }
            fn move_pages(
                &mut self,
                from: (&Range, u64),
                to: (&Range, u64),
                bytes: u64,
            ) -> Result<u64, SourceError> {
                (**self).move_pages(from, to, bytes)
            }
            fn release(&mut self, range: Range) {
                (**self).release(range);
            }
            fn record_event(&mut self, stream: u32) -> Event {
                (**self).record_event(stream)
            }
            fn is_complete(&self, event: Event) -> bool {
                (**self).is_complete(event)
            }
            fn wait_event(&mut self, stream: u32, event: Event) {
                (**self).wait_event(stream, event);
            }
            fn synchronize(&mut self) {
                (**self).synchronize();
            }
            fn can_wait(&self, stream: Option<u32>) -> bool {
                (**self).can_wait(stream)
            }
        }
    };
}

stands_for_a_source!(Box<T>);
// So that whoever made a source can look at it after an engine has had it.
stands_for_a_source!(&mut T);
