//! Copies of ordinary memory to and from a device by way of a few pinned slots.

use super::abi::StreamHandle;
use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::driver::Driver;
use super::error::CudaError;
use super::pinned::CudaPinned;
use super::staged::Staged;
use super::stream::CudaStream;
use super::stream::mark::{Mark, expect_uncaptured, settle, settle_on};
use super::transfer_error::TransferError;
use millpond_account::error::AllocError;
use millpond_os::thread::thread_number;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use millpond_pool::unpooled::Unpooled;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The default number of slots, and the bytes of each. The first slot is filled before any copy begins, and each copy begins with the
/// link's latency. The size of a slot is a compromise between the two.
const SLOTS: usize = 3;
const SLOT: usize = 8 << 20;

/// A number that no thread has.
const NOBODY: u32 = 0;

/// The reason why a [`Staging`] could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// There are fewer than two slots, so that nothing can overlap, or the slots have no bytes.
    #[error("a staging takes two slots at least, of a byte at least: not {slots} of {bytes}")]
    Slots {
        /// The number of slots that was requested.
        slots: usize,
        /// The bytes of each slot.
        bytes: usize,
    },
    /// The pinned memory of the slots could not be allocated.
    #[error("no pinned memory for the slots: {0}")]
    Memory(#[from] AllocError),
    /// The driver returned an error.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The function that copies bytes between ordinary memory and a slot. Both slices have the same length.
type OnHost = dyn Fn(&mut [u8], &[u8]) + Send + Sync;

/// A running copy through a [`Staging`]. It owns the buffer on the host and the buffer on the device until it is complete.
type Owned<H, T> = Staged<(H, DeviceBuffer<T>)>;
type OwnedError<H, T> = TransferError<(H, DeviceBuffer<T>)>;

/// A ring of pinned slots through which ordinary memory is copied to a device and back. While the device copies one slot, the host copies
/// the next.
///
/// The driver copies ordinary memory in the same way, but with one slot and no overlap. That takes about twice as long as a copy from
/// pinned memory. Several threads may use a staging. The pieces of their uploads take turns, and a download has the staging alone.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool, Staging};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let staging = Staging::new(&device)?;
/// let numbers: Vec<u32> = (0..100_000).collect();
/// let mut there = pool.alloc::<u32>(numbers.len(), &stream)?;
/// staging.upload(&numbers, &mut there)?;
/// let mut back = vec![0; numbers.len()];
/// staging.download(&there, &mut back)?;
/// assert_eq!(back, numbers);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Staging(Arc<Shared>);

struct Shared {
    device: CudaDevice,
    slot_bytes: usize,
    copy: Box<OnHost>,
    /// The observer of bytes that were examined or packed.
    packed: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
    ring: Mutex<Ring>,
    /// The thread that holds the ring. The copy functions run on that thread and must not lock the ring again.
    at_work: AtomicU32,
}

/// A lock of the ring by one thread.
struct Turn<'a> {
    at_work: &'a AtomicU32,
    ring: MutexGuard<'a, Ring>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.at_work.store(NOBODY, Ordering::Relaxed);
    }
}

impl Deref for Turn<'_> {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.ring
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }
}

/// The slots, and the index of the next one.
struct Ring {
    slots: Vec<Slot>,
    next: usize,
}

impl Ring {
    fn at(&mut self, turn: usize) -> &mut Slot {
        let count = self.slots.len();
        &mut self.slots[turn % count]
    }

    fn next(&mut self) -> &mut Slot {
        let turn = self.next;
        self.next = (turn + 1) % self.slots.len();
        self.at(turn)
    }
}

/// A piece of pinned memory, and its present use.
///
/// Invariant: unless it is free, the device may read and write the memory until `mark` is past, or until all work that was queued on the
/// stream by then is complete.
struct Slot {
    memory: ManuallyDrop<Buffer<u8>>,
    mark: Mark,
    busy: Busy,
}

enum Busy {
    Free,
    Marked,
    /// The copy in progress could not be marked.
    Unmarked(CudaStream),
}

impl Slot {
    /// Waits until the device no longer uses the slot.
    fn settle(&mut self) -> Result<(), CudaError> {
        let outcome = match &self.busy {
            Busy::Free => return Ok(()),
            Busy::Marked => settle(|| self.mark.wait()),
            Busy::Unmarked(stream) => settle_on(stream, || stream.synchronize()),
        };
        if !outcome.is_err_and(|why| !why.over) {
            self.busy = Busy::Free;
        }
        outcome.map_err(|why| why.error)
    }

