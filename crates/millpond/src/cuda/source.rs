//! Where memory of a CUDA device comes from.

use super::abi::{
    ACCESS_READ_WRITE, Access, AllocationProperties, DevicePtr, GRANULARITY_RECOMMENDED, Location,
    MemoryHandle, POOL_RELEASE_THRESHOLD, PoolHandle, PoolProperties, StreamHandle,
};
use super::device::CudaDevice;
use super::driver::Driver;
use super::error::{CudaError, insist};
use super::events::Events;
use super::graph;
use super::stream::CudaStream;
use super::streams::Streams;
use millpond_engine::{Event, Range, Segment, Source, SourceError};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What plain segments are multiples of: what the driver takes from a device at once.
const PLAIN_PAGE: u64 = 2 << 20;

/// How memory is asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaMemory {
    /// The first of the others that the device and its driver offer.
    #[default]
    Best,
    /// Addresses and physical pages apart: pages can be added at the end of a range, given back from its middle, and moved.
    Virtual,
    /// A pool of the driver's own, from which segments are taken.
    Pooled,
    /// One call for each segment.
    Plain,
}

/// Memory of a CUDA device.
///
/// It is not the host's to touch, so this is a [`Source`] and no [`MemorySource`](crate::MemorySource). Every call that takes
/// memory back waits first until the device has done what was given to it before. Where the driver fails nothing is lost: what
/// was taken for the call is given back, and what was to be moved stays where it was.
#[derive(Debug)]
pub struct CudaSource {
    device: CudaDevice,
    way: Way,
    page: u64,
    total: u64,
    /// Reserved ranges: address to bytes.
    ranges: BTreeMap<u64, u64>,
    /// Segments: address to bytes, and to where the driver has them begin.
    segments: BTreeMap<u64, (u64, DevicePtr)>,
    /// Physical memory and where it is mapped: address to handle and bytes. Invariant: parts do not overlap, lie in ranges,
    /// and each handle is ours and mapped there.
    parts: BTreeMap<u64, Part>,
    used: u64,
    streams: Streams,
    events: Mutex<Events>,
    /// What the driver said when it could not wait for the device any more.
    lost: Option<CudaError>,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Virtual,
    Pooled(PoolHandle),
    Plain,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    handle: MemoryHandle,
    bytes: u64,
}

