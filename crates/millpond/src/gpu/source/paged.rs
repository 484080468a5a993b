//! Addresses and physical memory apart: reserved ranges, and handles that are mapped in them.

use super::CudaSource;
use crate::gpu::abi::{AllocationProperties, DevicePtr, GRANULARITY_RECOMMENDED, MemoryHandle};
use crate::gpu::driver::Driver;
use crate::gpu::error::{CudaError, insist};
use millpond_engine::Range;

/// Physical memory that is mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) handle: MemoryHandle,
    pub(super) bytes: u64,
}

impl CudaSource {
    /// First address of a part of a range that is ours and of whole pages.
    pub(super) fn part_of(&self, range: &Range, offset: u64, bytes: u64) -> Option<u64> {
        let whole = *self.ranges.get(&range.address())?;
        let end = offset.checked_add(bytes)?;
        let fits = whole == range.bytes() && end <= whole && bytes > 0;
        let aligned = offset.is_multiple_of(self.page) && bytes.is_multiple_of(self.page);
        (fits && aligned).then(|| range.address() + offset)
    }

    /// The physical memory from one address to another, if it is whole handles without a gap.
    pub(super) fn tiles(&self, address: u64, bytes: u64) -> Option<Vec<(u64, Part)>> {
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
    pub(super) fn is_bare(&self, address: u64, bytes: u64) -> bool {
        let before = self.parts.range(..address + bytes).next_back();
        before.is_none_or(|(at, part)| at + part.bytes <= address)
    }

    /// Creates physical memory and maps it.
    fn create_at(&self, address: DevicePtr, bytes: u64) -> Result<Part, CudaError> {
        let properties = self.sharing.properties(&self.device);
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

    pub(super) fn release_handle(&self, handle: MemoryHandle) {
        // A driver that fails here frees it with the context.
        // SAFETY: the handle is ours, and forgotten by the caller.
        let _ = insist(|| unsafe { self.driver().release(handle) });
    }

    fn open(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        let access = self.sharing.access(&self.device);
        // SAFETY: we have mapped the addresses, and the pointer and the count describe the list `access`.
        unsafe {
            self.driver()
                .set_access(address, bytes as usize, access.as_ptr(), access.len())
        }
    }

    /// Unmaps whole handles that lie side by side. An error contains the number of handles, counted from the first, that are
    /// unmapped all the same.
    ///
    /// One call unmaps all of them if the driver accepts it. The driver's documentation promises this for a single mapping
    /// only, so if the driver refuses, each handle is unmapped by a call of its own.
    pub(super) fn unmap(&self, parts: &[(u64, Part)]) -> Result<(), (usize, CudaError)> {
        if let [(address, _), _, ..] = parts {
            let bytes = parts.iter().map(|(_, part)| part.bytes).sum();
            match self.unmap_at(*address, bytes) {
                Err(error) if !error.is_fatal() && !error.is_of_capture() => {}
                outcome => return outcome.map_err(|error| (0, error)),
            }
        }
        for (unmapped, (at, part)) in parts.iter().enumerate() {
            insist(|| self.unmap_at(*at, part.bytes)).map_err(|error| (unmapped, error))?;
        }
        Ok(())
    }

    fn unmap_at(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: mapped by us, and the device was waited for or has not seen it yet.
        unsafe { self.driver().unmap(address, bytes as usize) }
    }

    /// Unmaps whole handles that lie side by side, or none of them. The handles are also mapped at other addresses.
    fn unmap_or_keep(&mut self, parts: &[(u64, Part)]) -> Result<(), CudaError> {
        let Err((unmapped, error)) = self.unmap(parts) else {
            return Ok(());
        };
        for (at, part) in &parts[..unmapped] {
            // SAFETY: the addresses are reserved by us and were unmapped just now; the handle is ours.
            let mapped = unsafe { self.driver().map(*at, part.bytes as usize, 0, part.handle, 0) };
            if let Err(stuck) = mapped.and_then(|()| self.open(*at, part.bytes)) {
                // Blocks lie at these addresses, but no memory is mapped there.
                self.lost = Some(stuck);
            }
        }
        Err(error)
    }

    /// Puts fresh handles behind addresses; what was done before a failure is undone.
    pub(super) fn commit_parts(
        &mut self,
        address: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), CudaError> {
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
                match self.unmap(&[(at, part)]) {
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
    pub(super) fn move_parts(
        &mut self,
        parts: &[(u64, Part)],
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let driver = self.driver();
        let mut mapped = Vec::with_capacity(parts.len());
        let mut outcome = Ok(());
        for (at, part) in parts {
            let target = to + (at - from);
            // SAFETY: the addresses are reserved by us and bare; the handle is ours.
            outcome = unsafe { driver.map(target, part.bytes as usize, 0, part.handle, 0) };
            if outcome.is_err() {
                break;
            }
            mapped.push((target, *part));
        }
        let outcome = outcome
            .and_then(|()| self.open(to, bytes))
            .and_then(|()| self.unmap_or_keep(parts));
        if let Err(error) = outcome {
            if let Err((_, stuck)) = self.unmap(&mapped) {
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
}

pub(super) fn granularity(driver: &Driver, properties: &AllocationProperties) -> Result<u64, CudaError> {
    let mut bytes = 0;
    // SAFETY: one pointer is to a local, the other is made of a reference.
    unsafe { driver.granularity(&raw mut bytes, properties, GRANULARITY_RECOMMENDED) }?;
    Ok(bytes as u64)
}
