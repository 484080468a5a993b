//! The engine's interface to memory: ranges of integers.

use crate::error::SourceError;

/// A range taken from a plain source. It cannot be copied, and returning it consumes it.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a segment that is dropped is never given back"]
pub struct Segment {
    address: u64,
    bytes: u64,
}

impl Segment {
    /// Creates a segment. A source calls this for a range that it provides.
    pub fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Reserved addresses of a paged source, backed by pages only where committed. They cannot be copied.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a range that is dropped is never released"]
pub struct Range {
    address: u64,
    bytes: u64,
}

impl Range {
    /// Creates a range. A source calls this for addresses that it reserves.
    pub fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of addresses in bytes, committed or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A point in a stream's work. It is complete when the device has finished the work before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub u64);

/// Provides address ranges of one kind of memory on one device.
///
/// *Plain* calls provide whole segments. *Paged* calls first reserve addresses and later commit pages, in handles of a
/// size that the policy chooses. A source supports either or both. A failed call changes nothing.
pub trait Source {
    /// Returns the size of a page in bytes. Committed sizes and offsets are multiples of it.
    fn page_bytes(&self) -> u64;

    /// Returns whether addresses can be reserved without pages.
    fn is_paged(&self) -> bool;

    /// Returns the total bytes of the device for this source, or `None` without a limit.
    fn capacity(&self) -> Option<u64>;

    /// Returns the bytes of the whole device, or `None` if they are unknown. The [capacity](Self::capacity) may be only a
    /// part of them. The default is the capacity.
    fn device_bytes(&self) -> Option<u64> {
        self.capacity()
    }

    /// Returns the bytes that the device has left, or `None` without a limit.
    fn free_bytes(&self) -> Option<u64>;

    /// Takes a whole segment.
    ///
    /// # Errors
    /// Returns an error if memory or addresses run out, or if the source is paged only.
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError>;

    /// Returns a whole segment to the source, after the device has finished all earlier work.
    fn give(&mut self, segment: Segment);

    /// Reserves addresses.
    ///
    /// # Errors
    /// Returns an error if addresses run out, or if the source is plain only.
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError>;

    /// Backs `[offset, offset + bytes)` with new handles of `handle_bytes` each.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError>;

    /// Releases the pages of `[offset, offset + bytes)`, which are whole handles. Returns the number of handles. The
    /// caller has ended all stale mappings of these handles.
    ///
    /// Returns only after the device has finished all earlier work. Unmapping has no stream, and policies rely on this
    /// wait.
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64;

    /// Moves the pages of a committed part to an uncommitted one. The part consists of whole handles. Returns the
    /// number of handles.
    ///
    /// Like [`decommit`](Self::decommit), this waits until the device has finished all earlier work.
    ///
    /// # Errors
    /// Returns an error if the driver refuses. The pages have not moved then.
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError>;

    /// Returns whether handles can be mapped at a second address, by [`alias`](Self::alias).
    fn can_alias(&self) -> bool {
        false
    }

    /// Maps the pages of committed parts at an uncommitted place as well, one part after the other. Each part is given
    /// as its range, offset and bytes, and consists of whole handles. Returns the number of handles.
    ///
    /// This does not wait for the device. From now on the pages belong to the new addresses. The old mappings are
    /// *stale*: they stay valid for the work that uses them, and end with [`unmap`](Self::unmap). Only work that is
    /// ordered after the last use of the old addresses may use the new ones.
    ///
    /// # Errors
    /// Returns an error if the source does not support second mappings, or if the driver refuses. Nothing has changed
    /// then.
    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        let _ = (parts, to);
        Err(SourceError::Unsupported {
            operation: "map pages at a second address",
        })
    }

    /// Ends the stale mappings of `[address, address + bytes)`, which are whole handles. Returns the number of handles.
    /// The caller ensures that the work that uses these addresses has completed.
    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        let _ = (address, bytes);
        0
    }

    /// Returns whether the pages under a live block can be replaced, by [`relocate`](Self::relocate).
    fn can_relocate(&self) -> bool {
        false
    }

    /// Replaces one committed handle, `[offset, offset + bytes)`, by handles of a page each under the parts that are kept.
    /// Copies the contents of these parts, and returns the rest of the handle. Each part is given as its offset in the
    /// range and its bytes, in whole pages. Addresses and contents of the parts stay the same. The caller has ended all
    /// stale mappings of the handle.
    ///
    /// The new handles exist before the old one is released, so the device needs free memory for the kept parts. Like
    /// [`decommit`](Self::decommit), this waits until the device has finished all earlier work. No work that uses the kept
    /// parts may be submitted before it returns.
    ///
    /// # Errors
    /// Returns an error if the source cannot do this, if memory runs out, or if the driver refuses. Nothing has changed
    /// then.
    fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        let _ = (range, offset, bytes, kept);
        Err(SourceError::Unsupported {
            operation: "replace the pages under a block",
        })
    }

    /// Returns reserved addresses to the source. Nothing may be mapped at them.
    fn release(&mut self, range: Range);

    /// Records an event at the present end of a stream's work.
    fn record_event(&mut self, stream: u32) -> Event;

    /// Returns whether an event has completed.
    fn is_complete(&self, event: Event) -> bool;

    /// Makes a stream wait for an event on the device.
    fn wait_event(&mut self, stream: u32, event: Event);

    /// Waits until the device has completed every event.
    fn synchronize(&mut self);

    /// Waits until the device uses no stale mapping any more. Unlike after [`synchronize`](Self::synchronize), the engine
    /// frees no waiting block, so this wait changes no placement.
    fn wait_for_mappings(&mut self) {
        self.synchronize();
    }

    /// Returns whether a wait for the work of a stream, or of all streams, is possible now. It is not possible while a
    /// stream is being captured.
    ///
    /// While it returns `false`, the engine makes no call that needs a wait. Free memory is kept, and a request that
    /// needs more memory is refused ([`SourceError::Held`]). A source may delay the effect of calls that are made
    /// nevertheless.
    fn can_wait(&self, stream: Option<u32>) -> bool {
        let _ = stream;
        true
    }
}
