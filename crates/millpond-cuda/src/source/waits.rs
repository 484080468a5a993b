//! Waits for the streams that use memory before the memory is given back, and keeps memory that must be given back later.
//!
//! Other libraries in the process may capture a stream at any time, without notifying a pool. The driver then refuses to wait for this
//! stream, and the refused call invalidates the capture. Therefore:
//!
//! - Calls that a capture would forbid are made in the thread's relaxed mode ([`enter_beside`](crate::CudaDevice)).
//! - A source never waits for the whole device. It waits for each stream that it knows, and first asks the driver whether the stream is
//!   captured. While a stream is captured, [`can_wait`](millpond_engine::Source::can_wait) is false. The engine then gives back no memory
//!   that requires a wait, and refuses requests that need this memory with [`SourceError::Held`](millpond_engine::SourceError::Held).
//! - Memory that is given back nevertheless stays held. A later call frees it. If the source is dropped first, `later.rs` keeps it.
//! - If the engine assumes that work is ordered although the source could not wait for it, the source is disordered: the pool hands out no
//!   block until a wait has succeeded. A capture never makes a device lost.

use super::{CudaSource, Way};
use crate::error::{CudaError, insist};
use crate::streams::Streams;
use std::mem::{replace, take};

/// Memory that was given back and is held until its streams can be waited for: addresses of segments, addresses and bytes of whole handles
/// and of stale mappings, and ranges that are released when nothing is mapped in them any more.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    pub(super) segments: Vec<u64>,
    pub(super) parts: Vec<(u64, u64)>,
    pub(super) stale: Vec<(u64, u64)>,
    pub(super) ranges: Vec<u64>,
}

impl Postponed {
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.parts.is_empty() && self.stale.is_empty() && self.ranges.is_empty()
    }
}

impl CudaSource {
    /// Waits for the streams that have used this memory, and frees the memory that was given back earlier. Returns whether the wait
    /// succeeded. If another library captures one of the streams, this does not wait. Failed calls are retried, so that a device counts as
    /// lost only after repeated failures.
    pub(super) fn wait_for_device(&mut self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        match self.streams.synchronize() {
            Ok(()) => {
                self.events().all_passed();
                self.disordered = false;
                self.end_postponed();
                self.lost.is_none()
            }
            Err(error) => {
                if !error.is_of_capture() {
                    self.lost = Some(error);
                }
                false
            }
        }
    }

    /// Checks that blocks may be handed out: the device is not lost, and all work that the engine assumes to be ordered is.
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] until the streams can be waited for, and the error that made the device unusable.
    pub(crate) fn usable(&mut self) -> Result<(), CudaError> {
        if self.disordered {
            self.wait_for_device();
        }
        match self.lost {
            Some(error) => Err(error),
            None if self.disordered => Err(CudaError::Captured),
            None => Ok(()),
        }
    }

    /// Frees postponed memory. The caller has waited for the streams.
    fn end_postponed(&mut self) {
        if self.postponed.is_empty() {
            return;
        }
        let Ok(_current) = self.enter() else { return };
        for address in take(&mut self.postponed.segments) {
            self.end_segment(address);
        }
        for (address, bytes) in take(&mut self.postponed.stale) {
            self.end_stale(address, bytes);
        }
        for (address, bytes) in take(&mut self.postponed.parts) {
            self.end_parts(address, bytes);
        }
        self.end_postponed_ranges();
    }

    fn end_segment(&mut self, address: u64) {
        let Some((bytes, start)) = self.segments.get(&address).copied() else {
            return;
        };
        if self.give_plain(start).is_err_and(|error| error.is_of_capture()) {
            self.postponed.segments.push(address);
            return;
        }
        self.segments.remove(&address);
        self.used -= bytes;
    }

    pub(super) fn end_parts(&mut self, address: u64, bytes: u64) {
        let parts = self.tiles(address, bytes).unwrap_or_default();
        let outcome = self.unmap(&parts);
        let unmapped = outcome.map_or_else(|(unmapped, _)| unmapped, |()| parts.len());
        for (at, part) in &parts[..unmapped] {
            self.release_handle(part.handle);
            self.used -= part.bytes;
            self.parts.remove(at);
        }
        if let Err((_, error)) = outcome {
            if error.is_of_capture() {
                let at = parts[unmapped].0;
                self.postponed.parts.push((at, address + bytes - at));
            } else {
                // The pages are still mapped and cannot be used, so they stay counted.
                self.lost = Some(error);
            }
        }
    }

    /// Releases the postponed ranges in which nothing is mapped. A range that the driver refuses to free stays reserved.
    pub(super) fn end_postponed_ranges(&mut self) {
        let Ok(_current) = self.enter() else { return };
        for address in take(&mut self.postponed.ranges) {
            let Some(bytes) = self.ranges.get(&address).copied() else {
                continue;
            };
            if !self.is_bare(address, bytes) {
                self.postponed.ranges.push(address);
                continue;
            }
            // SAFETY: the range was reserved by us, and nothing is mapped there.
            if unsafe { self.driver().address_free(address, bytes as usize) }.is_ok() {
                self.ranges.remove(&address);
            }
        }
    }

    /// Frees all memory. Returns whether nothing is left to do. A lost device's memory is lost with it and cannot be freed.
    pub(super) fn end(&mut self) -> bool {
        if !self.wait_for_device() {
            return self.lost.is_some();
        }
        let Ok(_current) = self.enter() else { return true };
        for (at, part) in take(&mut self.parts) {
            if self.unmap(&[(at, part)]).is_ok() && !part.stale {
                self.release_handle(part.handle);
            }
        }
        for (address, bytes) in take(&mut self.ranges) {
            // SAFETY: the range was reserved by us, and nothing is mapped there any more.
            let _ = insist(|| unsafe { self.driver().address_free(address, bytes as usize) });
        }
        for (_, start) in take(&mut self.segments).into_values() {
            // If the driver refuses, it frees the segment with the context.
            let _ = self.give_plain(start);
        }
        self.events().end(self.driver());
        if let Way::Pooled(pool, _) = self.way {
            // SAFETY: the pool is ours, and nothing of it is held any more.
            let _ = insist(|| unsafe { self.driver().pool_destroy(pool) });
        }
        true
    }

    /// Moves everything that is held to a new source.
    pub(super) fn remains(&mut self) -> Self {
        // The creators of these streams have promised that they live as long as the original source.
        self.streams.outlive_others(true);
        Self {
            device: self.device.clone(),
            way: self.way.clone(),
            sharing: self.sharing.clone(),
            ranges: take(&mut self.ranges),
            segments: take(&mut self.segments),
            parts: take(&mut self.parts),
            streams: replace(&mut self.streams, Streams::new(&self.device)),
            events: take(&mut self.events),
            postponed: take(&mut self.postponed),
            ..*self
        }
    }
}
