//! Compressed copies to a device. The host packs the data and a kernel (`kernels/unpack.cu`) unpacks it, if that is faster.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::kernel_error::KernelError;
use super::kernels::{self, Entry};
use super::launch::{Arguments, Shape, THREADS};
use super::pieces::Pieces;
use super::pool::DevicePool;
use super::speed::{HostSpeed, Speeds};
use super::staging::Staging;
use super::stream::CudaStream;
use super::timer::CudaTimer;
use millpond_account::error::AllocError;
use millpond_codec::{BLOCK, Values, pack, sample};
use millpond_pool::dtype::{DType, Element};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The largest share of the original size for which compression is tried, whatever the speeds are.
const WORTH: f64 = 7.0 / 8.0;
/// The smallest copy, in bytes, for which speeds are measured. For smaller copies the measurement takes longer than the copy.
const MEASURED: usize = 1 << 20;

/// The reason why a copy could not be sent [compressed](Staging::upload_compressed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedError {
    /// The driver returned an error, or the lengths or devices differ.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernel that unpacks the data could not be loaded or launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device's memory for the compressed data could not be allocated.
    #[error("cannot allocate device memory for the compressed data: {0}")]
    Memory(#[from] AllocError),
    /// The packed data on the device is damaged, or unpacks to another number of bytes than the target has.
    #[error(
        "the device cannot unpack the data to {bytes} bytes: the data is damaged or truncated, or has another length"
    )]
    Damaged {
        /// The bytes of the target.
        bytes: u64,
    },
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
    /// Copies like [`upload`](Self::upload), but compressed if a sample of the data shows that this is faster. The host packs the
    /// [blocks](millpond_codec) of a slot and a kernel unpacks them. The compression is lossless. During the copy, the packed data is in a
    /// block of `pool` of at most the size of a slot.
    ///
    /// Compression is faster if the host packs the data faster than the link carries it. The speed of packing is measured with the sample.
    /// The speed of plain copies on the host is measured only one time per process. The speed of the link is measured one time per device,
    /// with the first copy of at least 1 MiB. That copy waits for its stream. Smaller copies before it are not compressed. With the feature
    /// `rayon`, [several threads](fn@millpond_os::threads) pack a large copy, one slot per thread at a time. A slot that does not shrink
    /// enough is sent uncompressed.
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
    /// let tokens: Vec<i64> = (0..1 << 20).map(|at| at * 7919 % 50_000).collect();
    /// let mut there = pool.alloc::<i64>(tokens.len(), &stream)?;
    /// let sent = Staging::new(&device)?.upload_compressed(&tokens, &mut there, &pool)?;
    /// println!("{:.0} % of the bytes were sent", 100.0 * sent.ratio());
    /// assert_eq!(there.to_vec()?, tokens);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`upload`](Self::upload), and an error if the pool belongs to another device or has no memory, or if the
    /// kernel cannot be launched.
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
        // Blocks do not cross the end of a slot.
        let piece = self.slot_bytes() / BLOCK * BLOCK;
        self.expect(from.len(), to)?;
        self.expect_outside(to.stream())?;
        let (stream, threads) = (to.stream().clone(), self.threads(bytes.len()));
        let speeds = match bytes.len().min(piece) {
            ..BLOCK => None,
            least => self.speeds(&stream, pool, least)?,
        };
        // A sample takes time, so it is skipped if no data can be packed fast enough.
        let sample = match speeds {
            Some(speeds) if speeds.pay(0.0, threads) => sample(bytes, values_of(T::DTYPE)),
            _ => None,
        };
        self.tell_packed(sample.map_or(0, |sample| sample.bytes));
        let pays = |speeds: Speeds, share, speed| share <= WORTH && speeds.with(speed).pay(share, threads);
        let scheme = match (speeds, sample) {
            (Some(speeds), Some(sample)) if pays(speeds, sample.share, sample.speed) => sample.scheme,
            _ => {
                self.upload(from, to)?;
                return Ok(sent);
            }
        };
        // The memory is used in the order of the stream, also after it is freed.
        let there = pool.alloc::<u8>(worth(piece), &stream)?;
        let places = (to.address()..).step_by(piece);
        let pieces = Pieces::new(places.zip(bytes.chunks(piece)));
        // The packed pieces use the same memory one after the other.
        let (order, left_out) = (Mutex::new(()), AtomicU64::new(0));
        pieces.share(threads, || {
            while let Some((at, piece)) = pieces.take() {
                let mut slot = self.slot();
                let room = slot.settle()?.get_mut(..worth(piece.len())).unwrap_or_default();
                let packed = pack(piece, room, scheme);
                self.tell_packed(piece.len());
                let Some(packed) = packed else {
                    // SAFETY: the buffer has these bytes at this address.
                    unsafe { self.send_plain(slot, &stream, at, piece) }?;
                    continue;
                };
                let ordered = order.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: at most as many bytes are packed as are allocated at this address, and the slot is settled.
                unsafe { slot.send(&stream, there.address(), packed) }?;
                // SAFETY: the buffer has these bytes at this address. The packed data was sent on the stream just before, and its memory is
                // freed in the order of the stream.
                unsafe { unpack((&stream, &[]), (at, piece.len()), (there.address(), packed), 0) }?;
                drop((ordered, slot));
                left_out.fetch_add((piece.len() - packed) as u64, Ordering::Relaxed);
            }
            Ok::<(), CompressedError>(())
        })?;
        sent.sent -= left_out.into_inner();
        Ok(sent)
    }

    /// Returns the speeds of the host and the link, or `None` if they are not known and the copy is too small to measure them. `least` is
    /// the size of the copy or of a slot in bytes, whichever is smaller.
    fn speeds(
        &self,
        stream: &CudaStream,
        pool: &DevicePool,
        least: usize,
    ) -> Result<Option<Speeds>, CompressedError> {
        if HostSpeed::known().is_none() && self.device().is_emulated() {
            // The emulated device's clock does not count the host's work, so packing pays at any speed of the link.
            let (host, link) = (HostSpeed::FREE, 1.0);
            return Ok(Some(Speeds { host, link }));
        }
        let link = match self.device().link_speed().get() {
            Some(link) => *link,
            None if least < MEASURED => return Ok(None),
            None => {
                let link = self.measure_link(stream, &pool.alloc::<u8>(least, stream)?)?;
                *self.device().link_speed().get_or_init(|| link)
            }
        };
        let host = HostSpeed::measured();
        Ok(Some(Speeds { host, link }))
    }

    /// Measures the speed of the link in bytes per second, with a copy of a slot's present content.
    fn measure_link(&self, stream: &CudaStream, there: &DeviceBuffer<u8>) -> Result<f64, CudaError> {
        let mut slot = self.slot();
        let mut send = || {
            slot.settle()?;
            // SAFETY: the buffer has this many bytes, they are used on this stream, and their new content is not read. The slot is settled.
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
        HostSpeed::set(copy, pack);
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Unpacks data on the device, which was [packed](millpond_codec::pack) on the host and copied there, and waits until that is done. The
    /// packed data may stay on the device and be unpacked again.
    ///
    /// ```
    /// use millpond::codec::{self, Values};
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
    /// let labels: Vec<u8> = (0..100_000).map(|at| (at % 10) as u8).collect();
    /// let sample = codec::sample(&labels, Values::Integers(1)).ok_or("too little")?;
    /// let mut packed = vec![0; codec::bound(labels.len())];
    /// let len = codec::pack(&labels, &mut packed, sample.scheme).ok_or("no room")?;
    /// let packed = pool.alloc_from(&packed[..len], &stream)?;
    /// let mut there = pool.alloc::<u8>(labels.len(), &stream)?;
    /// there.unpack(&packed, &pool)?;
    /// assert_eq!(there.to_vec()?, labels);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`CompressedError::Damaged`] if the data was changed after packing or unpacks to another length. The content of the buffer
    /// is then unspecified. Also returns an error if the pool has no memory, or if the kernel cannot be launched.
    pub fn unpack(&mut self, packed: &DeviceBuffer<u8>, pool: &DevicePool) -> Result<(), CompressedError> {
        let damaged = pool.alloc_zeroed::<u32>(1, self.stream())?;
        let bytes = self.len() * size_of::<T>();
        let (to, from) = ((self.address(), bytes), (packed.address(), packed.len()));
        // SAFETY: both buffers have these bytes, the word is in the stream's order, and the streams of both are ordered by the launch.
        unsafe { unpack((self.stream(), &[packed.stream()]), to, from, damaged.address()) }?;
        match damaged.to_vec()?.first() {
            Some(0) => Ok(()),
            _ => Err(CompressedError::Damaged { bytes: bytes as u64 }),
        }
    }
}

/// Launches the kernel that unpacks `size` bytes at `from` to `len` bytes at `to`. `damaged` is 0, or the address of a word that the kernel
/// sets to 1 if the data is damaged.
///
/// # Safety
/// These bytes must be in live blocks of the streams. Other code may use them only in the order of the streams.
unsafe fn unpack(
    streams: (&CudaStream, &[&CudaStream]),
    (to, len): (u64, usize),
    (from, size): (u64, usize),
    damaged: u64,
) -> Result<(), KernelError> {
    let mut arguments = Arguments::default();
    for argument in [to, len as u64, from, size as u64, damaged] {
        arguments.push(argument);
    }
    let shape = Shape::each(len.div_ceil(BLOCK) * THREADS as usize);
    // SAFETY: these are the kernel's arguments, and the caller guarantees the memory.
    unsafe { kernels::run(Entry::Unpack, streams, shape, arguments) }
}

/// Returns the largest packed size in bytes for which packing a piece is worthwhile.
fn worth(bytes: usize) -> usize {
    bytes / 8 * 7
}

/// Returns the codec's description of elements.
fn values_of(dtype: DType) -> Values {
    match dtype {
        DType::F16 | DType::BF16 => Values::Floats(2),
        DType::F32 | DType::Complex64 => Values::Floats(4),
        DType::F64 | DType::Complex128 => Values::Floats(8),
        DType::I8 | DType::U8 | DType::Bool => Values::Bytes,
        DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
            Values::Integers(dtype.size())
        }
    }
}
