//! A pass whose chunks come to a device: reading, copying and computing go on at once.
//!
//! The host waits for two things only: for a chunk that is not read yet and, on the thread that reads, for the copy from the memory that it
//! reads into next. The work on a chunk and the copy into its buffer wait for each other on the device. The oldest slot is taken first,
//! because the device may still use the latest.

use super::super::error::DataError;
use super::super::sieve::{Draw, Sieve};
use super::{Clock, From, Over, Pass, Plan, Progress, Reader, Ring, Take};
use crate::buffer::Buffer;
use crate::dtype::Element;
use crate::gpu::{
    CudaError, CudaPinned, CudaStream, DeviceBuffer, DevicePool, Mark, Transfer, TransferError, is_known,
    settle_on, upload_part,
};
use crate::unpooled::Unpooled;
use std::fmt;
use std::time::Instant;

/// A way through a [`DataSet`](crate::DataSet) in chunks on a device. Made by [`Pass::to_device`].
///
/// ```text
///   threads     read 3 . read 4 . read 5 .            into pinned memory
///   a stream            copy 3 . copy 4 . copy 5 .
///   yours                       work 3 . work 4 . work 5
/// ```
///
/// A chunk has a piece of pinned memory and a buffer on the device, which go round. Readers wait for the copy from their memory, the
/// copy waits on the device for the work on its buffer, and the work for its copy: the caller's thread waits for nothing but a chunk
/// that is not read yet.
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
///     // Whatever is put on `stream` here finds the rows on the device.
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
    /// Brings the chunks to a device, for work on a stream: `depth` of them are on their way at once, two at least, and more where
    /// there are as many [`readers`](Self::readers). The [budget](Self::budget) is for the host's memory; the device's is as much.
    ///
    /// Memory of the host comes from CUDA's driver, or from the [`pool`](Self::pool) that was said, which has to be one of memory
    /// that the driver has pinned ([`CudaPinned`]).
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
    /// Goes through all chunks.
    ///
    /// # Errors
    /// As [`Pass::for_each`], and [`DataError::Cuda`].
    pub fn for_each(self, mut work: impl FnMut(&mut DeviceChunk<'_, T>)) -> Result<Progress, DataError> {
        self.try_for_each(|chunk| {
            work(chunk);
            Ok(())
        })
    }

    /// The same with work that can fail, and ends the pass with its own error. When this returns the last work may still go on.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each), and what `work` answers.
    pub fn try_for_each<E: std::convert::From<DataError>>(
        mut self,
        mut work: impl FnMut(&mut DeviceChunk<'_, T>) -> Result<(), E>,
    ) -> Result<Progress, E> {
        let plan = self.pass.plan()?;
        let mut clock = Clock::new(&plan, self.pass.tell.take());
        if plan.chunks == 0 {
            return Ok(clock.end());
        }
        let copies = CudaStream::new(self.pool.device()).map_err(DataError::Cuda)?;
        let ring = Ring::new(self.slots(&plan, &copies)?, Take::Oldest);
        let sieve = |_| Sieve::new(&plan.places, plan.row_bytes, plan.rows, &self.pass.from);
        let readers = (0..self.pass.readers.min(plan.buffers)).map(sieve);
        let sieves: Vec<_> = readers.collect::<Result<_, _>>().map_err(DataError::Memory)?;
        let reader = Reader {
            plan: &plan,
            data: self.pass.data,
            prepare: self.pass.prepare.as_deref(),
        };
        std::thread::scope(|scope| {
            // However this ends, the readers do: the scope waits for them.
            let _over = Over(&ring);
            for sieve in sieves {
                scope.spawn(|| run(&reader, &ring, sieve));
            }
            for number in 0..plan.chunks {
                let began = Instant::now();
                let outcome = ring.await_chunk(number);
                clock.waited(began);
                // A reader that panicked: the scope says so when it ends.
                let Some(outcome) = outcome else { break };
                let mut slot = outcome?;
                slot.lend(&self.stream)?;
                work(&mut DeviceChunk {
                    plan: &plan,
                    number,
                    buffer: &mut slot.device,
                })?;
                slot.take_back(&self.stream, &plan)?;
                clock.tick(&plan, number);
                ring.give(slot);
            }
            Ok(clock.end())
        })
    }

    fn slots(&self, plan: &Plan, copies: &CudaStream) -> Result<Vec<Slot<T>>, DataError> {
        let elements = plan.rows * plan.row;
        let device = self.pool.device();
        let pinned = Unpooled::over(Box::new(CudaPinned::new(device)));
        let slot = |_| {
            let host: Buffer<T> = match &self.pass.from {
                From::Set => pinned.alloc_zeroed(elements)?,
                from => from.draw(elements)?,
            };
            if !is_known(device, host.as_ptr().cast(), host.bytes())? {
                return Err(CudaError::Pageable.into());
            }
            let there = self.pool.alloc(elements, &self.stream)?;
            // What the stream still does with whoever had that memory before comes first.
            let worked = Mark::new(device)?;
            worked.record(&self.stream)?;
            Ok(Slot {
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

/// Some rows of a data set on a device, ready for work on the pass's stream.
#[derive(Debug)]
pub struct DeviceChunk<'b, T: Element> {
    plan: &'b Plan,
    number: u64,
    buffer: &'b mut DeviceBuffer<T>,
}

impl<T: Element> DeviceChunk<'_, T> {
    /// Which chunk of the pass it is, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Elements of its rows: of the last chunk they may be fewer than the buffer has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plan.rows_of(self.number) * self.plan.row
    }

    /// Never: a chunk has a row at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which row of the data set the `nth` row here is; none where there are not so many.
    #[must_use]
    pub fn row_number(&self, nth: usize) -> Option<u64> {
        let place = self.number * self.plan.rows as u64 + nth as u64;
        (nth < self.plan.rows_of(self.number)).then(|| self.plan.places.row_at(place))
    }

    /// The rows, at the beginning; what lies behind them is not said. Work on other streams than the pass's is
    /// [recorded](DeviceBuffer::record_use).
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        self.buffer
    }

    /// The same, to be written. It serves a later chunk, so another buffer in its place has to be as long and of the same stream.
    pub fn buffer_mut(&mut self) -> &mut DeviceBuffer<T> {
        self.buffer
    }
}

/// What a chunk goes round in: memory of the host, and a buffer on the device.
///
/// Invariant: `copies` writes `device` up to what `host` was lent for; `worked`, if it `is_worked_on`, comes after all else that uses it.
struct Slot<T: Element> {
    host: Host<T>,
    device: DeviceBuffer<T>,
    worked: Mark,
    is_worked_on: bool,
    copies: CudaStream,
}

enum Host<T: Element> {
    Free(Buffer<T>),
    Lent(Transfer<Buffer<T>>),
    /// While it changes hands, and for good where that failed, which ends the pass.
    Gone,
}

impl<T: Element> Slot<T> {
    /// The host's memory, once nothing is copied from it any more.
    fn host(&mut self) -> Result<Buffer<T>, CudaError> {
        match std::mem::replace(&mut self.host, Host::Gone) {
            Host::Free(host) => Ok(host),
            Host::Lent(copying) => copying.wait().map_err(CudaError::from),
            Host::Gone => Err(CudaError::Pageable),
        }
    }

    /// Copies what was read to the device, after the work on the chunk that was there before.
    fn upload(&mut self, host: Buffer<T>, len: usize) -> Result<(), CudaError> {
        let after = |stream: &CudaStream| {
            if self.is_worked_on {
                self.worked.hold(stream)
            } else {
                Ok(())
            }
        };
        // SAFETY: the buffer is the slot's, whose drop records this stream before it goes.
        let begun = unsafe { upload_part(&self.copies, host, &self.device, len, after) };
        self.host = Host::Lent(begun.map_err(|error: TransferError<_>| error.error())?);
        Ok(())
    }

    /// Has work on a stream come after the copy.
    fn lend(&mut self, stream: &CudaStream) -> Result<(), DataError> {
        match &self.host {
            Host::Lent(copying) => Ok(copying.hold(stream)?),
            Host::Free(_) | Host::Gone => Ok(()),
        }
    }

    /// Work on the chunk was put on a stream.
    fn take_back(&mut self, stream: &CudaStream, plan: &Plan) -> Result<(), DataError> {
        let expected = plan.rows * plan.row;
        if self.device.len() != expected {
            let found = self.device.len();
            return Err(CudaError::Length { expected, found }.into());
        }
        self.device.record_use(stream)?;
        // Also after what was recorded, and after the stream of another buffer that was put there.
        self.device.order_before(stream)?;
        self.is_worked_on = self.worked.record(stream).is_ok();
        if !self.is_worked_on {
            // What cannot be marked is waited for.
            settle_on(stream, || stream.synchronize()).map_err(|why| why.error)?;
        }
        Ok(())
    }
}

impl<T: Element> Drop for Slot<T> {
    fn drop(&mut self) {
        // It is of the same device, which is all that is asked.
        let _ = self.device.record_use(&self.copies);
    }
}

/// Reads chunks and sends them on their way.
fn run<T: Element>(reader: &Reader<'_, T>, ring: &Ring<Slot<T>>, mut sieve: Sieve) {
    while let Some((number, mut slot)) = ring.begin(reader.plan.chunks) {
        // Where `prepare` panics nobody is to wait for this chunk.
        let dies = Over(ring);
        let outcome = bring(reader, number, &mut sieve, &mut slot);
        std::mem::forget(dies);
        ring.end(number, outcome.map(|()| slot));
    }
}

fn bring<T: Element>(
    reader: &Reader<'_, T>,
    number: u64,
    sieve: &mut Sieve,
    slot: &mut Slot<T>,
) -> Result<(), DataError> {
    let mut host = slot.host()?;
    reader.read(number, sieve, &mut host)?;
    let len = reader.plan.rows_of(number) * reader.plan.row;
    Ok(slot.upload(host, len)?)
}
