//! Pools of a device's memory.
//!
//! ```text
//!   builder   how one is made
//!   shared    what all handles have in common, a request's way
//!   state     what is under the lock: the engine, the account, what came back
//!   charges   what blocks are charged to
//!   tenant    asking on somebody's account, and with patience
//!   observe   what is told of blocks
//!   live      a pool as recordings and the monitor see it
//!   kept      a source that keeps what it was given back
//!   for_graph the memory of a graph
//!   upkeep    the account; what is kept, and what goes back
//!   ward      what goes back in the background
//!   leaks     what was not given back
//!   unpooled  a device's memory without a pool
//! ```

mod builder;
mod charges;
mod for_graph;
mod kept;
mod leaks;
mod live;
mod observe;
mod shared;
mod state;
mod tenant;
#[cfg(test)]
mod tests;
mod unpooled;
mod upkeep;
mod ward;

pub use builder::{DevicePoolBuilder, DevicePoolError};
pub use tenant::DeviceTenant;
pub use unpooled::UnpooledDevice;

use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::error::CudaError;
use super::graph;
use super::source::CudaMemory;
use super::stream::CudaStream;
use crate::budget::{Budget, Charge};
use crate::device::Device;
use crate::dtype::Element;
use crate::error::AllocError;
use millpond_engine::Block;
use shared::{Parts, Shared, refused};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What every address is a multiple of: as the driver's own.
const ALIGN: u64 = 256;

/// A block in a caller's hands, and what it is charged to meanwhile.
pub(super) struct Held {
    pub(super) block: Block,
    _charges: Vec<Charge>,
}

/// How somebody asks.
#[derive(Clone, Debug, Default)]
struct Terms {
    budget: Option<Budget>,
    wait: Option<Duration>,
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
        &self.0.parts.device
    }

    /// How memory is asked of the device; never [`CudaMemory::Best`].
    #[must_use]
    pub fn memory(&self) -> CudaMemory {
        self.0.parts.memory
    }

    /// Its number, which no other pool of this process has, of the host neither.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.parts.number
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.parts.name
    }

    /// The pool's own budget of allocated bytes, if it has one: what tenants' budgets are to be made below, so that each
    /// block is charged to it once.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.0.parts.budget.as_ref()
    }

    /// Bytes that it may reserve.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.parts.limit.bytes()
    }

    /// Changes that. Below what is reserved nothing more is taken until enough has gone back, for which this trims.
    pub fn set_limit(&self, bytes: u64) {
        self.0.parts.limit.set(bytes);
        if self.stats().reserved.current > bytes {
            self.compact();
        }
    }

    /// Elements on the device, to be used on a stream; what they hold is not said.
    ///
    /// # Errors
    /// When there is no memory for them: the error says what is free and, where the pool keeps an [account](Self::track), who
    /// holds the rest. The pool stays usable.
    pub fn alloc<T: Element>(&self, len: usize, stream: &CudaStream) -> Result<DeviceBuffer<T>, AllocError> {
        self.alloc_by(&Terms::default(), len, stream)
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
        self.alloc_zeroed_by(&Terms::default(), len, stream)
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
        self.alloc_from_by(&Terms::default(), elements, stream)
    }

    fn alloc_by<T: Element>(
        &self,
        terms: &Terms,
        len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        let mut buffer = self.alloc_as_it_is(terms, len, stream)?;
        if self.0.zero_on_reuse.load(Ordering::Relaxed) {
            buffer.fill_zero().map_err(refused)?;
        }
        Ok(buffer)
    }

    fn alloc_as_it_is<T: Element>(
        &self,
        terms: &Terms,
        len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(AllocError::UNCOUNTABLE)?;
        if bytes == 0 {
            stream.expect_on(self.device()).map_err(refused)?;
            return Ok(DeviceBuffer::new(self, None, len, stream));
        }
        let captured = match graph::are_captured() {
            true => graph::pool_of(stream).map_err(refused)?,
            false => None,
        };
        // What is free of a graph's memory its launches still write.
        if self.0.parts.of_graph && captured.as_ref() != Some(self) {
            return Err(refused(CudaError::OfGraph));
        }
        let pool = captured.as_ref().unwrap_or(self);
        let held = pool.0.allocate(bytes as u64, stream, terms)?;
        Ok(DeviceBuffer::new(pool, Some(held), len, stream))
    }

    fn alloc_zeroed_by<T: Element>(
        &self,
        terms: &Terms,
        len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        let mut buffer = self.alloc_as_it_is(terms, len, stream)?;
        buffer.fill_zero().map_err(refused)?;
        Ok(buffer)
    }

    fn alloc_from_by<T: Element>(
        &self,
        terms: &Terms,
        elements: &[T],
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        // Whoever reads it sees these elements only: there is nothing to clear.
        let mut buffer = self.alloc_as_it_is(terms, elements.len(), stream)?;
        buffer.copy_from_host(elements).map_err(refused)?;
        Ok(buffer)
    }

    /// Why the device is of no use any more, where it is not.
    #[must_use]
    pub fn lost(&self) -> Option<CudaError> {
        let lost = self
            .0
            .with_core(|core| core.memory.source().inner().source().lost());
        lost.unwrap_or_else(Some)
    }

    /// Has it know a stream that uses its memory.
    pub(super) fn note_stream(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.0.with_core(|core| core.note_stream(stream))
    }

    /// Whether it is not a pool at all, but stands for the device itself.
    pub(super) fn is_direct(&self) -> bool {
        self.0.parts.direct
    }

    pub(super) fn take_back(&self, held: Held, uses: Vec<CudaStream>) {
        self.0.take_back(held, uses);
    }
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
            .field("name", &self.name())
            .field("device", &Device::Cuda(self.device().number()))
            .field("memory", &self.memory())
            .finish_non_exhaustive()
    }
}
