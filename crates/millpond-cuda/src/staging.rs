//! Copies of ordinary memory to and from a device through a few pinned slots.

mod slots;

use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::error::CudaError;
use super::fork;
use super::pieces::Pieces;
use super::pinned::CudaPinned;
use super::staged::Staged;
use super::stream::CudaStream;
use super::stream::mark::expect_uncaptured;
use super::transfer_error::TransferError;
use millpond_account::error::AllocError;
use millpond_pool::dtype::Element;
use millpond_pool::unpooled::Unpooled;
use slots::{Slot, Slots, Taken};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The default number of slots, and the bytes of each. On a machine with an H200, one thread copies 9 GB/s into slots of this size and
/// eight threads 59 GB/s, which is the speed of the link. Eight threads copy 34 GB/s into slots of 8 MiB, which do not fit into the
/// caches of the cores.
const SLOTS: usize = 16;
const SLOT: usize = 2 << 20;
/// The smallest number of bytes for each thread of a copy. For less, starting a thread takes longer than its part of the copy.
const LEAST: usize = 4 << 20;

/// The reason why a [`Staging`] could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// There are fewer than two slots, so that nothing can overlap, or the slots have no bytes.
    #[error("a staging needs at least 2 slots of at least 1 byte each, got {slots} slots of {bytes} bytes")]
    Slots {
        /// The number of slots that was requested.
        slots: usize,
        /// The bytes of each slot.
        bytes: usize,
    },
    /// The pinned memory of the slots could not be allocated.
    #[error("cannot allocate pinned memory for the slots: {0}")]
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

/// Pinned slots through which ordinary memory is copied to a device and back. While the device copies one slot, the host copies the next.
///
/// The driver copies ordinary memory in the same way, but with one thread and no overlap. With the feature `rayon`, a large copy uses
/// [several threads](fn@millpond_os::threads), at most one thread for two slots. Several threads of the program may use a staging at the
/// same time. Their copies share the slots.
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
    slots: Slots,
    /// The caller's function that copies on the host, if there is one. A copy calls it on one thread only.
    copy: Option<Box<OnHost>>,
    /// The observer of bytes that were examined or packed.
    packed: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
}

/// The stagings that the queues of each device share, as long as a queue has them.
static OF_QUEUES: Mutex<Vec<(u32, Weak<Shared>)>> = Mutex::new(Vec::new());

thread_local! {
    /// The addresses of the stagings whose copy functions are running on this thread.
    static COPYING: RefCell<Vec<*const Shared>> = const { RefCell::new(Vec::new()) };
}

impl Staging {
    /// Creates a staging with 16 slots of 2 MiB.
    ///
    /// # Errors
    /// Returns a [`StagingError`] if the slots cannot be allocated.
    pub fn new(device: &CudaDevice) -> Result<Self, StagingError> {
        Self::with_slots(device, SLOTS, SLOT)
    }

    /// Returns the staging that all queues of a device share, or creates it.
    pub(super) fn of_queues(device: &CudaDevice) -> Result<Self, StagingError> {
        // In a forked process, the thread that holds the lock may not exist.
        fork::check()?;
        let number = device.number();
        let all = || OF_QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |all: &[(u32, Weak<Shared>)]| {
            let mut of_device = all.iter().filter(|(of, _)| *of == number);
            of_device.find_map(|(_, staging)| staging.upgrade())
        };
        if let Some(shared) = find(&all()) {
            return Ok(Self(shared));
        }
        // The staging is created without the lock, because observers of its memory may copy too.
        let staging = Self::new(device)?;
        let mut all = all();
        if let Some(shared) = find(&all) {
            drop(all);
            return Ok(Self(shared));
        }
        all.retain(|(_, staging)| staging.strong_count() > 0);
        all.push((number, Arc::downgrade(&staging.0)));
        Ok(staging)
    }

    /// Creates a staging with at least two slots of `bytes` bytes each. A thread of a copy uses two slots in turn, so more slots let more
    /// threads copy. Slots that fit into the cache of a core are faster than larger ones.
    ///
    /// # Errors
    /// Returns a [`StagingError`] if the numbers are too small or the slots cannot be allocated.
    pub fn with_slots(device: &CudaDevice, slots: usize, bytes: usize) -> Result<Self, StagingError> {
        Self::build(device, slots, bytes, None)
    }

    /// Creates a staging with a function that copies bytes on the host, for example one that uses its own store instructions. The function
    /// copies from its second argument to its first, which have the same length. Bytes that it does not copy keep the previous content of
    /// the slot or the target. A copy calls it on one thread only, which is the caller's thread unless the copy owns both ends.
    ///
    /// The function runs while its copy has a slot, so it must not wait for another copy through the same staging. A copy that it requests
    /// itself fails with [`CudaError::Reentered`].
    ///
    /// # Errors
    /// Returns the errors of [`with_slots`](Self::with_slots).
    pub fn with_copy(
        device: &CudaDevice,
        slots: usize,
        bytes: usize,
        copy: impl Fn(&mut [u8], &[u8]) + Send + Sync + 'static,
    ) -> Result<Self, StagingError> {
        Self::build(device, slots, bytes, Some(Box::new(copy)))
    }