impl CudaSource {
    /// A source of a device's memory.
    ///
    /// # Errors
    /// Where the driver cannot do what is asked for: [`CudaError::Missing`] names what it lacks.
    pub fn new(device: &CudaDevice, memory: CudaMemory) -> Result<Self, CudaError> {
        let _current = device.enter()?;
        let driver = device.driver();
        let total = device.memory()?.total;
        let virtual_page = || granularity(driver, device);
        // Whatever can fail comes before the driver's pool is made: nobody would give that back.
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
            CudaMemory::Pooled => (Way::Pooled(make_pool(driver, device)?), PLAIN_PAGE),
            CudaMemory::Best if device.has_pools() => (Way::Pooled(make_pool(driver, device)?), PLAIN_PAGE),
            CudaMemory::Plain | CudaMemory::Best => (Way::Plain, PLAIN_PAGE),
        };
        Ok(Self {
            total,
            device: device.clone(),
            way,
            page,
            ranges: BTreeMap::new(),
            segments: BTreeMap::new(),
            parts: BTreeMap::new(),
            used: 0,
            streams: Streams::new(device),
            events: Mutex::new(Events::default()),
            lost: None,
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// How memory is asked for; never [`CudaMemory::Best`].
    #[must_use]
    pub fn memory(&self) -> CudaMemory {
        match self.way {
            Way::Virtual => CudaMemory::Virtual,
            Way::Pooled(_) => CudaMemory::Pooled,
            Way::Plain => CudaMemory::Plain,
        }
    }

    /// Bytes of physical memory held.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Why the device is of no use any more, where it is not: blocks on it are counted and never handed out again.
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

    /// What [`Source::record_event`] and [`Source::wait_event`] call a stream. The number stands for it for as long as anybody else
    /// has a handle of it.
    ///
    /// # Errors
    /// Where the stream is another device's.
    pub fn stream_number(&mut self, stream: &CudaStream) -> Result<u32, CudaError> {
        stream.expect_on(&self.device)?;
        Ok(self.number_of(stream))
    }

    /// The engine's number for a stream.
    pub(super) fn number_of(&mut self, stream: &CudaStream) -> u32 {
        self.streams.number_of(stream)
    }

    /// The stream that a number stands for.
    pub(super) fn stream_of(&self, number: u32) -> Option<&CudaStream> {
        self.streams.stream(number)
    }

    /// Whether the streams that have used its memory have done their work: then nobody waits who takes memory back.
    pub(super) fn is_idle(&self) -> bool {
        self.lost.is_none() && self.streams.are_idle()
    }

    /// Enters the context, unless the device is lost.
    fn enter(&self) -> Result<super::device::Current<'static>, SourceError> {
        match self.lost {
            None => self.device.enter().map_err(|error| self.refused(error, 0)),
            Some(error) => Err(self.refused(error, 0)),
        }
    }

    /// What the engine is told of what the driver said.
    fn refused(&self, error: CudaError, requested: u64) -> SourceError {
        if error.is_out_of_memory() {
            return SourceError::OutOfMemory {
                requested,
                free: self.free_bytes().unwrap_or(0),
                capacity: self.total,
            };
        }
        error.into()
    }

    /// Waits for the device; answers whether it came to its end. A call that fails once is made again: only a device that
    /// does not answer at all is lost.
    fn wait_for_device(&mut self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        match self.wait() {
            Ok(()) => {
                self.events().all_passed();
                true
            }
            Err(error) => {
                self.lost = Some(error);
                false
            }
        }
    }

    /// Waits for the device, or, while we capture a stream of it, for the streams that have used memory of this source.
    ///
    /// What others capture nobody has told us of, and no driver lets anyone wait for it: that is waited out, as long as captures
    /// last.
    fn wait(&self) -> Result<(), CudaError> {
        const LONGEST: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        loop {
            let waited = match graph::are_captured() {
                true => self.streams.synchronize(),
                false => insist(|| self.device.synchronize()),
            };
            match waited {
                Err(error) if error.is_of_capture() && begun.elapsed() < LONGEST => {
                    thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }

    fn not_held(operation: &'static str, address: u64, bytes: u64) -> SourceError {
        SourceError::NotHeld {
            operation,
            address,
            bytes,
        }
    }

    /// First address of a part of a range that is ours and of whole pages.
    fn part_of(&self, range: &Range, offset: u64, bytes: u64) -> Option<u64> {
        let whole = *self.ranges.get(&range.address())?;
        let end = offset.checked_add(bytes)?;
        let fits = whole == range.bytes() && end <= whole && bytes > 0;
        let aligned = offset.is_multiple_of(self.page) && bytes.is_multiple_of(self.page);
        (fits && aligned).then(|| range.address() + offset)
    }

    /// The physical memory from one address to another, if it is whole handles without a gap.
    fn tiles(&self, address: u64, bytes: u64) -> Option<Vec<(u64, Part)>> {
        let parts = self.parts.range(address..address + bytes);
        let parts: Vec<_> = parts.map(|(at, part)| (*at, *part)).collect();
        let mut at = address;
        for (start, part) in &parts {
            if *start != at {
                return None;
            }
            at += part.bytes;
        }
        (at == address + bytes).then_some(parts)
    }

    /// Whether nothing is mapped there.
    fn is_bare(&self, address: u64, bytes: u64) -> bool {
        let before = self.parts.range(..address + bytes).next_back();
        before.is_none_or(|(at, part)| at + part.bytes <= address)
    }

    /// Creates physical memory and maps it.
    fn create_at(&self, address: DevicePtr, bytes: u64) -> Result<Part, CudaError> {
        let properties = AllocationProperties::on(self.device.handle());
        let (mut handle, size) = (0, bytes as usize);
        // SAFETY: the pointers are to locals.
        unsafe {
            self.driver()
                .create(&raw mut handle, size, &raw const properties, 0)
        }?;
        // SAFETY: the addresses are reserved by us and bare; the handle was made just now.
        if let Err(error) = unsafe { self.driver().map(address, size, 0, handle, 0) } {
            self.release_handle(handle);
            return Err(error);
        }
        Ok(Part { handle, bytes })
    }

    fn release_handle(&self, handle: MemoryHandle) {
        // A driver that fails here frees it with the context.
        // SAFETY: the handle is ours, and forgotten by the caller.
        let _ = insist(|| unsafe { self.driver().release(handle) });
    }

    fn open(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        let access = Access {
            location: Location::device(self.device.handle()),
            flags: ACCESS_READ_WRITE,
        };
        // SAFETY: the addresses are mapped by us; the pointer is to a local.
        unsafe {
            self.driver()
                .set_access(address, bytes as usize, &raw const access, 1)
        }
    }

    /// Unmaps whole handles.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: mapped by us, and the device was waited for or has not seen it yet.
        insist(|| unsafe { self.driver().unmap(address, bytes as usize) })
    }

    /// Puts fresh handles behind addresses; what was done before a failure is undone.
    fn commit_parts(&mut self, address: u64, bytes: u64, handle_bytes: u64) -> Result<(), CudaError> {
        let mut made = Vec::new();
        let mut outcome = Ok(());
        for at in (address..address + bytes).step_by(handle_bytes as usize) {
            match self.create_at(at, handle_bytes) {
                Ok(part) => made.push((at, part)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        let outcome = outcome.and_then(|()| self.open(address, bytes));
        if let Err(error) = outcome {
            for (at, part) in made {
                match self.unmap(at, part.bytes) {
                    Ok(()) => self.release_handle(part.handle),
                    // It stays there, and is counted.
                    Err(_) => self.keep(at, part),
                }
            }
            return Err(error);
        }
        for (at, part) in made {
            self.keep(at, part);
        }
        Ok(())
    }

    fn keep(&mut self, at: u64, part: Part) {
        self.used += part.bytes;
        self.parts.insert(at, part);
    }

    /// Maps handles at other addresses too, and then no more where they were: a failure leaves them there.
    fn move_parts(&mut self, parts: &[(u64, Part)], from: u64, to: u64, bytes: u64) -> Result<(), CudaError> {
        let driver = self.driver();
        let mut mapped = 0;
        let mut outcome = Ok(());
        for (at, part) in parts {
            // SAFETY: the addresses are reserved by us and bare; the handle is ours.
            outcome = unsafe { driver.map(to + (at - from), part.bytes as usize, 0, part.handle, 0) };
            if outcome.is_err() {
                break;
            }
            mapped += part.bytes;
        }
        let outcome = outcome
            .and_then(|()| self.open(to, bytes))
            .and_then(|()| self.unmap(from, bytes));
        if let Err(error) = outcome {
            if mapped > 0
                && let Err(stuck) = self.unmap(to, mapped)
            {
                // Mapped twice: those addresses can serve nobody.
                self.lost = Some(stuck);
            }
            return Err(error);
        }
        for (at, part) in parts {
            self.parts.remove(at);
            self.parts.insert(to + (at - from), *part);
        }
        Ok(())
    }

    /// A segment at a multiple of its page, if it is at least as large: its address, and where the driver has it begin.
    fn take_aligned(&self, bytes: u64) -> Result<(u64, DevicePtr), CudaError> {
        let size = bytes.max(1);
        let start = self.take_plain(size)?;
        if size < self.page || start.is_multiple_of(self.page) {
            return Ok((start, start));
        }
        self.give_plain(start);
        let start = self.take_plain(size.saturating_add(self.page))?;
        Ok((start.next_multiple_of(self.page), start))
    }

    fn take_plain(&self, bytes: u64) -> Result<DevicePtr, CudaError> {
        let (driver, size) = (self.driver(), usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut address = 0;
        let Way::Pooled(pool) = self.way else {
            // SAFETY: the pointer is to a local.
            unsafe { driver.allocate(&raw mut address, size) }?;
            return Ok(address);
        };
        let stream = StreamHandle::NULL;
        // SAFETY: the pointer is to a local, the pool ours.
        unsafe { driver.allocate_from_pool(&raw mut address, size, pool, stream) }?;
        // From here on every stream may use it.
        // SAFETY: the default stream is always there.
        if let Err(error) = unsafe { driver.stream_synchronize(stream) } {
            self.give_plain(address);
            return Err(error);
        }
        Ok(address)
    }

    /// Gives a segment back. What the driver will not have it frees with the context.
    fn give_plain(&self, address: DevicePtr) {
        let (driver, stream) = (self.driver(), StreamHandle::NULL);
        let Way::Pooled(pool) = self.way else {
            // SAFETY: the segment is ours, and the device was waited for.
            let _ = insist(|| unsafe { driver.free(address) });
            return;
        };
        // SAFETY: as above.
        let _ = insist(|| unsafe { driver.free_async(address, stream) });
        // SAFETY: the default stream is always there.
        let _ = insist(|| unsafe { driver.stream_synchronize(stream) });
        // SAFETY: the pool is ours.
        let _ = insist(|| unsafe { driver.pool_trim(pool, 0) });
    }
}

fn granularity(driver: &Driver, device: &CudaDevice) -> Result<u64, CudaError> {
    let properties = AllocationProperties::on(device.handle());
    let mut bytes = 0;
    // SAFETY: the pointers are to locals.
    unsafe { driver.granularity(&raw mut bytes, &raw const properties, GRANULARITY_RECOMMENDED) }?;
    Ok(bytes as u64)
}

/// A pool that gives back what is free whenever it is waited for: what is kept is ours to decide.
fn make_pool(driver: &Driver, device: &CudaDevice) -> Result<PoolHandle, CudaError> {
    let properties = PoolProperties::on(device.handle());
    let (mut pool, mut threshold) = (PoolHandle::NULL, 0u64);
    // SAFETY: the pointers are to locals.
    unsafe { driver.pool_create(&raw mut pool, &raw const properties) }?;
    let value = (&raw mut threshold).cast();
    // SAFETY: the attribute is a number of 64 bits, in a local.
    if let Err(error) = unsafe { driver.pool_set_attribute(pool, POOL_RELEASE_THRESHOLD, value) } {
        // SAFETY: made just now.
        let _ = unsafe { driver.pool_destroy(pool) };
        return Err(error);
    }
    Ok(pool)
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
        let _current = self.enter()?;
        let taken = self.take_aligned(bytes);
        let (address, start) = taken.map_err(|error| self.refused(error, bytes))?;
        self.used += bytes;
        self.segments.insert(address, (bytes, start));
        Ok(Segment::new(address, bytes))
    }

    fn give(&mut self, segment: Segment) {
        let held = self.segments.get(&segment.address()).copied();
        let Some((bytes, start)) = held.filter(|(bytes, _)| *bytes == segment.bytes()) else {
            return;
        };
        if !self.wait_for_device() {
            return;
        }
        let Ok(_current) = self.enter() else { return };
        self.segments.remove(&segment.address());
        self.used -= bytes;
        self.give_plain(start);
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        if !self.is_paged() {
            return Err(SourceError::Unsupported {
                operation: "reserve addresses: it takes whole segments",
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
        if !whole || !self.is_bare(address, bytes) {
            return Err(refused());
        }
        let _current = self.enter()?;
        let outcome = self.commit_parts(address, bytes, handle_bytes);
        outcome.map_err(|error| self.refused(error, bytes))
    }

    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let Some(address) = self.part_of(range, offset, bytes) else {
            return 0;
        };
        let Some(parts) = self.tiles(address, bytes) else {
            return 0;
        };
        if !self.wait_for_device() {
            return 0;
        }
        let Ok(_current) = self.enter() else { return 0 };
        if let Err(error) = self.unmap(address, bytes) {
            // Still mapped: the pages can serve nobody, and stay counted.
            self.lost = Some(error);
            return 0;
        }
        for (at, part) in &parts {
            self.release_handle(part.handle);
            self.used -= part.bytes;
            self.parts.remove(at);
        }
        parts.len() as u64
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        let refused = || Self::not_held("move", from.0.address().saturating_add(from.1), bytes);
        let origin = self.part_of(from.0, from.1, bytes).ok_or_else(refused)?;
        let target = self.part_of(to.0, to.1, bytes).ok_or_else(refused)?;
        let parts = self.tiles(origin, bytes).ok_or_else(refused)?;
        if !self.is_bare(target, bytes) {
            return Err(refused());
        }
        if !self.wait_for_device() {
            let error = self.lost.unwrap_or(CudaError::NoDriver);
            return Err(self.refused(error, bytes));
        }
        let _current = self.enter()?;
        let outcome = self.move_parts(&parts, origin, target, bytes);
        outcome.map_err(|error| self.refused(error, bytes))?;
        Ok(parts.len() as u64)
    }

    fn release(&mut self, range: Range) {
        let held = self.ranges.get(&range.address()) == Some(&range.bytes());
        if !held || !self.is_bare(range.address(), range.bytes()) {
            return;
        }
        let Ok(_current) = self.enter() else { return };
        // SAFETY: reserved by us, with nothing mapped there.
        if unsafe {
            self.driver()
                .address_free(range.address(), range.bytes() as usize)
        }
        .is_ok()
        {
            self.ranges.remove(&range.address());
        }
    }

    fn record_event(&mut self, stream: u32) -> Event {
        if self.streams.stream(stream).is_some_and(graph::is_captured) {
            // It had done all its work when the capture began, and does nothing before it ends.
            return self.events().past();
        }
        let recorded = match self.enter() {
            Ok(_current) => {
                let stream = self.streams.handle(stream);
                self.events().record(self.driver(), stream).ok()
            }
            Err(_) => None,
        };
        recorded.unwrap_or_else(|| {
            // What cannot be marked is waited for.
            self.wait_for_device();
            self.events().past()
        })
    }

    fn is_complete(&self, event: Event) -> bool {
        match self.enter() {
            Ok(_current) => self.events().is_complete(self.driver(), event),
            Err(_) => false,
        }
    }

    fn wait_event(&mut self, stream: u32, event: Event) {
        let waits = match self.enter() {
            Ok(_current) => {
                let stream = self.streams.handle(stream);
                self.events().wait(self.driver(), stream, event).is_ok()
            }
            Err(_) => false,
        };
        if !waits {
            self.wait_for_device();
        }
    }

    fn synchronize(&mut self) {
        self.wait_for_device();
    }
}

impl Drop for CudaSource {
    fn drop(&mut self) {
        // Of a lost device nothing can be given back: its memory went with it.
        if !self.wait_for_device() {
            return;
        }
        let Ok(_current) = self.enter() else { return };
        for (at, part) in std::mem::take(&mut self.parts) {
            if self.unmap(at, part.bytes).is_ok() {
                self.release_handle(part.handle);
            }
        }
        for (address, bytes) in std::mem::take(&mut self.ranges) {
            // SAFETY: reserved by us, with nothing mapped there any more.
            let _ = insist(|| unsafe { self.driver().address_free(address, bytes as usize) });
        }
        for (_, start) in std::mem::take(&mut self.segments).into_values() {
            self.give_plain(start);
        }
        self.events().end(self.driver());
        if let Way::Pooled(pool) = self.way {
            // SAFETY: the pool is ours, and nothing of it is held any more.
            let _ = insist(|| unsafe { self.driver().pool_destroy(pool) });
        }
    }
}
