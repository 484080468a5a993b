//! Sources of a CUDA device's memory.

mod paged;
mod plain;
mod relocate;
mod sharing;
mod waits;

use super::abi::{DevicePtr, PoolHandle};
use super::device::{Beside, CudaDevice};
use super::driver::Driver;
use super::error::CudaError;
use super::events::Events;
use super::later;
use super::stream::captures;
use super::stream::{CudaStream, RawStream};
use super::streams::Streams;
use millpond_engine::{Event, Range, Segment, Source, SourceError};
use paged::{Part, granularity};
use plain::make_pool;
pub use sharing::CudaSharing;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use waits::Postponed;

/// The page size of plain segments, which is the size that the driver takes from a device at a time.
const PLAIN_PAGE: u64 = 2 << 20;

/// The way in which memory is requested from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaMemory {
    /// The first of the following ways that the device and its driver support.
    #[default]
    Best,
    /// Virtual memory management: addresses and physical pages are separate. Pages can be added at the end of a range, given back from its
    /// middle, and moved.
    Virtual,
    /// A memory pool of the driver, from which segments are taken.
    Pooled,
    /// One call of the driver for each segment.
    Plain,
}

/// Memory of a CUDA device.
///
/// The host cannot access this memory, so this is a [`Source`] and not a `MemorySource`. Every call that gives
/// memory back first waits until the streams that the source [knows](Self::stream_number) have completed their earlier work. If the driver
/// fails, no memory is lost: the call gives back the memory that it has taken, and pages that were to be moved stay in place.
///
/// A stream that another library captures cannot be waited for. Memory that is given back during such a capture stays held. It is freed as
/// soon as the streams can be waited for: by a later call, or when the source is dropped, or after that.
#[derive(Debug)]
pub struct CudaSource {
    device: CudaDevice,
    way: Way,
    sharing: CudaSharing,
    page: u64,
    total: u64,
    /// The reserved ranges, from address to bytes.
    ranges: BTreeMap<u64, u64>,
    /// The segments, from address to bytes and the driver's own start address.
    segments: BTreeMap<u64, (u64, DevicePtr)>,
    /// The mapped physical memory, from address to handle and bytes. Invariant: parts do not overlap and lie in ranges. Each
    /// handle belongs to this source and is mapped at its address. Exactly one mapping of a handle is not stale.
    parts: BTreeMap<u64, Part>,
    used: u64,
    /// Whether pages under live blocks may be replaced.
    relocates: bool,
    streams: Streams,
    events: Mutex<Events>,
    postponed: Postponed,
    /// Whether the engine assumes that some work is ordered although the source could not wait for it.
    disordered: bool,
    /// The error that made the device unusable.
    lost: Option<CudaError>,
}

#[derive(Clone, Debug)]
enum Way {
    Virtual,
    /// Has a stream for the driver's ordered calls. Waiting for the legacy stream would also wait for other streams, and is refused while
    /// one of them is captured.
    Pooled(PoolHandle, CudaStream),
    Plain,
}

impl CudaSource {
    /// Creates a source of a device's memory.
    ///
    /// # Errors
    /// Returns [`CudaError::Missing`], which names the missing function, if the driver does not support the requested way, and other errors
    /// of the driver.
    pub fn new(device: &CudaDevice, memory: CudaMemory) -> Result<Self, CudaError> {
        Self::shared(device, memory, CudaSharing::new())
    }

