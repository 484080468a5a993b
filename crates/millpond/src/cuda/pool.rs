//! A pool of a device's memory.

use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::error::CudaError;
use super::fork;
use super::source::{CudaMemory, CudaSource};
use super::stream::CudaStream;
use crate::device::Device;
use crate::dtype::Element;
use crate::error::AllocError;
use crate::post_mortem::{PostMortem, Survey};
use millpond_engine::{
    self as engine, Block, Compaction, ConfError, Engine, Limit, Limited, MillpondConf, Request, Settings,
    Source, Stats, Stream, policies,
};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// What every address is a multiple of: as the driver's own.
const ALIGN: u64 = 256;
/// The share of the device's memory that a pool may reserve, where nothing is said.
const FRACTION: f64 = 0.8;

/// Why a pool of a device could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DevicePoolError {
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no policy of this name.
    #[error("there is no policy {name:?}: choose one of {known}")]
    UnknownPolicy {
        /// The name.
        name: String,
        /// All there are.
        known: String,
    },
    /// A setting is none, or its value cannot be.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The share of the device is none.
    #[error("a pool can have more than 0 and at most 1 of a device's memory, not {0}")]
    Fraction(f64),
}

/// Describes a pool of a device.
#[derive(Clone, Debug)]
#[must_use = "nothing is made until build"]
pub struct DevicePoolBuilder {
    memory: CudaMemory,
    policy: String,
    settings: String,
    fraction: f64,
    limit: Option<u64>,
}

impl Default for DevicePoolBuilder {
    fn default() -> Self {
        Self {
            memory: CudaMemory::Best,
            policy: "millpond".to_owned(),
            settings: String::new(),
            fraction: FRACTION,
            limit: None,
        }
    }
}

impl DevicePoolBuilder {
    /// How memory is asked of the device; the best way there is unless said otherwise.
    pub fn memory(mut self, memory: CudaMemory) -> Self {
        self.memory = memory;
        self
    }

    /// The policy that places blocks; `millpond` unless said otherwise. The same as in a replay: what was simulated runs.
    pub fn policy(mut self, name: &str) -> Self {
        name.clone_into(&mut self.policy);
        self
    }

    /// Settings of the `millpond` policy, as `key:value,key:value`.
    pub fn settings(mut self, settings: &str) -> Self {
        settings.clone_into(&mut self.settings);
        self
    }

    /// The share of the device's memory that it may reserve, of all there is; 0.8 unless said otherwise.
    pub fn memory_fraction(mut self, fraction: f64) -> Self {
        self.fraction = fraction;
        self
    }

    /// Bytes that it may reserve, if that is less than its share.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Makes it.
    ///
    /// # Errors
    /// Where a setting is none, or the driver cannot do what is asked for.
    pub fn build(self, device: &CudaDevice) -> Result<DevicePool, DevicePoolError> {
        if !(self.fraction > 0.0 && self.fraction <= 1.0) {
            return Err(DevicePoolError::Fraction(self.fraction));
        }
        let settings = Settings {
            millpond: MillpondConf::parse(&self.settings)?,
            ..Settings::default()
        };
        let policy =
            policies::build(&self.policy, &settings).map_err(|_| DevicePoolError::UnknownPolicy {
                name: self.policy.clone(),
                known: policies::names().collect::<Vec<_>>().join(", "),
            })?;
        let source = CudaSource::new(device, self.memory)?;
        let total = source.capacity().unwrap_or(u64::MAX);
        // Of a total below 2^53 the share is exact to the byte.
        let share = (total as f64 * self.fraction) as u64;
        let limit = Limit::new(share.min(self.limit.unwrap_or(u64::MAX)));
        let memory = source.memory();
        Ok(DevicePool(Arc::new(Shared {
            device: device.clone(),
            memory,
            limit: limit.clone(),
            engine: Mutex::new(Engine::new(policy, Limited::new(source, limit))),
            returned: Mutex::new(Vec::new()),
        })))
    }
}

/// A pool of a CUDA device's memory: the same engine and policies as a replay's, over the driver.
///
/// A block is asked for on a stream. Given back it is free at once for that stream, and for others when its last use is past;
/// [`DeviceBuffer::record_use`] says who else uses it. Cloning makes another handle; the memory goes back with the last handle
/// and buffer.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let weights = pool.alloc_from(&[1.0f32, 2.0, 3.0], &stream)?;
/// assert_eq!(weights.to_vec()?, [1.0, 2.0, 3.0]);
/// assert_eq!(pool.stats().requested.current, 12);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DevicePool(Arc<Shared>);

struct Shared {
    device: CudaDevice,
    memory: CudaMemory,
    limit: Limit,
    engine: Mutex<Engine<Limited<CudaSource>>>,
    /// Blocks that came back and the driver was not asked about yet: a drop may happen where it must not be called.
    returned: Mutex<Vec<Returned>>,
}

/// A block that came back, with the streams other than its own that used it. They live until the driver was asked.
struct Returned {
    block: Block,
    /// The stream it was asked for on: kept so that its number stays its own.
    _stream: CudaStream,
    uses: Vec<CudaStream>,
}