    /// Queues a copy to or from the slot's memory on a stream.
    fn queue(
        &mut self,
        stream: &CudaStream,
        copy: impl FnOnce(&mut Self, &Driver, StreamHandle) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let _current = stream.device().enter()?;
        let queued = copy(self, stream.device().driver(), stream.handle());
        // If the driver returned an error, the copy may have begun all the same.
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
            // SAFETY: nobody uses the memory any more, and the slot is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl Staging {
    /// Creates a staging with three slots of 8 MiB.
    ///
    /// # Errors
    /// Returns a [`StagingError`] if the slots cannot be allocated.
    pub fn new(device: &CudaDevice) -> Result<Self, StagingError> {
        Self::with_slots(device, SLOTS, SLOT)
    }

    /// Creates a staging with at least two slots of `bytes` bytes each. More than three slots have no benefit if both sides copy at a
    /// steady speed.
    ///
    /// # Errors
    /// Returns a [`StagingError`] if the numbers are too small or the slots cannot be allocated.
    pub fn with_slots(device: &CudaDevice, slots: usize, bytes: usize) -> Result<Self, StagingError> {
        Self::with_copy(device, slots, bytes, <[u8]>::copy_from_slice)
    }

    /// Creates a staging with a function that copies bytes on the host, for hosts on which one thread's copy is slower than the link. The
    /// function copies from its second argument to its first, which have the same length. Bytes that it does not copy keep the previous
    /// content of the slot or the target.
    ///
    /// The function runs while the staging is locked, so it must not wait for another copy through the same staging. A copy that it
    /// requests itself fails with [`CudaError::Reentered`].
    ///
    /// # Errors
    /// Returns the errors of [`with_slots`](Self::with_slots).
    pub fn with_copy(
        device: &CudaDevice,
        slots: usize,
        bytes: usize,
        copy: impl Fn(&mut [u8], &[u8]) + Send + Sync + 'static,
    ) -> Result<Self, StagingError> {
        if slots < 2 || bytes == 0 {
            return Err(StagingError::Slots { slots, bytes });
        }
        let source = Unpooled::over(Box::new(CudaPinned::new(device)));
        let slot = |_| {
            Ok(Slot {
                mark: Mark::new(device)?,
                memory: ManuallyDrop::new(source.alloc_zeroed(bytes)?),
                busy: Busy::Free,
            })
        };
        let slots = (0..slots).map(slot).collect::<Result<_, StagingError>>()?;
        Ok(Self(Arc::new(Shared {
            device: device.clone(),
            slot_bytes: bytes,
            copy: Box::new(copy),
            packed: OnceLock::new(),
            ring: Mutex::new(Ring { slots, next: 0 }),
            at_work: AtomicU32::new(NOBODY),
        })))
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// Returns the bytes of each slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }

    /// Copies elements from the host to the device, on the buffer's stream. Returns when all of them have been read. The last ones may
    /// still be on their way from the slots; later work on the stream comes after them.
    ///
    /// # Errors
    /// Returns an error if the lengths or the devices differ, and the errors of the driver. The slots stay usable after an error.
    pub fn upload<T: Element>(&self, from: &[T], to: &mut DeviceBuffer<T>) -> Result<(), CudaError> {
        self.expect(from.len(), to)?;
        let mut at = to.address();
        for piece in bytemuck::cast_slice::<T, u8>(from).chunks(self.slot_bytes()) {
            // SAFETY: the buffer has these bytes from there.
            unsafe { self.send_plain(to.stream(), at, piece) }?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes that fit into a slot to an address, through the next slot.
    ///
    /// # Safety
    /// The address must have at least that many bytes, and they must be used only in the order of the stream.
    pub(super) unsafe fn send_plain(
        &self,
        stream: &CudaStream,
        at: u64,
        piece: &[u8],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees this.
        let sent = unsafe {
            self.send(stream, at, |slot| {
                if let Some(memory) = slot.get_mut(..piece.len()) {
                    (self.0.copy)(memory, piece);
                }
                piece.len()
            })
        };
        sent.map(|_| ())
    }

    /// Calls `fill` with the next slot, and copies as many bytes of it to an address as `fill` returns. Returns that number.
    ///
    /// # Safety
    /// The address must have at least that many bytes, and they must be used only in the order of the stream.
    pub(super) unsafe fn send(
        &self,
        stream: &CudaStream,
        at: u64,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, CudaError> {
        // The slot is filled again before a captured copy runs.
        expect_uncaptured(stream)?;
        let mut ring = self.ring()?;
        let slot = ring.next();
        slot.settle()?;
        let bytes = fill(&mut slot.memory).min(slot.memory.len());
        if bytes > 0 {
            slot.queue(stream, |slot, driver, stream| {
                // SAFETY: the caller guarantees the address. The slot has these bytes, and is busy from here on.
                unsafe { driver.copy_to_device(at, slot.memory.as_ptr().cast(), bytes, stream) }
            })?;
        }
        Ok(bytes)
    }

    /// Sets a callback that receives the number of bytes that [`upload_compressed`](Self::upload_compressed) has examined or packed. It is
    /// for measurements of the host's work. Only the first call has an effect.
    #[doc(hidden)]
    pub fn tell_of_packing(&self, told: impl Fn(usize) + Send + Sync + 'static) {
        let _ = self.0.packed.set(Box::new(told));
    }

    pub(super) fn tell_packed(&self, bytes: usize) {
        if let Some(told) = self.0.packed.get() {
            told(bytes);
        }
    }

    /// Copies the elements to the host, on the buffer's stream, and waits until the copy is complete.
    ///
    /// # Errors
    /// Returns the errors of [`upload`](Self::upload).
    pub fn download<T: Element>(&self, from: &DeviceBuffer<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.expect(to.len(), from)?;
        expect_uncaptured(from.stream())?;
        let mut ring = self.ring()?;
        let whole = self.slot_bytes();
        let (bytes, stream) = (bytemuck::cast_slice_mut::<T, u8>(to), from.stream());
        let total = bytes.len();
        // Queues the device's copy of the piece at `offset` to the next slot.
        let ask = |ring: &mut Ring, offset: usize| {
            let slot = ring.next();
            slot.settle()?;
            slot.queue(stream, |slot, driver, stream| {
                let (at, len) = (from.address() + offset as u64, whole.min(total - offset));
                // SAFETY: as in `upload`.
                unsafe { driver.copy_to_host(slot.memory.as_mut_ptr().cast(), at, len, stream) }
            })
        };
        let first = ring.next;
        let ahead = ring.slots.len() * whole;
        for offset in (0..total.min(ahead)).step_by(whole) {
            ask(&mut ring, offset)?;
        }
        for (number, piece) in bytes.chunks_mut(whole).enumerate() {
            let slot = ring.at(first + number);
            slot.settle()?;
            if let Some(memory) = slot.memory.get(..piece.len()) {
                (self.0.copy)(piece, memory);
            }
            // The slot that has become free is the next in turn.
            let offset = number * whole + ahead;
            if offset < total {
                ask(&mut ring, offset)?;
            }
        }
        Ok(())
    }

    /// Runs [`upload`](Self::upload) on a thread of its own, which owns both ends meanwhile. `host` is anything that lends a slice, such as
    /// a [`Buffer`] or a `Vec`.
    ///
    /// # Errors
    /// Returns an error with both ends if the system cannot create a thread.
    pub fn upload_owned<T, H>(
        &self,
        host: H,
        device: DeviceBuffer<T>,
    ) -> Result<Owned<H, T>, OwnedError<H, T>>
    where
        T: Element,
        H: AsRef<[T]> + Send + 'static,
    {
        let staging = self.clone();
        Staged::begin((host, device), move |(host, device)| {
            staging.upload((*host).as_ref(), device)
        })
    }

    /// Runs [`download`](Self::download) on a thread of its own, which owns both ends meanwhile.
    ///
    /// # Errors
    /// Returns an error with both ends if the system cannot create a thread.
    pub fn download_owned<T, H>(
        &self,
        device: DeviceBuffer<T>,
        host: H,
    ) -> Result<Owned<H, T>, OwnedError<H, T>>
    where
        T: Element,
        H: AsMut<[T]> + Send + 'static,
    {
        let staging = self.clone();
        Staged::begin((host, device), move |(host, device)| {
            staging.download(device, host.as_mut())
        })
    }

    /// Locks the ring.
    fn ring(&self) -> Result<Turn<'_>, CudaError> {
        let (shared, thread) = (&*self.0, thread_number());
        // Only this thread can have stored its own number.
        if shared.at_work.load(Ordering::Relaxed) == thread {
            return Err(CudaError::Reentered);
        }
        // Only the copy function can have panicked under the lock. Each slot records its own state, so the ring stays valid.
        let ring = shared.ring.lock().unwrap_or_else(PoisonError::into_inner);
        shared.at_work.store(thread, Ordering::Relaxed);
        Ok(Turn {
            at_work: &shared.at_work,
            ring,
        })
    }

    pub(super) fn expect<T: Element>(&self, found: usize, device: &DeviceBuffer<T>) -> Result<(), CudaError> {
        device.stream().expect_on(self.device())?;
        if found == device.len() {
            return Ok(());
        }
        Err(CudaError::Length {
            expected: device.len(),
            found,
        })
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging")
            .field("device", &self.device().number())
            .field("slot_bytes", &self.slot_bytes())
            .finish_non_exhaustive()
    }
}