    /// Creates a source of memory that can be shared. If `sharing` is not empty, the memory is mapped by pages.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), [`CudaError::NoPeer`] and [`CudaError::NotShared`] if the device does not support the
    /// sharing, and [`CudaError::SharedByPages`] for memory that is not mapped by pages.
    pub fn shared(device: &CudaDevice, memory: CudaMemory, sharing: CudaSharing) -> Result<Self, CudaError> {
        later::retry();
        let memory = match memory {
            memory if sharing.is_none() => memory,
            CudaMemory::Best | CudaMemory::Virtual => CudaMemory::Virtual,
            CudaMemory::Pooled | CudaMemory::Plain => return Err(CudaError::SharedByPages),
        };
        sharing.check(device)?;
        let _current = device.enter_beside()?;
        let driver = device.driver();
        let total = device.memory()?.total;
        let virtual_page = || granularity(driver, &sharing.properties(device));
        let pooled = || {
            let stream = CudaStream::new(device)?;
            let pool = make_pool(driver, device)?;
            Ok::<_, CudaError>((Way::Pooled(pool, stream), PLAIN_PAGE))
        };
        // Steps that can fail come before the driver's pool is made, because nothing would free the pool.
        let (way, page) = match memory {
            CudaMemory::Virtual if !device.has_virtual_memory() => {
                return Err(CudaError::Missing {
                    function: "cuMemCreate",
                });
            }
            CudaMemory::Pooled if !device.has_pools() => {
                return Err(CudaError::Missing {
                    function: "cuMemPoolCreate",
                });
            }
            CudaMemory::Virtual => (Way::Virtual, virtual_page()?),
            CudaMemory::Best if device.has_virtual_memory() => (Way::Virtual, virtual_page()?),
            CudaMemory::Pooled => pooled()?,
            CudaMemory::Best if device.has_pools() => pooled()?,
            CudaMemory::Plain | CudaMemory::Best => (Way::Plain, PLAIN_PAGE),
        };
        Ok(Self {
            sharing,
            total,
            device: device.clone(),
            way,
            page,
            ranges: BTreeMap::new(),
            segments: BTreeMap::new(),
            parts: BTreeMap::new(),
            used: 0,
            relocates: false,
            streams: Streams::new(device),
            events: Mutex::default(),
            postponed: Postponed::default(),
            disordered: false,
            lost: None,
        })
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Returns how memory is requested. This is never [`CudaMemory::Best`].
    #[must_use]
    pub fn memory(&self) -> CudaMemory {
        match self.way {
            Way::Virtual => CudaMemory::Virtual,
            Way::Pooled(..) => CudaMemory::Pooled,
            Way::Plain => CudaMemory::Plain,
        }
    }

    pub(super) fn sharing(&self) -> &CudaSharing {
        &self.sharing
    }

    /// Returns the bytes of physical memory held. This includes memory that was given back and cannot be freed yet.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Returns the error that made the device unusable, if there is one. Blocks on a lost device are still counted, and are never handed
    /// out again.
    #[must_use]
    pub fn lost(&self) -> Option<CudaError> {
        self.lost
    }

    fn driver(&self) -> &'static Driver {
        self.device.driver()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number that [`Source::record_event`] and [`Source::wait_event`] use for a stream. The number is valid for as long as
    /// another handle of the stream exists.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another device.
    pub fn stream_number(&mut self, stream: &CudaStream) -> Result<u32, CudaError> {
        stream.expect_on(&self.device)?;
        Ok(self.number_of(stream))
    }

    /// Returns the engine's number for a stream.
    pub(super) fn number_of(&mut self, stream: &CudaStream) -> u32 {
        self.streams.number_of(stream)
    }

    /// Returns the stream of a number.
    pub(super) fn stream_of(&self, number: u32) -> Option<&RawStream> {
        self.streams.stream(number)
    }

    /// Returns whether all streams that have used the source's memory are idle, so that giving memory back does not wait.
    pub(super) fn is_idle(&self) -> bool {
        self.lost.is_none() && self.streams.are_idle()
    }

    /// Enters the context, unless the device is lost.
    fn enter(&self) -> Result<Beside, SourceError> {
        match self.lost {
            None => self.device.enter_beside().map_err(|error| self.refused(error, 0)),
            Some(error) => Err(self.refused(error, 0)),
        }
    }

    /// Converts an error of the driver to one for the engine.
    fn refused(&self, error: CudaError, requested: u64) -> SourceError {
        if error.is_out_of_memory() {
            return SourceError::OutOfMemory {
                requested,
                free: self.free_bytes().unwrap_or(0),
                capacity: self.total,
            };
        }
        if error.is_of_capture() {
            return SourceError::Held { requested };
        }
        error.into()
    }

    /// Requests memory from the driver. If the driver is out of memory, tries again after freeing memory that was given back earlier.
    fn asking<T>(
        &mut self,
        bytes: u64,
        ask: impl Fn(&mut Self) -> Result<T, CudaError>,
    ) -> Result<T, SourceError> {
        let current = self.enter()?;
        let mut outcome = ask(self);
        if outcome.as_ref().is_err_and(CudaError::is_out_of_memory)
            && !self.postponed.is_empty()
            && self.wait_for_device()
        {
            outcome = ask(self);
        }
        drop(current);
        outcome.map_err(|error| self.refused(error, bytes))
    }

    fn not_held(operation: &'static str, address: u64, bytes: u64) -> SourceError {
        SourceError::NotHeld {
            operation,
            address,
            bytes,
        }
    }
}

impl Source for CudaSource {
    fn page_bytes(&self) -> u64 {
        self.page
    }

