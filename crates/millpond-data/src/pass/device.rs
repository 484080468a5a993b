//! A pass that copies its chunks to a device. Reading, copying and computing overlap.
//!
//! The host waits in two cases only: for a chunk that has not been read yet, and, on the reading thread, for the copy
//! from the memory into which it reads next. The work on a chunk and the copy into its buffer wait for each other on
//! the device. The oldest slot is reused first because the device may still use the latest.

use super::super::error::DataError;
use super::super::sieve::{BufferSource, Sieve};
use super::{
    ChunkMemory, ChunkReader, ChunkSource, Pass, Plan, Progress, ProgressClock, ReuseOrder, Ring, in_parallel,
};
use millpond_cuda::launch::sealed;
use millpond_cuda::{
    CudaError, CudaPinned, CudaStream, DeviceBuffer, DeviceElements, DevicePool, Mark, Span, Transfer,
    TransferError, is_known, settle_on, upload_part,
};
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::{DType, Element};
use millpond_pool::unpooled::Unpooled;
use std::fmt;

/// An iteration over a [`DataSet`](crate::DataSet) in chunks on a device. Created by [`Pass::to_device`].
///
/// ```text
///   threads     read 3 . read 4 . read 5 .            into pinned memory
///   a stream            copy 3 . copy 4 . copy 5 .
///   yours                       work 3 . work 4 . work 5
/// ```
///
/// Each chunk uses a piece of pinned memory and a buffer on the device, and later chunks reuse both. Readers wait for
/// the copy from their memory. On the device, the copy waits for the work on its buffer, and the work waits for its
/// copy. The caller's thread waits only for chunks that have not been read yet.
///
/// ```
/// use millpond::DataSet;
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("millpond-to-device-{}.f32", std::process::id()));
/// # let values: Vec<f32> = (0..1000).map(|n| n as f32).collect();
/// # std::fs::write(&path, millpond::bytemuck::cast_slice::<f32, u8>(&values))?;
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let mut all = pool.alloc_zeroed::<f32>(320, &stream)?;
/// let data = DataSet::<f32>::builder().file(&path).row(10).open()?;
/// data.pass().rows(32).to_device(&pool, &stream, 3).try_for_each(|chunk| {
///     // Work that is queued on `stream` here runs after the copy of the rows.
///     if chunk.len() == chunk.buffer().len() {
///         all.copy_from(chunk.buffer())?;
///     }
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// assert_eq!(all.to_vec()?[0], 640.0);
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a pass does nothing until for_each or try_for_each"]
pub struct DevicePass<'a, T: Element> {
    pass: Pass<'a, T>,
    pool: DevicePool,
    stream: CudaStream,
}

impl<'a, T: Element> Pass<'a, T> {
    /// Copies the chunks to a device, for work on a stream. `depth` is the number of chunks in progress at the same
    /// time. If it is smaller than two, or than one more than the number of [`readers`](Self::readers), it is raised
    /// to that number. The [budget](Self::budget) limits the host's memory; the device uses as much.
    ///
    /// The host's memory comes from CUDA's driver, or from the given [`pool`](Self::pool), whose memory must be pinned
    /// by the driver ([`CudaPinned`]).
    pub fn to_device(mut self, pool: &DevicePool, stream: &CudaStream, depth: usize) -> DevicePass<'a, T> {
        self.ahead = depth.max(2) - 1;
        DevicePass {
            pass: self,
            pool: pool.clone(),
            stream: stream.clone(),
        }
    }
}

