//! Pools of a device's memory.
//!
//! ```text
//!   builder    the builder of pools
//!   shared     the state that all handles share, and the path of a request
//!   state      the state under the lock: the engine, the account, the returned blocks
//!   charges    the charges of blocks to budgets
//!   tenant     a pool handle with a budget and a timeout
//!   observe    subscribers and accounts
//!   live       a pool as seen by recordings and the monitor
//!   kept       a source that retains returned memory
//!   for_graph  the memory of a graph
//!   upkeep     statistics, and how much memory is kept
//!   maintained giving memory back in the background
//!   raw        blocks that are freed by their address
//!   unpooled   a device's memory without a pool
//! ```

mod builder;
mod charges;
mod for_graph;
mod kept;
mod live;
mod maintained;
mod observe;
mod raw;
mod shared;
mod state;
mod tenant;
#[cfg(test)]
mod tests;
mod unpooled;
mod upkeep;

pub use builder::{DevicePoolBuilder, DevicePoolError};
pub(crate) use shared::refused;
pub use tenant::DeviceTenant;
pub use unpooled::UnpooledDevice;

use super::device::CudaDevice;
use super::error::CudaError;
use super::source::CudaMemory;
use super::stream::CudaStream;
use millpond_account::budget::Budget;
use millpond_engine::Block;
use millpond_os::device::Device;
use shared::{Parts, Shared};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The alignment of every address, which is the driver's own.
const ALIGN: u64 = 256;

/// A block that a caller holds.
pub(crate) struct Held {
    pub(super) block: Block,
    /// Whether the pool has charges of the block.
    is_charged: bool,
}

/// The budget and the timeout of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    budget: Option<Budget>,
    wait: Option<Duration>,
}

/// A pool of a CUDA device's memory. It uses the same engine and policies as a replay, on memory from the driver.
///
/// A block is allocated on a stream. A freed block is available at once to that stream, and to other streams after its last use is
/// complete. [`DeviceBuffer::record_use`](crate::DeviceBuffer::record_use) declares uses by other streams. Cloning makes another handle.
/// The memory is freed with the last handle and buffer.
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

/// The terms of requests that have neither a budget of their own nor a timeout.
static NO_TERMS: Terms = Terms {
    budget: None,
    wait: None,
};

impl DevicePool {
    pub(super) fn requests(&self) -> (&Self, &Terms) {
        (self, &NO_TERMS)
    }

    /// Creates a pool with the default settings.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, DevicePoolError> {
        Self::builder().build(device)
    }

    /// Returns a builder of a pool.
    #[must_use]
    pub fn builder() -> DevicePoolBuilder {
        DevicePoolBuilder::default()
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.parts.device
    }

    /// Returns how memory is requested from the device. This is never [`CudaMemory::Best`].
    #[must_use]
    pub fn memory(&self) -> CudaMemory {
        self.0.parts.memory
    }

    /// Returns the pool's number, which is unique among the device and host pools of this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.parts.number
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.parts.name
    }

    /// Returns the pool's own budget of allocated bytes, if it has one. Tenants' budgets should be its children, so that each block is
    /// charged to it once.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.0.parts.budget.as_ref()
    }

    /// Returns the number of bytes that the pool may reserve.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.parts.limit.bytes()
    }

    /// Changes the limit. If more is reserved, this compacts the pool, and the pool takes no memory until enough has been given back.
    pub fn set_limit(&self, bytes: u64) {
        self.0.parts.limit.set(bytes);
        if self.stats().reserved.current > bytes {
            self.compact();
        }
    }

    /// Returns whether memory is cleared before it is reused.
    pub(super) fn clears(&self) -> bool {
        self.0.zero_on_reuse.load(Ordering::Relaxed)
    }

    /// Returns the error that made the device unusable, if there is one.
    #[must_use]
    pub fn lost(&self) -> Option<CudaError> {
        let lost = self
            .0
            .with_core(|core| core.memory.source().inner().source().lost());
        lost.unwrap_or_else(Some)
    }

    /// Registers a stream that uses the pool's memory.
    pub(super) fn note_stream(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.0.with_core(|core| core.note_stream(stream))
    }

    /// Returns whether this is an unpooled device instead of a pool.
    pub(super) fn is_direct(&self) -> bool {
        self.0.parts.direct
    }

    pub(super) fn take_back(&self, held: Held, uses: Option<Box<[CudaStream]>>) {
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
