//! Counts of the calls that were made to a source.

use crate::stats::Gauge;

/// Calls to the driver, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Plain device allocations.
    pub malloc: u64,
    /// Plain device frees. Each one synchronises the device.
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
    /// Waits of a stream for an event, performed on the device.
    pub event_wait: u64,
}

impl Calls {
    /// Returns the count of each kind with its name, in the order of the report.
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

    /// Returns the number of calls of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, n)| n).sum()
    }
}

/// Counts of everything requested from a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Driver calls by kind.
    pub calls: Calls,
    /// Pages of these calls, by kind. A page that is partly covered counts whole. Reservations of addresses are not
    /// counted, because a range reserves addresses for every page that it could ever hold.
    pub pages: Calls,
    /// Handles that these calls operated on, by kind. One call makes a whole range accessible, but the driver processes
    /// the range handle by handle.
    pub handles: Calls,
    /// Number of handles created, mapped, made accessible, unmapped or released.
    pub handle_operations: u64,
    /// Handles whose earlier mapping is still in place after they were mapped at a second address.
    pub stale_mappings: Gauge,
    /// Bytes of pages that were moved or mapped again, and bytes that were returned and then reserved again.
    pub moved_bytes: u64,
    /// Bytes of pages under live blocks that were [replaced](crate::Source::relocate).
    pub relocated_bytes: u64,
    /// Reuses and moves of memory across streams that were ordered by a wait on the device.
    pub cross_stream_waits: u64,
    /// Bytes reserved from the source.
    pub reserved: Gauge,
    /// Calls that changed the reserved memory or made the host wait. They distinguish hits from misses.
    operations: u64,
    /// Bytes returned and not yet reserved again.
    returned: u64,
    /// Whether the current operation made the host wait for the device.
    stalled: bool,
}

impl Meter {
    /// Returns the number of calls that reserved, returned or moved memory or waited for the device. A hit does not
    /// change it.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns whether the host had to wait since the last call of this function.
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

    /// Counts handles that were unmapped, and their pages.
    pub(crate) fn unmapped(&mut self, handles: u64, pages: u64) {
        self.calls.unmap += handles;
        self.handles.unmap += handles;
        self.pages.unmap += pages;
        self.handle_operations += handles;
    }

    /// Counts handles that were mapped and made accessible in one call, and their pages.
    pub(crate) fn mapped(&mut self, handles: u64, pages: u64) {
        self.calls.map += handles;
        self.calls.set_access += 1;
        self.pages.map += pages;
        self.pages.set_access += pages;
        self.handles.map += handles;
        self.handles.set_access += handles;
        self.handle_operations += 2 * handles;
    }

    /// Counts an operation on the reserved memory that did not make the host wait.
    pub(crate) fn operated(&mut self) {
        self.operations += 1;
    }

    /// Counts an operation that made the host wait for the device.
    pub(crate) fn waited(&mut self) {
        self.operations += 1;
        self.stalled = true;
    }
}
