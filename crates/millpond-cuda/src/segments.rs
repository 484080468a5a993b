//! Segments of host memory that the driver allocates, which the pinned and the managed source share.

use super::abi::{ATTACH_GLOBAL, HOST_MAPPED, HOST_PORTABLE};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use millpond_engine::{Segment, SourceError};
use millpond_os as os;
use std::collections::BTreeMap;
use std::ptr;

/// The way in which the driver allocates memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Pinned,
    Managed,
}

/// The segments of one source.
///
/// Invariant: `held` has every segment that was taken and not given back, by its address. The driver allocated its memory, which begins at
/// `start` and is used only by this source.
#[derive(Debug)]
pub(super) struct Segments {
    device: CudaDevice,
    way: Way,
    held: BTreeMap<u64, Held>,
    used: u64,
    events: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    pub bytes: u64,
    /// The driver's own start address.
    start: u64,
}

impl Segments {
    pub(super) fn new(device: &CudaDevice, way: Way) -> Self {
        Self {
            device: device.clone(),
            way,
            held: BTreeMap::new(),
            used: 0,
            events: 0,
        }
    }

    pub(super) fn device(&self) -> &CudaDevice {
        &self.device
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the bytes of the machine's memory, from which the driver allocates.
    pub(super) fn capacity() -> u64 {
        os::machine_memory().1
    }

    pub(super) fn page() -> u64 {
        os::page_bytes()
    }

    pub(super) fn free_bytes(&self) -> u64 {
        Self::capacity().saturating_sub(self.used)
    }

    pub(super) fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub(super) fn holds(&self, segment: &Segment) -> bool {
        let held = self.held.get(&segment.address());
        held.is_some_and(|held| held.bytes == segment.bytes())
    }

    pub(super) fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        // An address plus its length must be representable, so larger requests are refused.
        let size = usize::try_from(bytes.max(1))
            .ok()
            .filter(|size| *size < isize::MAX as usize);
        let size = size.ok_or(SourceError::AddressSpace { requested: bytes })?;
        let refused = |error| self.refused(error, bytes);
        let _current = self.device.enter_beside().map_err(refused)?;
        let (address, start) = self.take_aligned(size).map_err(refused)?;
        self.held.insert(address, Held { bytes, start });
        self.used += bytes;
        Ok(Segment::new(address, bytes))
    }

    /// Frees a segment that is [held](Self::holds).
    pub(super) fn give(&mut self, segment: &Segment) {
        if let Some(held) = self.held.remove(&segment.address()) {
            self.used -= held.bytes;
            self.give_back(held);
        }
    }

    /// Calls `with` for each segment, and frees it.
    pub(super) fn give_all(&mut self, mut with: impl FnMut(u64, u64)) {
        for (address, held) in std::mem::take(&mut self.held) {
            with(address, held.bytes);
            self.give_back(held);
        }
        self.used = 0;
    }

    /// Allocates memory at a multiple of the system's page. Returns its address and the driver's own start address.
    fn take_aligned(&self, size: usize) -> Result<(u64, u64), CudaError> {
        let start = self.ask(size)?;
        let page = Self::page();
        if start.is_multiple_of(page) {
            return Ok((start, start));
        }
        self.give_back(Held { bytes: 0, start });
        let start = self.ask(size.saturating_add(page as usize))?;
        Ok((start.next_multiple_of(page), start))
    }

    fn ask(&self, size: usize) -> Result<u64, CudaError> {
        let driver = self.device.driver();
        match self.way {
            Way::Pinned => {
                let mut at = ptr::null_mut();
                // SAFETY: the pointer is to a local.
                unsafe { driver.host_allocate(&raw mut at, size, HOST_PORTABLE | HOST_MAPPED) }?;
                Ok(at.expose_provenance() as u64)
            }
            Way::Managed => {
                let mut at = 0;
                // SAFETY: the pointer is to a local.
                unsafe { driver.managed_allocate(&raw mut at, size, ATTACH_GLOBAL) }?;
                Ok(at)
            }
        }
    }

