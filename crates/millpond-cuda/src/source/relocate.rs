//! Replaces the physical memory under addresses in use.

use super::CudaSource;
use super::paged::Part;
use crate::error::{CudaError, insist};
use crate::stream::CudaStream;
use millpond_engine::{Range, SourceError};

/// A handle that is replaced.
pub(super) struct Replaced {
    /// Address and physical memory of the handle.
    old: (u64, Part),
    /// Address and bytes of each part that is kept.
    kept: Vec<(u64, u64)>,
}

impl CudaSource {
    /// Lets the source [replace](millpond_engine::Source::relocate) the pages under live blocks. A policy does this only with the setting
    /// `relocate:on`.
    ///
    /// # Safety
    /// While an engine serves a request from this source or compacts, no other thread may submit work that uses the source's
    /// memory, and no stream of the device may be captured. A copy by this library that is not complete counts as work. No
    /// other device may access the memory by its physical addresses, as a network card with a registration does.
    pub unsafe fn allow_relocation(&mut self) {
        self.relocates = true;
    }

    /// Returns the handle at a place, or `None` if the place is not one whole handle or does not contain a part to keep.
    pub(super) fn replaced(
        &self,
        range: &Range,
        (offset, bytes): (u64, u64),
        kept: &[(u64, u64)],
    ) -> Option<Replaced> {
        let address = self.part_of(range, offset, bytes)?;
        let &[old] = self.tiles(address, bytes)?.as_slice() else {
            return None;
        };
        let mut next = offset;
        let mut parts = Vec::new();
        for (at, bytes) in kept {
            parts.push((self.part_of(range, *at, *bytes)?, *bytes));
            next = (*at >= next).then_some(at + bytes)?;
        }
        (next <= offset + bytes).then_some(Replaced { old, kept: parts })
    }

    /// Creates handles of a page each in a reserved range, copies the parts to them, and maps them under the parts. A
    /// failure changes nothing.
    pub(super) fn relocate_part(
        &mut self,
        Replaced { old, kept }: &Replaced,
        to: &Range,
    ) -> Result<(), SourceError> {
        let copied = to.bytes();
        self.asking(copied, |source| {
            source.commit_parts(to.address(), copied, source.page)
        })?;
        let _current = self.enter()?;
        let outcome = self.copy_parts(kept, to.address());
        let outcome = outcome.and_then(|()| self.exchange(*old, kept, to));
        if outcome.is_err() && self.lost.is_none() {
            self.end_parts(to.address(), copied);
        }
        outcome.map_err(|error| self.refused(error, copied))
    }

    /// Copies parts of mapped memory to an address, one after the other, and waits for the copies, even after a failure.
    fn copy_parts(&mut self, parts: &[(u64, u64)], to: u64) -> Result<(), CudaError> {
        let stream = CudaStream::new(&self.device)?;
        let mut target = to;
        let mut outcome = Ok(());
        for (address, bytes) in parts {
            let driver = self.driver();
            // SAFETY: both parts are mapped, they do not overlap, and they stay mapped until the wait below.
            outcome = unsafe { driver.copy_on_device(target, *address, *bytes as usize, stream.handle()) };
            if outcome.is_err() {
                break;
            }
            target += bytes;
        }
        if let Err(error) = insist(|| stream.synchronize()) {
            // The copies may still run, so neither place can be unmapped.
            self.lost = Some(error);
            return Err(error);
        }
        outcome
    }

    /// Maps new handles in place of an old one. After a failure the old handle is mapped as before.
    fn exchange(&mut self, old: (u64, Part), kept: &[(u64, u64)], from: &Range) -> Result<(), CudaError> {
        let new = self.tiles(from.address(), from.bytes()).unwrap_or_default();
        self.unmap(&[old]).map_err(|(_, error)| error)?;
        let mut handles = new.iter().map(|(_, part)| *part);
        let mut mapped = Vec::new();
        for (address, bytes) in kept {
            let count = (bytes / self.page) as usize;
            let pages: Vec<Part> = handles.by_ref().take(count).collect();
            match self.map_again(pages.into_iter(), *address, *bytes) {
                Ok(there) => mapped.extend(there),
                Err(error) => {
                    self.unmap_again(&mapped);
                    self.restore(old);
                    return Err(error);
                }
            }
        }
        // The handles are mapped at both places now.
        self.unmap_again(&new);
        for (address, _) in &new {
            self.parts.remove(address);
        }
        let (address, part) = old;
        self.parts.remove(&address);
        self.release_handle(part.handle);
        self.used -= part.bytes;
        self.parts.extend(mapped);
        Ok(())
    }

    /// Maps a handle again at the place from which it was unmapped.
    fn restore(&mut self, (address, part): (u64, Part)) {
        if let Err(stuck) = self.map_again(std::iter::once(part), address, part.bytes) {
            // Blocks are at these addresses, but no memory is mapped there.
            self.lost = Some(stuck);
        }
    }
}