impl<T: Element> DevicePass<'_, T> {
    /// Calls `work` for each chunk.
    ///
    /// # Errors
    /// Returns the errors of [`Pass::for_each`] and [`DataError::Cuda`].
    pub fn for_each(self, mut work: impl FnMut(&mut DeviceChunk<'_, T>)) -> Result<Progress, DataError> {
        self.try_for_each(|chunk| {
            work(chunk);
            Ok(())
        })
    }

    /// Calls `work` for each chunk, and ends the pass with the first error of `work`. The work on the last chunk may
    /// still run on the device when this returns.
    ///
    /// # Errors
    /// Returns the errors of [`for_each`](Self::for_each) and of `work`.
    pub fn try_for_each<E: From<DataError>>(
        mut self,
        mut work: impl FnMut(&mut DeviceChunk<'_, T>) -> Result<(), E>,
    ) -> Result<Progress, E> {
        let plan = self.pass.plan()?;
        let mut clock = ProgressClock::new(&plan, self.pass.tell.take());
        if plan.chunks == 0 {
            return Ok(clock.end());
        }
        let copies = CudaStream::new(self.pool.device()).map_err(DataError::Cuda)?;
        let ring = Ring::new(self.slots(&plan, &copies)?, ReuseOrder::Oldest);
        let sieve = |_| Sieve::new(&plan.places, plan.row_bytes, plan.rows, &self.pass.from);
        let readers = (0..self.pass.readers.min(plan.buffers)).map(sieve);
        let sieves: Vec<_> = readers.collect::<Result<_, _>>().map_err(DataError::Memory)?;
        let reader = ChunkReader {
            plan: &plan,
            data: self.pass.data,
            prepare: self.pass.prepare.as_deref(),
        };
        in_parallel(&reader, sieves, &ring, &mut clock, |number, slot| {
            slot.lend(&self.stream)?;
            work(&mut DeviceChunk {
                plan: &plan,
                number,
                buffer: &mut slot.device,
            })?;
            Ok(slot.take_back(&self.stream, &plan)?)
        })
    }

    fn slots(&self, plan: &Plan, copies: &CudaStream) -> Result<Vec<DeviceSlot<T>>, DataError> {
        let elements = plan.rows * plan.row;
        let device = self.pool.device();
        let pinned = Unpooled::over(Box::new(CudaPinned::new(device)));
        let slot = |_| {
            let host: Buffer<T> = match &self.pass.from {
                ChunkSource::Set => pinned.alloc_zeroed(elements)?,
                from => from.draw(elements)?,
            };
            if !is_known(device, host.as_ptr().cast(), host.bytes())? {
                return Err(CudaError::Pageable.into());
            }
            let there = self.pool.alloc(elements, &self.stream)?;
            // Work of the stream that used this memory for an earlier buffer completes first.
            let worked = Mark::new(device)?;
            worked.record(&self.stream)?;
            Ok(DeviceSlot {
                host: Host::Free(host),
                device: there,
                worked,
                is_worked_on: true,
                copies: copies.clone(),
            })
        };
        (0..plan.buffers).map(slot).collect()
    }
}

impl<T: Element> fmt::Debug for DevicePass<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePass")
            .field("pass", &self.pass)
            .field("pool", &self.pool)
            .field("stream", &self.stream)
            .finish()
    }
}

/// Some rows of a data set on a device, ready for work on the stream of the pass.
#[derive(Debug)]
pub struct DeviceChunk<'b, T: Element> {
    plan: &'b Plan,
    number: u64,
    buffer: &'b mut DeviceBuffer<T>,
}

impl<T: Element> DeviceChunk<'_, T> {
    /// Returns the number of the chunk in the pass, counted from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of elements in its rows. The last chunk may have fewer than the buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plan.rows_of(self.number) * self.plan.row
    }

    /// Returns false, because a chunk has at least one row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the index in the data set of the `nth` row of this chunk, or `None` if the chunk has fewer rows.
    #[must_use]
    pub fn row_number(&self, nth: usize) -> Option<u64> {
        self.plan.row_number(self.number, nth)
    }

    /// Returns the rows, which are at the beginning of the buffer. The contents after them are unspecified. Work on
    /// streams other than that of the pass must be [recorded](DeviceBuffer::record_use).
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        self.buffer
    }

    /// Returns the same buffer for writing. It is reused for a later chunk, so a replacement must have the same length
    /// and the same stream.
    pub fn buffer_mut(&mut self) -> &mut DeviceBuffer<T> {
        self.buffer
    }
}

