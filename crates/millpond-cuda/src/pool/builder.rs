//! The builder of device pools.

use super::kept::Kept;
use super::maintained::MaintainedPool;
use super::{DevicePool, Parts, Shared};
use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::source::{CudaMemory, CudaSharing, CudaSource};
use millpond_account::budget::BudgetError;
use millpond_account::error::AllocError;
use millpond_account::ledger::Tracking;
use millpond_engine::policies::UnknownPolicy;
use millpond_engine::{ConfError, Engine, Limit, Source};
use millpond_os::pressure::Readings;
use millpond_pool::pool::{
    BudgetedSource, PoolSettings, budgets, limit_of, maintain, next_number, report_leaks_at_exit,
};
use std::sync::Arc;
use thiserror::Error;

/// The default share of the device's memory that a pool may reserve.
const FRACTION: f64 = 0.8;

/// The reason why a device pool could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DevicePoolError {
    /// The driver returned an error.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no policy with this name.
    #[error("there is no policy {name:?}: choose one of {known}")]
    UnknownPolicy {
        /// The name that was given.
        name: String,
        /// The names of all policies.
        known: String,
    },
    /// A setting does not exist, or its value is invalid.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The same error in the environment variable `MILLPOND_CONF`.
    #[error("MILLPOND_CONF: {0}")]
    Environment(#[source] ConfError),
    /// The share of the device's memory is out of range.
    #[error("the fraction of a device's memory must be above 0 and at most 1, not {0}")]
    Fraction(f64),
    /// The budget cannot have a child for the pool.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The settings or `MILLPOND_CONF` contain `relocate:on`, and the pool may not replace pages.
    #[error(
        "relocate:on needs a pool that may replace pages: call DevicePoolBuilder::allow_relocation, or set relocate:off"
    )]
    Relocation,
    /// The memory that the pool must hold from the start cannot be allocated.
    #[error("the memory that the pool must hold from the start cannot be allocated: {0}")]
    Start(#[source] AllocError),
}

impl From<UnknownPolicy> for DevicePoolError {
    fn from(UnknownPolicy { name, known }: UnknownPolicy) -> Self {
        Self::UnknownPolicy { name, known }
    }
}

/// Builds a pool of a device.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaMemory, DevicePool};
/// use millpond::{Budget, Tracking, pool::Prewarm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let card = Budget::builder("cuda:0").limit(8 << 30).build()?;
/// let pool = DevicePool::builder()
///     .name("weights")
///     .budget(&card)
///     .memory_fraction(0.5)
///     .prewarm(Prewarm::of([(64 << 20, 2)]))
///     .track(Some(Tracking::All))
///     .build(&device)?;
/// assert!(pool.stats().reserved.current >= 128 << 20);
/// assert_eq!(card.used(), pool.stats().reserved.current);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DevicePoolBuilder {
    memory: CudaMemory,
    sharing: CudaSharing,
    relocates: bool,
    direct: bool,
    settings: PoolSettings,
}

impl Default for DevicePoolBuilder {
    fn default() -> Self {
        Self {
            memory: CudaMemory::Best,
            sharing: CudaSharing::new(),
            relocates: false,
            direct: false,
            settings: PoolSettings::default(),
        }
    }
}

millpond_pool::common_settings!(DevicePoolBuilder);

impl DevicePoolBuilder {
    /// Sets how memory is requested from the device. The default is the best way that the device supports.
    #[must_use]
    pub fn memory(mut self, memory: CudaMemory) -> Self {
        self.memory = memory;
        self
    }