    fn is_paged(&self) -> bool {
        matches!(self.way, Way::Virtual)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.total)
    }

    fn free_bytes(&self) -> Option<u64> {
        let memory = self.device.memory();
        Some(memory.map_or_else(|_| self.total.saturating_sub(self.used), |memory| memory.free))
    }

    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let (address, start) = self.asking(bytes, |source| source.take_aligned(bytes))?;
        self.used += bytes;
        self.segments.insert(address, (bytes, start));
        Ok(Segment::new(address, bytes))
    }

    fn give(&mut self, segment: Segment) {
        let held = self.segments.get(&segment.address());
        if held.is_some_and(|(bytes, _)| *bytes == segment.bytes()) {
            self.postponed.segments.push(segment.address());
            self.wait_for_device();
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        if !self.is_paged() {
            return Err(SourceError::Unsupported {
                operation: "reserve addresses: it allocates whole segments",
            });
        }
        let size = bytes.checked_next_multiple_of(self.page).filter(|size| *size > 0);
        let size = size.ok_or(SourceError::AddressSpace { requested: bytes })?;
        let _current = self.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is to a local.
        let outcome = unsafe {
            self.driver()
                .address_reserve(&raw mut address, size as usize, 0, 0, 0)
        };
        outcome.map_err(|error| {
            if error.is_out_of_memory() {
                return SourceError::AddressSpace { requested: bytes };
            }
            self.refused(error, bytes)
        })?;
        self.ranges.insert(address, size);
        Ok(Range::new(address, size))
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        let refused = || Self::not_held("commit", range.address().saturating_add(offset), bytes);
        let address = self.part_of(range, offset, bytes).ok_or_else(refused)?;
        let whole =
            handle_bytes > 0 && handle_bytes.is_multiple_of(self.page) && bytes.is_multiple_of(handle_bytes);
        if !whole {
            return Err(refused());
        }
        if !self.is_bare(address, bytes) {
            // Memory that was given back at these addresses may still have to be freed.
            if self.postponed.is_empty() {
                return Err(refused());
            }
            if !self.wait_for_device() {
                return Err(SourceError::Held { requested: bytes });
            }
            if !self.is_bare(address, bytes) {
                return Err(refused());
            }
        }
        self.asking(bytes, |source| source.commit_parts(address, bytes, handle_bytes))
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let Some(address) = self.part_of(range, offset, bytes) else {
            return 0;
        };
        let Some(parts) = self.tiles(address, bytes) else {
            return 0;
        };
        self.postponed.parts.push((address, bytes));
        self.wait_for_device();
        parts.len() as u64
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let refused = || Self::not_held("move", from.0.address().saturating_add(from.1), bytes);
        let origin = self.part_of(from.0, from.1, bytes).ok_or_else(refused)?;
        let target = self.part_of(to.0, to.1, bytes).ok_or_else(refused)?;
        let parts = self.tiles(origin, bytes).ok_or_else(refused)?;
        if !self.is_bare(target, bytes) && !self.postponed.is_empty() {
            // Memory that was given back at these addresses can perhaps be freed now.
            self.wait_for_device();
        }
        if !self.is_bare(target, bytes) {
            return Err(refused());
        }
        if !self.wait_for_device() {
            let error = self.lost.unwrap_or(CudaError::Captured);
            return Err(self.refused(error, bytes));
        }
        let _current = self.enter()?;
        let outcome = self.move_parts(&parts, origin, target, bytes);
        outcome.map_err(|error| self.refused(error, bytes))?;
        Ok(parts.len() as u64)
    }

    fn can_alias(&self) -> bool {
        // Other users have their own mappings of shared memory.
        self.is_paged() && self.sharing.is_none()
    }

    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        let bytes = parts.iter().map(|part| part.2).fold(0, u64::saturating_add);
        let refused = || Self::not_held("map again", to.0.address().saturating_add(to.1), bytes);
        if !self.can_alias() {
            return Err(SourceError::Unsupported {
                operation: "map pages at a second address: the pages are shared",
            });
        }
        let target = self.part_of(to.0, to.1, bytes).ok_or_else(refused)?;
        let mut handles = Vec::new();
        for (range, offset, bytes) in parts {
            let origin = self.part_of(range, *offset, *bytes);
            handles.extend(origin.and_then(|at| self.tiles(at, *bytes)).ok_or_else(refused)?);
        }
        let distinct: BTreeSet<u64> = handles.iter().map(|(at, _)| *at).collect();
        if !self.is_bare(target, bytes) || distinct.len() < handles.len() {
            return Err(refused());
        }
        let _current = self.enter()?;
        let outcome = self.alias_parts(&handles, target, bytes);
        outcome.map_err(|error| self.refused(error, bytes))?;
        Ok(handles.len() as u64)
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        match self.enter() {
            Ok(_current) => self.end_stale(address, bytes),
            Err(_) => 0,
        }
    }

    fn can_relocate(&self) -> bool {
        self.relocates && self.can_alias()
    }

    fn relocate(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        kept: &[(u64, u64)],
    ) -> Result<(), SourceError> {
        if !self.can_relocate() {
            return Err(SourceError::Unsupported {
                operation: "replace the pages under a block: relocation is not allowed",
            });
        }
        let refused = || Self::not_held("replace", range.address().saturating_add(offset), bytes);
        let replaced = self.replaced(range, (offset, bytes), kept).ok_or_else(refused)?;
        let copied = kept.iter().map(|part| part.1).sum();
        self.device
            .synchronize()
            .map_err(|error| self.refused(error, copied))?;
        if !self.wait_for_device() {
            return Err(self.refused(self.lost.unwrap_or(CudaError::Captured), copied));
        }
        let place = self.reserve(copied)?;
        let outcome = self.relocate_part(&replaced, &place);
        self.release(place);
        outcome
    }

    fn release(&mut self, range: Range) {
        if self.ranges.get(&range.address()) != Some(&range.bytes()) {
            return;
        }
        self.postponed.ranges.push(range.address());
        self.end_postponed_ranges();
    }

    fn record_event(&mut self, stream: u32) -> Event {
        let stream = self.streams.used_as(stream);
        if captures::is_captured(&stream) {
            // The stream's earlier work was complete when the capture began, and no work runs on it before the capture ends.
            return self.events().past();
        }
        match self.enter() {
            Ok(_current) => self.events().record(self.driver(), stream),
            Err(_) => self.events().note(stream),
        }
    }

    fn is_complete(&self, event: Event) -> bool {
        match self.enter() {
            Ok(_current) => self.events().is_complete(self.driver(), event),
            Err(_) => false,
        }
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        let stream = self.streams.used_as(stream);
        let waits = match self.enter() {
            Ok(_current) => self.events().wait(self.driver(), &stream, event).is_ok(),
            Err(_) => false,
        };
        if !waits {
            self.synchronize();
        }
    }

    fn synchronize(&mut self) {
        // From here on the engine assumes that all work is complete.
        self.disordered |= !self.wait_for_device();
    }

    fn can_wait(&self, stream: Option<u32>) -> bool {
        if self.lost.is_some() {
            return true;
        }
        match stream {
            None => self.streams.can_wait(),
            Some(number) => {
                let stream = self.streams.stream(number);
                !stream.is_some_and(|stream| stream.is_captured_by_others())
            }
        }
    }
}

impl Drop for CudaSource {
    fn drop(&mut self) {
        if !self.end() {
            later::keep(self.remains(), self.device.number(), self.used);
        }
    }
}
