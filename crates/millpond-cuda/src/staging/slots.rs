//! The pinned slots of a staging.

use crate::abi::StreamHandle;
use crate::device::CudaDevice;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::stream::CudaStream;
use crate::stream::mark::{Mark, settle, settle_on};
use millpond_pool::buffer::Buffer;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A piece of pinned memory, and its present use.
///
/// Invariant: unless the slot is free, the device may read and write the memory until `mark` is past, or until all work that was queued on
/// the stream by then is complete.
pub(crate) struct Slot {
    memory: ManuallyDrop<Buffer<u8>>,
    mark: Mark,
    busy: Busy,
}

enum Busy {
    Free,
    Marked,
    /// No event could be recorded after the copy on this stream.
    Unmarked(CudaStream),
}

impl Slot {
    pub(crate) fn new(device: &CudaDevice, memory: Buffer<u8>) -> Result<Self, CudaError> {
        Ok(Self {
            mark: Mark::new(device)?,
            memory: ManuallyDrop::new(memory),
            busy: Busy::Free,
        })
    }

    /// Waits until the device no longer uses the slot, and returns its memory.
    pub(crate) fn settle(&mut self) -> Result<&mut [u8], CudaError> {
        let outcome = match &self.busy {
            Busy::Free => Ok(()),
            Busy::Marked => settle(|| self.mark.wait()),
            Busy::Unmarked(stream) => settle_on(stream, || stream.synchronize()),
        };
        if !outcome.is_err_and(|why| !why.over) {
            self.busy = Busy::Free;
        }
        outcome.map_err(|why| why.error)?;
        Ok(&mut self.memory)
    }

    /// Queues a copy of the slot's first bytes to the device's memory.
    ///
    /// # Safety
    /// The address must have at least that many bytes, and they must be used only in the order of the stream. The slot must be
    /// [settled](Self::settle).
    pub(crate) unsafe fn send(
        &mut self,
        stream: &CudaStream,
        at: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let bytes = bytes.min(self.memory.len());
        if bytes == 0 {
            return Ok(());
        }
        self.queue(stream, |memory, driver, stream| {
            // SAFETY: the caller guarantees the address. The slot has these bytes, and is busy from here on.
            unsafe { driver.copy_to_device(at, memory.as_ptr().cast(), bytes, stream) }
        })
    }

    /// Queues a copy of the device's memory to the slot's first bytes.
    ///
    /// # Safety
    /// As for [`send`](Self::send).
    pub(crate) unsafe fn receive(
        &mut self,
        stream: &CudaStream,
        at: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let bytes = bytes.min(self.memory.len());
        self.queue(stream, |memory, driver, stream| {
            // SAFETY: as in `send`.
            unsafe { driver.copy_to_host(memory.as_mut_ptr().cast(), at, bytes, stream) }
        })
    }

    fn queue(
        &mut self,
        stream: &CudaStream,
        copy: impl FnOnce(&mut [u8], &Driver, StreamHandle) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let _current = stream.device().enter()?;
        let queued = copy(&mut self.memory, stream.device().driver(), stream.handle());
        // If the driver returned an error, the copy may still have begun.
        self.busy = match queued.and_then(|()| self.mark.record(stream)) {
            Ok(()) => Busy::Marked,
            Err(_) => Busy::Unmarked(stream.clone()),
        };
        queued
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.settle();
        if matches!(self.busy, Busy::Free) {
            // SAFETY: the memory is not used any more, and the slot is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// All slots of a staging. Each copy takes the slot that was returned first, because the device is most likely done with it.
pub(crate) struct Slots {
    all: Vec<Mutex<Slot>>,
    /// The indices of the slots that no thread has.
    free: Mutex<VecDeque<usize>>,
    returned: Condvar,
}

impl Slots {
    pub(crate) fn new(slots: Vec<Slot>) -> Self {
        Self {
            free: Mutex::new((0..slots.len()).collect()),
            all: slots.into_iter().map(Mutex::new).collect(),
            returned: Condvar::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes a slot, and waits for one if other threads have them all. The calling thread must not have a slot.
    pub(crate) fn take(&self) -> Taken<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(index) = free.pop_front() {
                return self.taken(index);
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a slot if one is free.
    pub(crate) fn try_take(&self) -> Option<Taken<'_>> {
        let index = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front();
        index.map(|index| self.taken(index))
    }

    fn taken(&self, index: usize) -> Taken<'_> {
        Taken {
            slots: self,
            index,
            // Only a function that copies on the host can have panicked. The slot records its own state, so it stays valid.
            slot: self.all[index].lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// A slot that one thread has. Dropping it returns the slot, which the device may still use.
pub(crate) struct Taken<'a> {
    slots: &'a Slots,
    index: usize,
    slot: MutexGuard<'a, Slot>,
}

impl Deref for Taken<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        &mut self.slot
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut free = self.slots.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push_back(self.index);
        self.slots.returned.notify_one();
    }
}
