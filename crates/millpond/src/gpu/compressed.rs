//! Copies to a device without their zeros, where that pays.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::kernel_error::KernelError;
use super::kernels::{self, Entry};
use super::launch::{Arguments, Shape};
use super::packing::{self, GROUP, HostSpeed, Speeds};
use super::pool::DevicePool;
use super::staging::Staging;
use super::stream::CudaStream;
use super::timer::CudaTimer;
use crate::dtype::Element;
use crate::error::AllocError;

/// What is not worth it whatever the speeds are, as a share.
const WORTH: f64 = 7.0 / 8.0;
/// Bytes of a copy for which speeds are looked at: below, measuring them takes longer.
const MEASURED: usize = 1 << 20;

/// Why a copy could not be sent [compressed](Staging::upload_compressed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedError {
    /// The driver refused, or lengths or devices do not go together.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernel that puts zeros back could not be loaded or launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is no memory on the device for what is sent.
    #[error("no memory on the device for what is sent: {0}")]
    Memory(#[from] AllocError),
}

/// What was sent for a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Bytes of the elements.
    pub bytes: u64,
    /// Bytes that went over the link for them.
    pub sent: u64,
}

impl Sent {
    /// Bytes sent over bytes of the elements: 1 where nothing was compressed.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.bytes == 0 {
            return 1.0;
        }
        self.sent as f64 / self.bytes as f64
    }

    /// Whether anything was compressed.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.sent < self.bytes
    }
}

impl Staging {
    /// [`upload`](Self::upload) without words that are zero, where a look at a few places says that this pays: they are left out on
    /// the host and put back by a kernel, so nothing is lost. What is sent lies in memory of `pool` meanwhile, as much as a slot has.
    ///
    /// It pays where the host leaves zeros out faster than the link carries bytes. How fast this host does it, and copies, is measured
    /// once in a process, and the link once for a device, with the first copy of 1 MiB or more that much of is zero: that one waits
    /// for its stream. Smaller ones are judged by their zeros alone. With the feature `rayon` [several threads](crate::threads) pack a
    /// slot. Where little is zero the elements are copied as they are, and where that shows only on the way, from
    /// there on: each slot by itself.
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
    /// As [`upload`](Self::upload); where the pool is another device's or has no memory, and where the kernel cannot be launched.
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
        // Groups do not go over the end of a slot.
        let piece = self.slot_bytes() / GROUP * GROUP;
        let share = packing::share(bytes).filter(|share| piece > 0 && *share <= WORTH);
        self.tell_packed(packing::sampled(bytes.len()));
        let Some(share) = share else {
            self.upload(from, to)?;
            return Ok(sent);
        };
        self.expect(from.len(), to)?;
        let stream = to.stream().clone();
        // In the order of the stream, and so is what it is given back to.
        let there = pool.alloc::<u8>(packing::worth(piece), &stream)?;
        if bytes.len().min(piece) >= MEASURED && !self.speeds(&stream, &there)?.pay(share) {
            self.upload(from, to)?;
            return Ok(sent);
        }
        let mut at = to.address();
        for piece in bytes.chunks(piece) {
            let whole = piece.len() / GROUP * GROUP;
            let mut packed = None;
            // SAFETY: packing comes to no more than it is worth, for which there is room there.
            let count = unsafe {
                self.send(&stream, there.address(), |slot| {
                    packed = packing::pack(&piece[..whole], slot);
                    packed.map_or(0, packing::Packed::bytes)
                })
            }?;
            self.tell_packed(whole);
            match packed {
                Some(packed) => {
                    let mut arguments = Arguments::default();
                    arguments.push(at);
                    arguments.push(there.address());
                    arguments.push(packed.groups as u64);
                    arguments.push(packed.kept as u64);
                    let shape = Shape::each(whole / 4);
                    // SAFETY: the buffer has these groups from there; what is packed was sent to memory of the stream just before, has
                    // as many words as it says, and is given back in the stream's order.
                    unsafe { kernels::run(Entry::Expand, (&stream, &[]), shape, arguments) }?;
                    let rest = &piece[whole..];
                    // SAFETY: the buffer has these bytes from there.
                    unsafe { self.send_plain(&stream, at + whole as u64, rest) }?;
                    sent.sent -= (whole - count) as u64;
                }
                // SAFETY: as above.
                None => unsafe { self.send_plain(&stream, at, piece) }?,
            }
            at += piece.len() as u64;
        }
        Ok(sent)
    }

    /// What the host does, and the link from the slots to memory there.
    fn speeds(&self, stream: &CudaStream, there: &DeviceBuffer<u8>) -> Result<Speeds, CudaError> {
        let host = match HostSpeed::known() {
            None if self.device().is_emulated() => {
                // Its clock is the only one that counts there, and the link the slower at any speed.
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

    /// Bytes a second of a copy of whatever is in a slot.
    fn measure_link(&self, stream: &CudaStream, there: &DeviceBuffer<u8>) -> Result<f64, CudaError> {
        let send = || {
            // SAFETY: so many bytes are there, on this stream, and what they become is looked at by nobody.
            unsafe { self.send(stream, there.address(), |_| there.len()) }
        };
        // The first one wakes the link, and has what was on the stream before done.
        send()?;
        let timer = CudaTimer::start(stream)?;
        let bytes = send()?;
        let time = timer.stop()?.as_secs_f64();
        Ok(bytes as f64 / time.max(1e-9))
    }

    /// Says how fast this host copies and packs, in bytes a second, before it was measured.
    #[doc(hidden)]
    pub fn assume_host(copy: f64, pack: f64) {
        HostSpeed { copy, pack }.assume();
    }
}

/// Packs whole groups of 4 KiB as a copy does that is sent compressed; answers to how many bytes, or none where it is not worth it.
#[doc(hidden)]
#[must_use]
pub fn pack(from: &[u8], to: &mut [u8]) -> Option<usize> {
    packing::pack(from, to).map(packing::Packed::bytes)
}
