//! Copies to a device without the zeros of the data, if that is faster.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::kernel_error::KernelError;
use super::kernels::{self, Entry};
use super::launch::{Arguments, Shape};
use super::packing::{self, GROUP, HostSpeed, Speeds};
use super::pieces::Pieces;
use super::pool::DevicePool;
use super::staging::Staging;
use super::stream::CudaStream;
use super::timer::CudaTimer;
use millpond_account::error::AllocError;
use millpond_pool::dtype::Element;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The largest share of the original size for which compression is tried, whatever the speeds are.
const WORTH: f64 = 7.0 / 8.0;
/// The smallest copy in bytes for which speeds are measured. For smaller copies the measurement takes longer than the copy.
const MEASURED: usize = 1 << 20;

/// The reason why a copy could not be sent [compressed](Staging::upload_compressed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedError {
    /// The driver returned an error, or the lengths or devices differ.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernel that restores the zeros could not be loaded or launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device's memory for the compressed data could not be allocated.
    #[error("no memory on the device for what is sent: {0}")]
    Memory(#[from] AllocError),
}

/// The size of a copy, and the bytes that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The bytes of the elements.
    pub bytes: u64,
    /// The bytes that were sent over the link.
    pub sent: u64,
}

impl Sent {
    /// Returns the ratio of sent bytes to bytes of the elements. It is 1 if nothing was compressed.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.bytes == 0 {
            return 1.0;
        }
        self.sent as f64 / self.bytes as f64
    }

    /// Returns whether anything was compressed.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.sent < self.bytes
    }
}

impl Staging {
    /// Copies like [`upload`](Self::upload), but without the words that are zero, if a sample of the data shows that this is faster. The
    /// host leaves these words out and a kernel restores them, so nothing is lost. The compressed data is in memory of `pool` meanwhile,
    /// which has the size of a slot.
    ///
    /// Compression is faster if the host leaves zeros out faster than the link carries bytes. The host's speeds are measured once in a
    /// process, and the link once for a device, with the first copy of at least 1 MiB that contains enough zeros. That copy waits for its
    /// stream. Smaller copies are judged by their zeros alone. With the feature `rayon`, [several threads](fn@millpond_os::threads) pack a
    /// large copy, a slot each. If few words are zero, the elements are copied as they are. If that shows only during packing, it is decided
    /// for each slot by itself.
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
    /// let sparse: Vec<f32> = (0..1 << 20).map(|at| if at % 4 == 0 { 1.5 } else { 0.0 }).collect();
    /// let mut there = pool.alloc::<f32>(sparse.len(), &stream)?;
    /// let sent = Staging::new(&device)?.upload_compressed(&sparse, &mut there, &pool)?;
    /// assert!(sent.ratio() < 0.3);
    /// assert_eq!(there.to_vec()?, sparse);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`upload`](Self::upload), and an error if the pool is another device's or has no memory, or if the kernel
    /// cannot be launched.
    pub fn upload_compressed<T: Element>(
        &self,
        from: &[T],
        to: &mut DeviceBuffer<T>,
        pool: &DevicePool,
    ) -> Result<Sent, CompressedError> {
        let bytes = bytemuck::cast_slice::<T, u8>(from);
        let mut sent = Sent {
            bytes: bytes.len() as u64,
            sent: bytes.len() as u64,
        };
        // Groups do not cross the end of a slot.
        let piece = self.slot_bytes() / GROUP * GROUP;
        let share = packing::share(bytes).filter(|share| piece > 0 && *share <= WORTH);
        self.tell_packed(packing::sampled(bytes.len()));
        let Some(share) = share else {
            self.upload(from, to)?;
            return Ok(sent);
        };
        self.expect(from.len(), to)?;
        self.expect_outside(to.stream())?;
        let stream = to.stream().clone();
        // The memory is used in the order of the stream, and so is its next use.
        let there = pool.alloc::<u8>(packing::worth(piece), &stream)?;
        if bytes.len().min(piece) >= MEASURED
            && !self
                .speeds(&stream, &there)?
                .pay(share, self.threads(bytes.len()))
        {
            self.upload(from, to)?;
            return Ok(sent);
        }
        let places = (to.address()..).step_by(piece);
        let pieces = Pieces::new(places.zip(bytes.chunks(piece)));
        // The packed pieces use the same memory one after the other.
        let (order, left_out) = (Mutex::new(()), AtomicU64::new(0));
        pieces.share(self.threads(bytes.len()), || {
            while let Some((at, piece)) = pieces.take() {
                let (whole, rest) = piece.split_at(piece.len() / GROUP * GROUP);
                let mut slot = self.slot();
                let packed = packing::pack(whole, slot.settle()?);
                self.tell_packed(whole.len());
                let Some(packed) = packed else {
                    // SAFETY: the buffer has these bytes from there.
                    unsafe { self.send_plain(slot, &stream, at, piece) }?;
                    continue;
                };
                let mut arguments = Arguments::default();
                arguments.push(at);
                arguments.push(there.address());
                arguments.push(packed.groups as u64);
                arguments.push(packed.kept as u64);
                let shape = Shape::each(whole.len() / 4);
                let ordered = order.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: packing returns no more bytes than are worth it, that many are allocated there, and the slot is settled.
                unsafe { slot.send(&stream, there.address(), packed.bytes()) }?;
                // SAFETY: the buffer has these groups from there. The packed data was sent to memory of the stream just before, has as many
                // words as it says, and is given back in the stream's order.
                unsafe { kernels::run(Entry::Expand, (&stream, &[]), shape, arguments) }?;
                drop((ordered, slot));
                left_out.fetch_add((whole.len() - packed.bytes()) as u64, Ordering::Relaxed);
                if !rest.is_empty() {
                    // SAFETY: the buffer has these bytes from there.
                    unsafe { self.send_plain(self.slot(), &stream, at + whole.len() as u64, rest) }?;
                }
            }
            Ok::<(), CompressedError>(())
        })?;
        sent.sent -= left_out.into_inner();
        Ok(sent)
    }

