//! Virtual memory management: reserved ranges, and physical memory that is mapped in them.

use super::CudaSource;
use crate::abi::{AllocationProperties, DevicePtr, GRANULARITY_RECOMMENDED, MemoryHandle};
use crate::driver::Driver;
use crate::error::{CudaError, insist};
use millpond_engine::Range;

/// Mapped physical memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(super) handle: MemoryHandle,
    pub bytes: u64,
    /// Whether the memory is also mapped at other addresses, which are in use instead of these.
    pub(super) stale: bool,
}

impl CudaSource {
    /// Returns the first address of a part of one of the source's ranges, if the part consists of whole pages.
    pub(super) fn part_of(&self, range: &Range, offset: u64, bytes: u64) -> Option<u64> {
        let whole = *self.ranges.get(&range.address())?;
        let end = offset.checked_add(bytes)?;
        let fits = whole == range.bytes() && end <= whole && bytes > 0;
        let aligned = offset.is_multiple_of(self.page) && bytes.is_multiple_of(self.page);
        (fits && aligned).then(|| range.address() + offset)
    }

    /// Returns the physical memory of an address range, if it consists of whole handles without a gap or a stale mapping.
    pub(super) fn tiles(&self, address: u64, bytes: u64) -> Option<Vec<(u64, Part)>> {
        let parts = self.parts.range(address..address + bytes);
        let parts: Vec<_> = parts.map(|(at, part)| (*at, *part)).collect();
        let mut at = address;
        for (start, part) in &parts {
            if *start != at || part.stale {
                return None;
            }
            at += part.bytes;
        }
        (at == address + bytes).then_some(parts)
    }

    /// Returns whether nothing is mapped in an address range.
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
        // SAFETY: the addresses are reserved by us and bare. The handle was made just now.
        if let Err(error) = unsafe { self.driver().map(address, size, 0, handle, 0) } {
            self.release_handle(handle);
            return Err(error);
        }
        Ok(Part {
            handle,
            bytes,
            stale: false,
        })
    }

    pub(super) fn release_handle(&self, handle: MemoryHandle) {
        // If the driver fails here, it frees the memory with the context.
        // SAFETY: the handle is ours, and the caller does not use it again.
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

    /// Unmaps whole handles that are adjacent. An error contains the number of handles, counted from the first, that were unmapped before
    /// the error.
    ///
    /// One call unmaps all of them if the driver accepts it. The driver's documentation guarantees this for a single mapping only, so if
    /// the driver refuses, each handle is unmapped by a separate call.
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
        // SAFETY: the addresses were mapped by us, and the device was waited for or has not seen them yet.
        unsafe { self.driver().unmap(address, bytes as usize) }
    }

    /// Unmaps whole handles that are adjacent, or none of them. The handles are also mapped at other addresses.
    fn unmap_or_keep(&mut self, parts: &[(u64, Part)]) -> Result<(), CudaError> {
        let Err((unmapped, error)) = self.unmap(parts) else {
            return Ok(());
        };
        for (at, part) in &parts[..unmapped] {
            // SAFETY: the addresses are reserved by us and were unmapped just now. The handle is ours.
            let mapped = unsafe { self.driver().map(*at, part.bytes as usize, 0, part.handle, 0) };
            if let Err(stuck) = mapped.and_then(|()| self.open(*at, part.bytes)) {
                // Blocks are at these addresses, but no memory is mapped there.
                self.lost = Some(stuck);
            }
        }
        Err(error)
    }

    /// Creates physical memory and maps it in an address range. A failure undoes the earlier steps.
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
                    // The memory stays mapped, and is counted.
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

    /// Maps handles at further addresses, one after the other. After a failure they are not mapped there.
    pub(super) fn map_again(
        &mut self,
        parts: impl Iterator<Item = Part>,
        to: u64,
        bytes: u64,
    ) -> Result<Vec<(u64, Part)>, CudaError> {
        let driver = self.driver();
        let mut mapped = Vec::new();
        let mut target = to;
        let mut outcome = Ok(());
        for part in parts {
            // SAFETY: the addresses are reserved by us and bare. The handle is ours.
            outcome = unsafe { driver.map(target, part.bytes as usize, 0, part.handle, 0) };
            if outcome.is_err() {
                break;
            }
            mapped.push((target, part));
            target += part.bytes;
        }
        if let Err(error) = outcome.and_then(|()| self.open(to, bytes)) {
            self.unmap_again(&mapped);
            return Err(error);
        }
        Ok(mapped)
    }

    /// Removes the mappings that [`map_again`](Self::map_again) made.
    pub(super) fn unmap_again(&mut self, mapped: &[(u64, Part)]) {
        if let Err((_, stuck)) = self.unmap(mapped) {
            // The handles are mapped twice, so those addresses cannot be used.
            self.lost = Some(stuck);
        }
    }

    /// Maps handles at other addresses too, one after the other, and marks their present mappings as stale. A failure
    /// changes nothing.
    pub(super) fn alias_parts(
        &mut self,
        parts: &[(u64, Part)],
        to: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let mapped = self.map_again(parts.iter().map(|(_, part)| *part), to, bytes)?;
        for (at, _) in parts {
            if let Some(old) = self.parts.get_mut(at) {
                old.stale = true;
            }
        }
        self.parts.extend(mapped);
        Ok(())
    }

    /// Removes the stale mappings in an address range. Returns their number. Mappings that cannot be removed during a
    /// capture are removed later.
    pub(super) fn end_stale(&mut self, address: u64, bytes: u64) -> u64 {
        let stale = self.parts.range(address..address.saturating_add(bytes));
        let stale: Vec<_> = stale
            .map(|(at, part)| (*at, *part))
            .filter(|(_, part)| part.stale)
            .collect();
        for (at, part) in &stale {
            match self.unmap(&[(*at, *part)]) {
                Ok(()) => {
                    self.parts.remove(at);
                }
                Err((_, error)) if error.is_of_capture() => self.postponed.stale.push((*at, part.bytes)),
                // Nothing can be mapped at these addresses again.
                Err((_, error)) => self.lost = Some(error),
            }
        }
        stale.len() as u64
    }

    /// Maps handles at other addresses and unmaps them at the old ones. After a failure they stay at the old addresses.
    pub(super) fn move_parts(
        &mut self,
        parts: &[(u64, Part)],
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let mapped = self.map_again(parts.iter().map(|(_, part)| *part), to, bytes)?;
        if let Err(error) = self.unmap_or_keep(parts) {
            self.unmap_again(&mapped);
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
    // SAFETY: one pointer is to a local, and the other is made of a reference.
    unsafe { driver.granularity(&raw mut bytes, properties, GRANULARITY_RECOMMENDED) }?;
    Ok(bytes as u64)
}
