//! Ordinary memory copied to and from a device by way of a few pinned pieces.

use super::abi::StreamHandle;
use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::driver::Driver;
use super::error::CudaError;
use super::mark::{Mark, expect_uncaptured, settle, settle_on};
use super::pinned::CudaPinned;
use super::staged::Staged;
use super::stream::CudaStream;
use super::transfer::TransferError;
use crate::buffer::Buffer;
use crate::dtype::Element;
use crate::error::AllocError;
use crate::thread::thread_number;
use crate::unpooled::Unpooled;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Slots and the bytes of each, where nothing is said. The first slot is filled while nothing is copied yet, and each copy begins
/// with the link's latency: a slot is as large as makes the latter small and the former bearable.
const SLOTS: usize = 3;
const SLOT: usize = 8 << 20;

/// No thread has this number.
const NOBODY: u32 = 0;

/// Why a [`Staging`] could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// There are fewer than two slots, so that nothing could overlap, or they have no bytes.
    #[error("a staging takes two slots at least, of a byte at least: not {slots} of {bytes}")]
    Slots {
        /// Slots asked for.
        slots: usize,
        /// Bytes of each.
        bytes: usize,
    },
    /// There is no pinned memory for the slots.
    #[error("no pinned memory for the slots: {0}")]
    Memory(#[from] AllocError),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// How bytes get from ordinary memory to a slot and back; both sides are as long.
type OnHost = dyn Fn(&mut [u8], &[u8]) + Send + Sync;

/// A copy on its way through a staging, with the host's end and the device's; and why there is none.
type Owned<H, T> = Staged<(H, DeviceBuffer<T>)>;
type OwnedError<H, T> = TransferError<(H, DeviceBuffer<T>)>;

/// A ring of pinned slots through which ordinary memory is copied to a device and back: while the device copies one slot the host
/// copies the next.
///
/// What the driver does with ordinary memory is the same with one slot and no overlap, which takes about twice as long as from pinned
/// memory. Several threads may use a staging: pieces of what they send take turns, and a copy to the host has it alone.
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
    /// Told of bytes that were looked at or packed.
    packed: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
    ring: Mutex<Ring>,
    /// The thread that has the ring: the functions that copy run on it, and are not to ask for the ring again.
    at_work: AtomicU32,
}

/// A thread has the ring, until this is dropped.
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

/// The slots, and whose turn it is.
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

/// A piece of pinned memory, and who uses it.
///
/// Invariant: unless it is free the device may read and write the memory until `mark` is past, or all that was put on the stream by
/// then.
struct Slot {
    memory: ManuallyDrop<Buffer<u8>>,
    mark: Mark,
    busy: Busy,
}

enum Busy {
    Free,
    Marked,
    /// What goes on could not be marked.
    Unmarked(CudaStream),
}

impl Slot {
    /// Waits until the device has done with it.
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