    fn build(
        device: &CudaDevice,
        slots: usize,
        bytes: usize,
        copy: Option<Box<OnHost>>,
    ) -> Result<Self, StagingError> {
        if slots < 2 || bytes == 0 {
            return Err(StagingError::Slots { slots, bytes });
        }
        let source = Unpooled::over(Box::new(CudaPinned::new(device)));
        let slot = |_| Ok(Slot::new(device, source.alloc_zeroed(bytes)?)?);
        let slots = (0..slots).map(slot).collect::<Result<_, StagingError>>()?;
        Ok(Self(Arc::new(Shared {
            device: device.clone(),
            slot_bytes: bytes,
            slots: Slots::new(slots),
            copy,
            packed: OnceLock::new(),
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
    /// still be in the slots. Later work on the stream comes after their copies.
    ///
    /// # Errors
    /// Returns an error if the lengths or the devices differ, and the errors of the driver. The slots stay usable after an error.
    pub fn upload<T: Element>(&self, from: &[T], to: &mut DeviceBuffer<T>) -> Result<(), CudaError> {
        self.expect(from.len(), to)?;
        self.expect_outside(to.stream())?;
        let (bytes, at, stream) = (bytemuck::cast_slice::<T, u8>(from), to.address(), to.stream());
        let places = (at..).step_by(self.slot_bytes());
        let pieces = Pieces::new(places.zip(bytes.chunks(self.slot_bytes())));
        pieces.share(self.threads(bytes.len()), || {
            while let Some((at, piece)) = pieces.take() {
                // SAFETY: the buffer has these bytes at this address.
                unsafe { self.send_plain(self.slot(), stream, at, piece) }?;
            }
            Ok(())
        })
    }

    /// Returns the number of threads for a copy of that many bytes.
    pub(super) fn threads(&self, bytes: usize) -> usize {
        let most = (bytes / LEAST).min(self.0.slots.len() / 2);
        if self.0.copy.is_some() || most < 2 {
            return 1;
        }
        most.min(millpond_os::threads())
    }

    /// Copies bytes that fit into a slot to an address, through a slot.
    ///
    /// # Safety
    /// The address must have at least that many bytes, and they must be used only in the order of the stream.
    pub(super) unsafe fn send_plain(
        &self,
        mut slot: Taken<'_>,
        stream: &CudaStream,
        at: u64,
        piece: &[u8],
    ) -> Result<(), CudaError> {
        if let Some(memory) = slot.settle()?.get_mut(..piece.len()) {
            self.copy(memory, piece);
        }
        // SAFETY: the caller guarantees the address, and the slot was settled.
        unsafe { slot.send(stream, at, piece.len()) }
    }

    /// Takes a slot, and waits for one if other threads have them all. The calling thread must not have a slot.
    pub(super) fn slot(&self) -> Taken<'_> {
        self.0.slots.take()
    }

    /// Copies bytes on the host. Both slices have the same length.
    fn copy(&self, to: &mut [u8], from: &[u8]) {
        /// Removes the staging from `COPYING`, also if the caller's function panics.
        struct Copying;
        impl Drop for Copying {
            fn drop(&mut self) {
                COPYING.with_borrow_mut(Vec::pop);
            }
        }
        let Some(copy) = &self.0.copy else {
            return to.copy_from_slice(from);
        };
        COPYING.with_borrow_mut(|copying| copying.push(&raw const *self.0));
        let _copying = Copying;
        copy(to, from);
    }

    /// Checks that a copy may begin. The staging's own copy function must not request one. A captured stream cannot have one, because its
    /// copies run later, when other data is in the slots.
    pub(super) fn expect_outside(&self, stream: &CudaStream) -> Result<(), CudaError> {
        if COPYING.with_borrow(|copying| copying.contains(&(&raw const *self.0))) {
            return Err(CudaError::Reentered);
        }
        expect_uncaptured(stream)
    }

    /// Sets a callback that receives the number of bytes that [`upload_compressed`](Self::upload_compressed) has packed, including samples.
    /// It is for measurements of the host's work. Only the first call has an effect.
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
        self.expect_outside(from.stream())?;
        // SAFETY: the buffer has this many bytes.
        unsafe { self.receive(from.stream(), from.address(), bytemuck::cast_slice_mut(to)) }
    }

    /// Copies bytes from an address to the host, and waits until the copy is complete.
    ///
    /// # Safety
    /// The address must have at least that many bytes, and they must be used only in the order of the stream. The stream must not be
    /// captured.
    pub(super) unsafe fn receive(
        &self,
        stream: &CudaStream,
        from: u64,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        let (threads, slots) = (self.threads(bytes.len()), &self.0.slots);
        let ahead = slots.len() / threads;
        let places = (from..).step_by(self.slot_bytes());
        let pieces = Pieces::new(places.zip(bytes.chunks_mut(self.slot_bytes())));
        pieces.share(threads, || {
            let mut going: VecDeque<(Taken<'_>, &mut [u8])> = VecDeque::new();
            loop {
                while going.len() < ahead {
                    // A thread that has a slot must not wait for another one. Otherwise two threads could wait for each other's slots.
                    let Some(mut slot) = (match going.len() {
                        0 => Some(self.slot()),
                        _ => slots.try_take(),
                    }) else {
                        break;
                    };
                    let Some((at, piece)) = pieces.take() else { break };
                    slot.settle()?;
                    // SAFETY: the caller guarantees these bytes, and the slot is settled.
                    unsafe { slot.receive(stream, at, piece.len()) }?;
                    going.push_back((slot, piece));
                }
                let Some((mut slot, piece)) = going.pop_front() else {
                    return Ok(());
                };
                if let Some(memory) = slot.settle()?.get(..piece.len()) {
                    self.copy(piece, memory);
                }
            }
        })
    }

    /// Runs [`upload`](Self::upload) on a thread of its own, which owns both ends meanwhile. `host` is anything that lends a slice, such as
    /// a [`Buffer`](millpond_pool::buffer::Buffer) or a `Vec`.
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