/// The elements are those of the chunk's rows.
impl<T: Element> DeviceElements for DeviceChunk<'_, T> {}

impl<T: Element> sealed::Elements for DeviceChunk<'_, T> {
    fn elements(&self) -> (Span<'_>, DType) {
        let whole = self.buffer.span();
        let rows = whole.part(0, self.len() * size_of::<T>());
        (rows.unwrap_or(whole), T::DTYPE)
    }
}

/// The memory that chunks reuse: a piece on the host, and a buffer on the device.
///
/// Invariant: `copies` does not write to `device` after the transfer that holds `host` has completed. If
/// `is_worked_on` is true, `worked` comes after all other uses of `device`.
struct DeviceSlot<T: Element> {
    host: Host<T>,
    device: DeviceBuffer<T>,
    worked: Mark,
    is_worked_on: bool,
    copies: CudaStream,
}

enum Host<T: Element> {
    Free(Buffer<T>),
    Lent(Transfer<Buffer<T>>),
    /// The state during a change of owner. It remains after a failure, which ends the pass.
    Gone,
}

impl<T: Element> DeviceSlot<T> {
    /// Returns the host's memory after the copy from it has completed.
    fn host(&mut self) -> Result<Buffer<T>, CudaError> {
        match std::mem::replace(&mut self.host, Host::Gone) {
            Host::Free(host) => Ok(host),
            Host::Lent(copying) => copying.wait().map_err(CudaError::from),
            Host::Gone => Err(CudaError::Pageable),
        }
    }

    /// Copies the read data to the device after the work on the previous chunk in this buffer.
    fn upload(&mut self, host: Buffer<T>, len: usize) -> Result<(), CudaError> {
        let after = |stream: &CudaStream| {
            if self.is_worked_on {
                self.worked.hold(stream)
            } else {
                Ok(())
            }
        };
        // SAFETY: the buffer is the slot's, and the slot's drop records this stream before the buffer is freed.
        let begun = unsafe { upload_part(&self.copies, host, &self.device, len, after) };
        self.host = Host::Lent(begun.map_err(|error: TransferError<_>| error.error())?);
        Ok(())
    }

    /// Makes later work on a stream wait for the copy.
    fn lend(&mut self, stream: &CudaStream) -> Result<(), DataError> {
        match &self.host {
            Host::Lent(copying) => Ok(copying.hold(stream)?),
            Host::Free(_) | Host::Gone => Ok(()),
        }
    }

    /// Records that work on the chunk was queued on a stream.
    fn take_back(&mut self, stream: &CudaStream, plan: &Plan) -> Result<(), DataError> {
        let expected = plan.rows * plan.row;
        if self.device.len() != expected {
            let found = self.device.len();
            return Err(CudaError::Length { expected, found }.into());
        }
        self.device.record_use(stream)?;
        // This also comes after recorded uses on other streams, and after the stream of a replaced buffer.
        self.device.order_before(stream)?;
        self.is_worked_on = self.worked.record(stream).is_ok();
        if !self.is_worked_on {
            // Without a mark, the host waits for the work.
            settle_on(stream, || stream.synchronize()).map_err(|why| why.error)?;
        }
        Ok(())
    }
}

impl<T: Element> Drop for DeviceSlot<T> {
    fn drop(&mut self) {
        // This cannot fail, because the stream is on the same device.
        let _ = self.device.record_use(&self.copies);
    }
}

impl<T: Element> ChunkMemory<T> for DeviceSlot<T> {
    /// Reads a chunk and starts its copy.
    fn read(&mut self, reader: &ChunkReader<'_, T>, number: u64, sieve: &mut Sieve) -> Result<(), DataError> {
        let mut host = self.host()?;
        reader.read(number, sieve, &mut host)?;
        let len = reader.plan.rows_of(number) * reader.plan.row;
        Ok(self.upload(host, len)?)
    }
}