    /// Puts a copy to or from its memory on a stream.
    fn queue(
        &mut self,
        stream: &CudaStream,
        copy: impl FnOnce(&mut Self, &Driver, StreamHandle) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let _current = stream.device().enter()?;
        let queued = copy(self, stream.device().driver(), stream.handle());
        // Where the driver refused it may have begun all the same.
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
            // SAFETY: nobody uses the memory any more, and this is the last of the slot.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl Staging {
    /// Three slots of 8 MiB.
    ///
    /// # Errors
    /// [`StagingError`].
    pub fn new(device: &CudaDevice) -> Result<Self, StagingError> {
        Self::with_slots(device, SLOTS, SLOT)
    }

    /// So many slots of so many bytes, two at least. More than three are of no use where copies take turns evenly.
    ///
    /// # Errors
    /// [`StagingError`].
    pub fn with_slots(device: &CudaDevice, slots: usize, bytes: usize) -> Result<Self, StagingError> {
        Self::with_copy(device, slots, bytes, <[u8]>::copy_from_slice)
    }

    /// The same with a function that copies bytes on the host, where one thread's copy is slower than the link: from its second
    /// argument to its first, which are as long. What it leaves out keeps what the slot or the target held before.
    ///
    /// It runs while the staging is at work, which others wait for: it is not to wait for another copy through it. One that it asks for
    /// itself is refused ([`CudaError::Reentered`]).
    ///
    /// # Errors
    /// [`StagingError`].
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

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// Bytes of each slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }

    /// Copies elements from the host, as many as there are on the device, on the buffer's stream. Returns when all of them have been
    /// read: the last ones are still on their way from the slots, which the stream's later work comes after.
    ///
    /// # Errors
    /// Where there are not as many, or on another device, and what the driver says. The slots serve the next copy all the same.
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

    /// Copies bytes that fit into a slot to an address, by the next slot.
    ///
    /// # Safety
    /// There are as many bytes at the address, and nobody uses them but in the order of the stream.
    pub(super) unsafe fn send_plain(
        &self,
        stream: &CudaStream,
        at: u64,
        piece: &[u8],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
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

    /// Has the next slot filled, and copies as many of its bytes as that answers to an address; answers them too.
    ///
    /// # Safety
    /// There are as many bytes at the address, and nobody uses them but in the order of the stream.
    pub(super) unsafe fn send(
        &self,
        stream: &CudaStream,
        at: u64,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, CudaError> {
        // A slot is filled anew long before what is written down of it is done.
        expect_uncaptured(stream)?;
        let mut ring = self.ring()?;
        let slot = ring.next();
        slot.settle()?;
        let bytes = fill(&mut slot.memory).min(slot.memory.len());
        if bytes > 0 {
            slot.queue(stream, |slot, driver, stream| {
                // SAFETY: the caller's; the slot has these bytes, and is busy from here on.
                unsafe { driver.copy_to_device(at, slot.memory.as_ptr().cast(), bytes, stream) }
            })?;
        }
        Ok(bytes)
    }

    /// Has somebody told of the bytes that are looked at or packed by [`upload_compressed`](Self::upload_compressed), once they were:
    /// whoever measures what the host does. The first who asks is told.
    #[doc(hidden)]
    pub fn tell_of_packing(&self, told: impl Fn(usize) + Send + Sync + 'static) {
        let _ = self.0.packed.set(Box::new(told));
    }

    pub(super) fn tell_packed(&self, bytes: usize) {
        if let Some(told) = self.0.packed.get() {
            told(bytes);
        }
    }

    /// Copies the elements to the host, as many as there is room for there, on the buffer's stream, and waits for them.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn download<T: Element>(&self, from: &DeviceBuffer<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.expect(to.len(), from)?;
        expect_uncaptured(from.stream())?;
        let mut ring = self.ring()?;
        let whole = self.slot_bytes();
        let (bytes, stream) = (bytemuck::cast_slice_mut::<T, u8>(to), from.stream());
        let total = bytes.len();
        // Has the device copy the piece that begins there to the next slot.
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
            // The slot that is free now is the next in turn.
            let offset = number * whole + ahead;
            if offset < total {
                ask(&mut ring, offset)?;
            }
        }
        Ok(())
    }

    /// [`upload`](Self::upload) on a thread of its own, which has both ends meanwhile. `host` is anything that lends a slice: a
    /// [`Buffer`], a `Vec`.
    ///
    /// # Errors
    /// Where the system gives no thread: both ends come back with it.
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

    /// [`download`](Self::download) on a thread of its own, which has both ends meanwhile.
    ///
    /// # Errors
    /// Where the system gives no thread: both ends come back with it.
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

    /// The ring, for as long as the answer lives.
    fn ring(&self) -> Result<Turn<'_>, CudaError> {
        let (shared, thread) = (&*self.0, thread_number());
        // Only this thread can have put itself there.
        if shared.at_work.load(Ordering::Relaxed) == thread {
            return Err(CudaError::Reentered);
        }
        // Whoever panicked under it was the function that copies: each slot says itself who uses it.
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