impl DevicePool {
    /// A pool with the settings that suit most programs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &CudaDevice) -> Result<Self, DevicePoolError> {
        Self::builder().build(device)
    }

    /// Describes a pool.
    pub fn builder() -> DevicePoolBuilder {
        DevicePoolBuilder::default()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// How memory is asked of the device; never [`CudaMemory::Best`].
    #[must_use]
    pub fn memory(&self) -> CudaMemory {
        self.0.memory
    }

    /// Bytes that it may reserve.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit.bytes()
    }

    /// Changes that. Below what is reserved nothing more is taken until enough has gone back, for which this trims.
    pub fn set_limit(&self, bytes: u64) {
        self.0.limit.set(bytes);
        if self.stats().reserved.current > bytes {
            self.compact();
        }
    }

    /// Elements on the device, to be used on a stream; what they hold is not said.
    ///
    /// # Errors
    /// When there is no memory for them: the error says who holds it. The pool stays usable.
    pub fn alloc<T: Element>(&self, len: usize, stream: &CudaStream) -> Result<DeviceBuffer<T>, AllocError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(AllocError::UNCOUNTABLE)?;
        let block = if bytes == 0 {
            None
        } else {
            Some(self.allocate(bytes as u64, stream)?)
        };
        Ok(DeviceBuffer::new(self, block, len, stream))
    }

    /// Elements that are zero once the stream has come that far.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what the driver says.
    pub fn alloc_zeroed<T: Element>(
        &self,
        len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        let mut buffer = self.alloc(len, stream)?;
        buffer.fill_zero().map_err(refused)?;
        Ok(buffer)
    }

    /// Elements copied from the host; they are there when this returns.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what the driver says.
    pub fn alloc_from<T: Element>(
        &self,
        elements: &[T],
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        let mut buffer = self.alloc(elements.len(), stream)?;
        buffer.copy_from_host(elements).map_err(refused)?;
        Ok(buffer)
    }

    /// The account, with all that has come back; all zero in a process that was forked.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine()
            .map_or_else(|_| Stats::default(), |engine| *engine.stats())
    }

    /// Waits for the device, and gives back whatever no block uses; live blocks stay where they are.
    pub fn compact(&self) -> Compaction {
        self.engine()
            .map_or_else(|_| Compaction::default(), |mut engine| engine.compact())
    }

    /// Why the device is of no use any more, where it is not.
    #[must_use]
    pub fn lost(&self) -> Option<CudaError> {
        self.engine()
            .map_or_else(Some, |engine| engine.source().inner().lost())
    }

    /// The engine, once it was told of what has come back; none in a process that was forked.
    fn engine(&self) -> Result<MutexGuard<'_, Engine<Limited<CudaSource>>>, CudaError> {
        fork::check()?;
        let mut engine = self.0.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let returned = std::mem::take(&mut *self.0.returned());
        for Returned { block, uses, .. } in returned {
            let source = engine.source_mut().inner_mut();
            let uses: Vec<_> = uses
                .iter()
                .map(|stream| Stream(source.number_of(stream)))
                .collect();
            engine.free(block, &uses);
        }
        Ok(engine)
    }

    fn allocate(&self, bytes: u64, stream: &CudaStream) -> Result<Block, AllocError> {
        if stream.expect_on(self.device()).is_err() {
            let operation = "serve a stream of another device";
            return Err(AllocError::Source(Box::new(engine::SourceError::Unsupported {
                operation,
            })));
        }
        let mut engine = self.engine().map_err(refused)?;
        let number = engine.source_mut().inner_mut().number_of(stream);
        let request = Request {
            align: ALIGN,
            ..Request::new(bytes, Stream(number))
        };
        if let Some(error) = engine.source().inner().lost() {
            return Err(refused(error));
        }
        let outcome = engine.allocate(request);
        outcome.map_err(|why| AllocError::of(why, || post_mortem(&engine, bytes)))
    }

    pub(super) fn take_back(&self, block: Block, stream: CudaStream, uses: Vec<CudaStream>) {
        if fork::is_forked() {
            return;
        }
        let returned = Returned {
            block,
            _stream: stream,
            uses,
        };
        self.0.returned().push(returned);
    }
}

impl Shared {
    fn returned(&self) -> MutexGuard<'_, Vec<Returned>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the driver said, to somebody who asked for memory.
fn refused(error: CudaError) -> AllocError {
    let CudaError::Driver { call, code, .. } = error else {
        let operation = match error {
            CudaError::Forked => {
                "serve a process that was forked from one that uses CUDA: start a new one instead"
            }
            _ => "reach its device",
        };
        return AllocError::Source(Box::new(engine::SourceError::Unsupported { operation }));
    };
    let code = i32::try_from(code).unwrap_or(i32::MAX);
    AllocError::Source(Box::new(engine::SourceError::Driver { call, code }))
}

fn post_mortem(engine: &Engine<Limited<CudaSource>>, requested: u64) -> PostMortem {
    let mut survey = Survey::new(requested);
    let free = engine.source().free_bytes().unwrap_or(0);
    survey.space(free, engine.largest_hole(), engine.stats().cached());
    engine.policy().layout(&mut |piece| survey.piece(piece));
    survey.finish()
}

/// Two handles of the same pool are equal.
impl PartialEq for DevicePool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DevicePool {}

impl fmt::Debug for DevicePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePool")
            .field("device", &Device::Cuda(self.device().number()))
            .field("memory", &self.memory())
            .finish_non_exhaustive()
    }
}
