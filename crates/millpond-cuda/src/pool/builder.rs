//! The builder of device pools.

use super::kept::Kept;
use super::maintained::MaintainedPool;
use super::{DevicePool, Parts, Shared};
use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::source::{CudaMemory, CudaSharing, CudaSource};
use millpond_account::budget::{Budget, BudgetError};
use millpond_account::error::AllocError;
use millpond_account::ledger::Tracking;
use millpond_engine::policies::UnknownPolicy;
use millpond_engine::{ConfError, Engine, Limit, Source};
use millpond_os::pressure::{Readings, Share};
use millpond_pool::pool::{
    Charged, PoolSettings, Prewarm, budgets, limit_of, maintain, next_number, report_leaks_at_exit,
};
use std::sync::Arc;
use std::time::Duration;
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
    #[error("a pool can have more than 0 and at most 1 of a device's memory, not {0}")]
    Fraction(f64),
    /// The budget cannot have a child for the pool.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The memory that the pool must hold from the start cannot be allocated.
    #[error("what the pool is to hold from the start cannot be had: {0}")]
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
/// use millpond::{Budget, Prewarm, Tracking};
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
#[must_use = "nothing is made until build"]
pub struct DevicePoolBuilder {
    memory: CudaMemory,
    sharing: CudaSharing,
    direct: bool,
    settings: PoolSettings,
}

impl Default for DevicePoolBuilder {
    fn default() -> Self {
        Self {
            memory: CudaMemory::Best,
            sharing: CudaSharing::new(),
            direct: false,
            settings: PoolSettings::default(),
        }
    }
}

impl DevicePoolBuilder {
    /// Sets the name that events and reports show.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Sets how memory is requested from the device. The default is the best way that the device supports.
    pub fn memory(mut self, memory: CudaMemory) -> Self {
        self.memory = memory;
        self
    }

    /// Sets who else may use the memory: kernels on other devices, other processes, or network cards. The default is nobody,
    /// because memory that is mapped by pages must be created for sharing.
    pub fn sharing(mut self, sharing: CudaSharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets the policy that places blocks. The default is `millpond`. The policies are those of a replay, so a simulated policy can be used
    /// here.
    pub fn policy(mut self, name: &str) -> Self {
        self.settings.policy = Some(name.to_owned());
        self
    }

    /// Sets settings as `key:value,key:value`, in place of those in the environment variable `MILLPOND_CONF`. The keys are those of the
    /// policy, and `limit`, `memory-fraction`, `capacity`, `prewarm`, `trim-every`, `trim-at-pressure`, `zero-on-reuse`, `track`, `stacks`
    /// and `leak-report` for the pool. Keys that only pools of host memory have are refused here. They are ignored in the environment
    /// variable, which applies to all pools.
    pub fn settings(mut self, settings: &str) -> Self {
        self.settings.text = Some(settings.to_owned());
        self
    }

    /// Sets the share of the device's total memory that the pool may reserve. The default is 0.8.
    pub fn memory_fraction(mut self, fraction: f64) -> Self {
        self.settings.conf.memory_fraction = Some(fraction);
        self
    }

    /// Sets the number of bytes that the pool may reserve, if that is less than its share.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.settings.conf.limit = Some(Some(bytes));
        self
    }

    /// Sets the number of bytes that the pool reserves from the start.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.settings.conf.capacity = Some(bytes);
        self
    }

    /// Sets the blocks that the pool prepares from the start.
    pub fn prewarm(mut self, prewarm: Prewarm) -> Self {
        self.settings.conf.prewarm = Some(prewarm);
        self
    }

    /// Sets whether each block is cleared before it is handed out, on the stream of the request. Use this for tenants that must not see
    /// each other's data.
    pub fn zero_on_reuse(mut self, on: bool) -> Self {
        self.settings.conf.zero_on_reuse = Some(on);
        self
    }

    /// Sets whether the pool keeps an account of all live blocks, of some of them, or of none. The default is an account of all blocks in
    /// debug builds and none in other builds.
    pub fn track(mut self, tracking: Option<Tracking>) -> Self {
        self.settings.conf.track = Some(tracking);
        self
    }

    /// Sets whether that account contains the stacks of allocations. The default is yes.
    pub fn stacks(mut self, on: bool) -> Self {
        self.settings.conf.stacks = Some(on);
        self
    }

    /// Sets how often idle memory is given back to the device in the background. The default is each second; `None` means never. Each time
    /// is one tick for the policy, which gives back memory that no block has used for `decay` ticks. The default of `decay` is 64.
    ///
    /// No work is made to wait for this. A tick counts only if no stream that this process's pools of the device know has work, and no
    /// capture by [`DevicePool::capture`] is in progress. Captures that other libraries begin on streams which no pool was used on cannot
    /// be detected; use `None` if there are such captures. The textual form is `trim-every:500ms`, or `off`.
    pub fn trim_every(mut self, time: Option<Duration>) -> Self {
        self.settings.conf.trim_every = Some(time);
        self
    }

    /// Sets the share of the device's memory in use, by this or any other process, at which the pool gives back its unused memory. The
    /// default is `None`, which means never. The share is checked as often as [`trim_every`](Self::trim_every) says, or each second if that
    /// is never. It is checked only while the pool has at least a mebibyte to give back and no work has to wait for that, and not for five
    /// seconds after memory was given back. The textual form is `trim-at-pressure:80%`, or `off`.
    pub fn trim_at_pressure(mut self, used: Option<Share>) -> Self {
        self.settings.conf.trim_at_pressure = Some(used);
        self
    }

    /// Sets whether the blocks that are still held when the process ends are reported on standard error, like
    /// [`PoolBuilder::leak_report`](millpond_pool::PoolBuilder::leak_report). The report needs an [account](Self::track), which is kept if no other
    /// choice was made. The default is yes in debug builds and no in other builds.
    pub fn leak_report(mut self, on: bool) -> Self {
        self.settings.conf.leak_report = Some(on);
        self
    }

    /// Charges the pool to children of a budget, which have the pool's name. A child of the nearest budget of reserved bytes, which is
    /// this one or one above it, is charged with the memory that the pool takes from the device. If this budget counts allocated
    /// bytes, its own child is charged with the blocks that the pool hands out.
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.settings.budget = Some(budget.clone());
        self
    }

    #[doc(hidden)]
    pub fn has_name(&self) -> bool {
        self.settings.name.is_some()
    }

    /// Makes each allocation and each free a call of the driver, and keeps nothing.
    pub(super) fn direct(mut self) -> Self {
        self.direct = true;
        self.policy("none")
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// Returns an error if a setting is invalid, if the driver does not support what is asked for, or if the memory that the pool must hold
    /// from the start cannot be allocated.
    pub fn build(self, device: &CudaDevice) -> Result<DevicePool, DevicePoolError> {
        let (mut conf, millpond) = self.settings.read(DevicePoolError::Environment)?;
        millpond.retain.check()?;
        if self.settings.text.is_some() {
            // The environment variable applies to pools of all kinds of memory.
            conf.expect_for_devices()?;
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
        let source = CudaSource::shared(device, self.memory, self.sharing)?;
        let limit = Limit::new(limit_of(&conf, source.capacity())?);
        let leak_report = conf.complete(cfg!(debug_assertions));
        let (number, flow) = (next_number(), Arc::default());
        let name = self.settings.name;
        let name = name.unwrap_or_else(|| format!("{device} pool {number}"));
        let (budget, reserved) = budgets(self.settings.budget.as_ref(), &name)?;
        let memory = source.memory();
        let charged = Charged::new(source, limit.clone(), reserved.clone(), Arc::clone(&flow));
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
