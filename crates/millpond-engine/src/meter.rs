//! Counts of the calls that were made to a source.

use crate::stats::Gauge;

/// Calls to the driver, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Plain device allocations.
    pub malloc: u64,
    /// Plain device frees; each synchronises the device.
    pub free: u64,
    /// Physical page handles created.
    pub create: u64,
    /// Handles mapped at an address.
    pub map: u64,
    /// Ranges made accessible.
    pub set_access: u64,
    /// Handles unmapped.
    pub unmap: u64,
    /// Handles released.
    pub release: u64,
    /// Address ranges reserved.
    pub reserve: u64,
    /// Events recorded on a stream.
    pub event_record: u64,
    /// Streams made to wait for an event on the device.
    pub event_wait: u64,
}

impl Calls {
    /// The kinds with their names, in the order of the report.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 10] {
        [
            ("malloc", self.malloc),
            ("free", self.free),
            ("create", self.create),
            ("map", self.map),
            ("set_access", self.set_access),
            ("unmap", self.unmap),
            ("release", self.release),
            ("reserve", self.reserve),
            ("event_record", self.event_record),
            ("event_wait", self.event_wait),
        ]
    }

    /// Calls of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, n)| n).sum()
    }
}

/// What has been asked of a source so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Driver calls by kind.
    pub calls: Calls,
    /// Pages that these calls were about, by kind; begun ones count whole. None of addresses, of which a range has room for
    /// all there could ever be.
    pub pages: Calls,
    /// Handles that these calls operated on, by kind. One call makes a whole range accessible, but the driver processes the
    /// range handle by handle.
    pub handles: Calls,
    /// One for each handle created, mapped, made accessible, unmapped or released.
    pub handle_operations: u64,
    /// Bytes of pages moved from one place to another, and bytes given back and taken again.
    pub moved_bytes: u64,
    /// Reuses and moves of memory across streams, ordered by a wait on the device.
    pub cross_stream_waits: u64,
    /// Bytes held from the source.
    pub reserved: Gauge,
    /// Calls that changed what is held or made the host wait, for telling hits from misses.
    operations: u64,
    /// Bytes given back and not yet taken again.
    returned: u64,
    /// The current operation made the host wait for the device.
    stalled: bool,
}

impl Meter {
    /// Number of calls so far that took, gave or moved memory, or waited for the device; unchanged across
    /// a hit.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Whether the host had to wait since this was last asked.
    pub(crate) fn take_stalled(&mut self) -> bool {
        std::mem::take(&mut self.stalled)
    }

    pub(crate) fn took(&mut self, bytes: u64) {
        let again = self.returned.min(bytes);
        self.returned -= again;
        self.moved_bytes += again;
        self.reserved.add(bytes);
        self.operations += 1;
    }

    pub(crate) fn gave(&mut self, bytes: u64) {
        self.returned += bytes;
        self.reserved.sub(bytes);
        self.waited();
    }

    /// Counts an operation that made the host wait for the device.
    pub(crate) fn waited(&mut self) {
        self.operations += 1;
        self.stalled = true;
    }
}