    /// Returns the speeds of the host, and of the link from the slots to `there`.
    fn speeds(&self, stream: &CudaStream, there: &DeviceBuffer<u8>) -> Result<Speeds, CudaError> {
        let host = match HostSpeed::known() {
            None if self.device().is_emulated() => {
                // The emulated device's clock does not count the host's work, so packing pays at any speed of the link.
                let (host, link) = (HostSpeed::FREE, 1.0);
                return Ok(Speeds { host, link });
            }
            _ => HostSpeed::measured(),
        };
        let link = match self.device().link_speed().get() {
            Some(link) => *link,
            None => {
                let link = self.measure_link(stream, there)?;
                *self.device().link_speed().get_or_init(|| link)
            }
        };
        Ok(Speeds { host, link })
    }

    /// Measures the bytes per second of a copy of a slot's present content.
    fn measure_link(&self, stream: &CudaStream, there: &DeviceBuffer<u8>) -> Result<f64, CudaError> {
        let mut slot = self.slot();
        let mut send = || {
            slot.settle()?;
            // SAFETY: that many bytes are there, used on this stream, and nobody reads their new content. The slot is settled.
            unsafe { slot.send(stream, there.address(), there.len()) }
        };
        // The first copy activates the link, and completes the earlier work of the stream.
        send()?;
        let timer = CudaTimer::start(stream)?;
        send()?;
        let time = timer.stop()?.as_secs_f64();
        Ok(there.len() as f64 / time.max(1e-9))
    }

    /// Sets the speeds at which this host copies and packs, in bytes per second, if they were not measured before.
    #[doc(hidden)]
    pub fn assume_host(copy: f64, pack: f64) {
        HostSpeed { copy, pack }.assume();
    }
}

/// Packs whole groups of 4 KiB as a compressed copy does. Returns the number of bytes, or `None` if it is not worth it.
#[doc(hidden)]
#[must_use]
pub fn pack(from: &[u8], to: &mut [u8]) -> Option<usize> {
    packing::pack(from, to).map(packing::Packed::bytes)
}