    /// Sets how the memory is shared: with kernels on other devices, with other processes, or with network cards. By default it is not
    /// shared, because memory that is mapped by pages must be created for sharing.
    #[must_use]
    pub fn sharing(mut self, sharing: CudaSharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Allows the setting `relocate:on`. Before the pool refuses a request, and in [`compact`](DevicePool::compact), it then
    /// waits for the device, copies the pages under live blocks to smaller handles, and returns the free pages between them.
    /// The addresses of the blocks stay the same. Memory of a captured graph and [shared](Self::sharing) memory keeps its
    /// pages.
    ///
    /// # Safety
    /// While this pool serves a request or compacts, no other thread may submit work that uses the pool's memory, and no stream of the
    /// device may be captured. A copy by this library that is not complete counts as work. No other device may access the memory by its
    /// physical addresses, as a network card with a registration does.
    #[must_use]
    pub unsafe fn allow_relocation(mut self) -> Self {
        self.relocates = true;
        self
    }

    /// Sets settings as `key:value,key:value`, in place of those in the environment variable `MILLPOND_CONF`. The keys are those of the
    /// policy, and `limit`, `memory-fraction`, `capacity`, `prewarm`, `trim-every`, `trim-at-pressure`, `zero-on-reuse`, `track`, `stacks`
    /// and `leak-report` for the pool. Keys that only pools of host memory have are refused here. They are ignored in the environment
    /// variable, which applies to all pools.
    #[must_use]
    pub fn settings(mut self, settings: &str) -> Self {
        self.settings.text = Some(settings.to_owned());
        self
    }

    /// Sets the defaults of a pool that provides the memory of another library, for settings that neither the text nor the environment
    /// sets. It may reserve the whole device, and tracks its blocks, which often live until the end of the program, without stacks.
    #[doc(hidden)]
    #[must_use]
    pub fn of_a_library(mut self) -> Self {
        let defaults = &mut self.settings.defaults;
        defaults.memory_fraction = Some(1.0);
        defaults.track = Some(Some(Tracking::All));
        (defaults.stacks, defaults.leak_report) = (Some(false), Some(false));
        self
    }

    /// Makes each allocation and each free a call of the driver, and keeps nothing.
    pub(super) fn direct(mut self) -> Self {
        self.direct = true;
        self.policy("none")
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// Returns an error if a setting is invalid, if the driver does not support a requested feature, or if the memory that the pool must
    /// hold from the start cannot be allocated.
    pub fn build(self, device: &CudaDevice) -> Result<DevicePool, DevicePoolError> {
        let (mut conf, millpond) = self.settings.read(DevicePoolError::Environment)?;
        millpond.retain.check()?;
        if self.settings.text.is_some() {
            // The environment variable applies to pools of all kinds of memory.
            conf.expect_for_devices()?;
        }
        if millpond.relocate && !self.relocates {
            return Err(DevicePoolError::Relocation);
        }
        if self.direct {
            (conf.trim_every, conf.leak_report) = (Some(None), Some(false));
        }
        let retain = millpond.retain.clone();
        let fraction = *conf.memory_fraction.get_or_insert(FRACTION);
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(DevicePoolError::Fraction(fraction));
        }
        let policy = self.settings.build_policy(millpond)?;
        let mut source = CudaSource::shared(device, self.memory, self.sharing)?;
        if self.relocates {
            // SAFETY: the builder's `allow_relocation` has the same conditions, and its caller ensures them.
            unsafe { source.allow_relocation() };
        }
        let limit = Limit::new(limit_of(&conf, source.capacity())?);
        let leak_report = conf.complete(cfg!(debug_assertions));
        let (number, flow) = (next_number(), Arc::default());
        let name = self.settings.name;
        let name = name.unwrap_or_else(|| format!("{device} pool {number}"));
        let (budget, reserved) = budgets(self.settings.budget.as_ref(), &name)?;
        let memory = source.memory();
        let charged = BudgetedSource::new(source, limit.clone(), reserved.clone(), Arc::clone(&flow));
        let pool = DevicePool(Shared::new(Parts {
            device: device.clone(),
            memory,
            number,
            name,
            limit,
            engine: Engine::new(policy, Kept::new(charged, false)),
            flow,
            budget,
            reserved,
            retain,
            zero_on_reuse: conf.zero_on_reuse.unwrap_or(false),
            leak_report,
            direct: self.direct,
            of_graph: false,
            is_foreign: false,
        }));
        conf.begin_account(&pool);
        if let Some(prewarm) = &conf.prewarm {
            pool.prewarm(prewarm).map_err(DevicePoolError::Start)?;
        }
        if let Some(bytes) = conf.capacity {
            pool.reserve(bytes).map_err(DevicePoolError::Start)?;
        }
        if leak_report {
            report_leaks_at_exit();
        }
        maintain(MaintainedPool::of(&pool.0), &conf, Readings::system());
        Ok(pool)
    }
}