    /// Frees memory that is not used any more. If the driver refuses, it frees the memory with the context.
    fn give_back(&self, held: Held) {
        let Ok(_current) = self.device.enter_beside() else {
            return;
        };
        let driver = self.device.driver();
        match self.way {
            Way::Pinned => {
                let at = ptr::with_exposed_provenance_mut(held.start as usize);
                // SAFETY: the memory is the driver's and ours by the invariant, and the caller does not use it again.
                let _ = insist(|| unsafe { driver.host_free(at) });
            }
            // SAFETY: as above.
            Way::Managed => drop(insist(|| unsafe { driver.free(held.start) })),
        }
    }

    fn refused(&self, error: CudaError, requested: u64) -> SourceError {
        if error.is_out_of_memory() {
            return SourceError::OutOfMemory {
                requested,
                free: self.free_bytes(),
                capacity: Self::capacity(),
            };
        }
        match error {
            CudaError::Driver { call, code, .. } => SourceError::Driver {
                call,
                code: i32::try_from(code).unwrap_or(i32::MAX),
            },
            CudaError::Missing { function } => SourceError::Unsupported { operation: function },
            CudaError::Forked => SourceError::Unsupported {
                operation: "work in a process that was forked from one that uses CUDA: start a new process instead",
            },
            _ => SourceError::Unsupported {
                operation: "reach its device",
            },
        }
    }
}

/// Implements a source of plain segments over [`Segments`] in the field `segments`. The two functions are called for each segment that is
/// taken or given back.
macro_rules! source_of_segments {
    ($source:ty, $took:expr, $gives:expr) => {
        impl millpond_engine::Source for $source {
            fn page_bytes(&self) -> u64 {
                $crate::segments::Segments::page()
            }

            fn is_paged(&self) -> bool {
                false
            }

            fn capacity(&self) -> Option<u64> {
                Some($crate::segments::Segments::capacity())
            }

            fn free_bytes(&self) -> Option<u64> {
                Some(self.segments.free_bytes())
            }

            fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
                let segment = self.segments.take(bytes)?;
                $took(segment.address(), segment.bytes());
                Ok(segment)
            }

            fn give(&mut self, segment: Segment) {
                if self.segments.holds(&segment) {
                    $gives(segment.address(), segment.bytes());
                    self.segments.give(&segment);
                }
            }

            fn reserve(&mut self, _bytes: u64) -> Result<Range, SourceError> {
                Err(SourceError::Unsupported {
                    operation: "reserve addresses: it allocates whole segments",
                })
            }

            fn commit(
                &mut self,
                range: &Range,
                offset: u64,
                bytes: u64,
                _handle_bytes: u64,
            ) -> Result<(), SourceError> {
                Err(SourceError::NotHeld {
                    operation: "commit",
                    address: range.address().saturating_add(offset),
                    bytes,
                })
            }

            fn decommit(&mut self, _range: &Range, _offset: u64, _bytes: u64) -> u64 {
                0
            }

            fn move_pages(
                &mut self,
                from: (&Range, u64),
                _to: (&Range, u64),
                bytes: u64,
            ) -> Result<u64, SourceError> {
                Err(SourceError::NotHeld {
                    operation: "move",
                    address: from.0.address().saturating_add(from.1),
                    bytes,
                })
            }

            fn release(&mut self, _range: Range) {}

            fn record_event(&mut self, _stream: u32) -> Event {
                Event(self.segments.next_event())
            }

            /// Blocks are used by the host. A caller that lends a block to a device holds it until the device no longer uses it.
            fn is_complete(&self, _event: Event) -> bool {
                true
            }

            fn wait_event(&mut self, _stream: u32, _event: Event) {}

            fn synchronize(&mut self) {}
        }

        impl Drop for $source {
            fn drop(&mut self) {
                self.segments.give_all($gives);
            }
        }
    };
}

pub(super) use source_of_segments;
