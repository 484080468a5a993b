//! How a pool of a device is made.

use super::kept::Kept;
use super::leaks::watch_exit;
use super::ward::DeviceWard;
use super::{DevicePool, Parts, Shared};
use crate::budget::{Budget, BudgetError};
use crate::error::AllocError;
use crate::gpu::device::CudaDevice;
use crate::gpu::error::CudaError;
use crate::gpu::source::{CudaMemory, CudaSharing, CudaSource};
use crate::ledger::{Ledger, Tracking};
use crate::pool::{
    Charged, Lookout, PoolConf, Prewarm, TICK, budgets, expect_time, keep, limit_of, unused, unused_key,
};
use crate::pressure::{Readings, Share};
use crate::registry;
use millpond_engine::{ConfError, Engine, Limit, MillpondConf, Settings, Source, policies};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

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
    /// The same, of the variable `MILLPOND_CONF`.
    #[error("MILLPOND_CONF: {0}")]
    Environment(#[source] ConfError),
    /// The share of the device is none.
    #[error("a pool can have more than 0 and at most 1 of a device's memory, not {0}")]
    Fraction(f64),
    /// The budget cannot have it below.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// What it was to hold from the start it cannot get.
    #[error("what the pool is to hold from the start cannot be had: {0}")]
    Start(#[source] AllocError),
}

/// Describes a pool of a device.
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
    policy: String,
    name: Option<String>,
    settings: Option<String>,
    budget: Option<Budget>,
    direct: bool,
    /// What was said by methods; it goes before what texts say.
    conf: PoolConf,
}

impl Default for DevicePoolBuilder {
    fn default() -> Self {
        Self {
            memory: CudaMemory::Best,
            sharing: CudaSharing::new(),
            policy: "millpond".to_owned(),
            name: None,
            settings: None,
            budget: None,
            direct: false,
            conf: PoolConf::default(),
        }
    }
}

impl DevicePoolBuilder {
    /// Its name, in events and reports.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How memory is asked of the device; the best way there is unless said otherwise.
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

    /// The policy that places blocks; `millpond` unless said otherwise. The same as in a replay: what was simulated runs.
    pub fn policy(mut self, name: &str) -> Self {
        name.clone_into(&mut self.policy);
        self
    }

    /// Settings as `key:value,key:value`, in place of those in the environment (`MILLPOND_CONF`): those of the policy, and of
    /// the pool `limit`, `memory-fraction`, `capacity`, `prewarm`, `trim-every`, `trim-at-pressure`, `zero-on-reuse`, `track`,
    /// `stacks` and `leak-report`. What only pools of host memory have is refused here, and passed over in the environment, which is
    /// for all pools.
    pub fn settings(mut self, settings: &str) -> Self {
        self.settings = Some(settings.to_owned());
        self
    }

    /// The share of the device's memory that it may reserve, of all there is; 0.8 unless said otherwise.
    pub fn memory_fraction(mut self, fraction: f64) -> Self {
        self.conf.memory_fraction = Some(fraction);
        self
    }

    /// Bytes that it may reserve, if that is less than its share.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.conf.limit = Some(Some(bytes));
        self
    }

    /// Bytes to be reserved from the start.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.conf.capacity = Some(bytes);
        self
    }

    /// Blocks to be ready from the start.
    pub fn prewarm(mut self, prewarm: Prewarm) -> Self {
        self.conf.prewarm = Some(prewarm);
        self
    }

    /// Has each block cleared, on the stream it is asked for on, before it is handed out: for tenants that must not see each
    /// other's data.
    pub fn zero_on_reuse(mut self, on: bool) -> Self {
        self.conf.zero_on_reuse = Some(on);
        self
    }

    /// Keeps an account of live blocks, of all or of some; none without one. In debug builds there is one of all unless this
    /// says otherwise.
    pub fn track(mut self, tracking: Option<Tracking>) -> Self {
        self.conf.track = Some(tracking);
        self
    }

    /// Whether that account has the stacks of allocations; yes unless said otherwise.
    pub fn stacks(mut self, on: bool) -> Self {
        self.conf.stacks = Some(on);
        self
    }

    /// How often memory that has not been used for a while goes back to the device in the background: each second unless said
    /// otherwise, never with `None`. Each time is one tick for the policy, which gives back what no block has touched for `decay`
    /// ticks, 64 unless set.
    ///
    /// Nothing is to wait for that: a tick counts when no stream that this process's pools of the device know has work, and
    /// nothing is captured by [`DevicePool::capture`]. Of captures that other libraries begin on streams which no pool was asked on
    /// nobody tells; beside such, say `None`. As text it is `trim-every:500ms`, or `off`.
    pub fn trim_every(mut self, time: Option<Duration>) -> Self {
        self.conf.trim_every = Some(time);
        self
    }

    /// Gives back what no block uses when so much of the device's memory is in use, by whomever: never with `None`, which is the
    /// default. It is looked at as often as [`trim_every`](Self::trim_every) says, each second where that is never, while the pool has a
    /// mebibyte or more to give and nobody has to wait, and not for five seconds after it has given. As text it is
    /// `trim-at-pressure:80%`, or `off`.
    pub fn trim_at_pressure(mut self, used: Option<Share>) -> Self {
        self.conf.trim_at_pressure = Some(used);
        self
    }

    /// Whether standard error is told, when the process ends, which blocks are still held, as
    /// [`PoolBuilder::leak_report`](crate::PoolBuilder::leak_report). It takes an [account](Self::track), which is begun where nothing
    /// is said of one. On in debug builds, off in others unless asked for.
    pub fn leak_report(mut self, on: bool) -> Self {
        self.conf.leak_report = Some(on);
        self
    }

    /// A budget that the pool is charged to, by a child of its name: of reserved bytes what it takes from the device, of
    /// allocated bytes what it hands out, and that to the nearest budget of reserved bytes above.
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    pub(crate) fn has_name(&self) -> bool {
        self.name.is_some()
    }

    /// Every block a call of the driver, and nothing kept.
    pub(super) fn direct(mut self) -> Self {
        self.direct = true;
        self.policy("none")
    }

    /// What texts and methods say together.
    fn read(&self) -> Result<(PoolConf, MillpondConf), DevicePoolError> {
        let (conf, policy) = match &self.settings {
            Some(text) => {
                let (conf, policy) = PoolConf::parse(text)?;
                self.expect_used(text)?;
                conf.expect_for_devices()?;
                (conf, policy)
            }
            None => match std::env::var("MILLPOND_CONF") {
                Ok(text) => {
                    let read = PoolConf::parse(&text).map_err(DevicePoolError::Environment)?;
                    self.expect_used(&text)?;
                    read
                }
                Err(_) => PoolConf::parse("")?,
            },
        };
        policy.retain.check()?;
        expect_time(self.conf.trim_every.flatten())?;
        Ok((conf.overridden(self.conf.clone()), policy))
    }

    /// Refuses settings that the policy does nothing with.
    fn expect_used(&self, text: &str) -> Result<(), ConfError> {
        match unused_key(text, &self.policy) {
            // A name that is none is told as that.
            Some(key) if policies::names().any(|name| name == self.policy) => Err(unused(&key, &self.policy)),
            _ => Ok(()),
        }
    }

    /// Makes it.
    ///
    /// # Errors
    /// Where a setting is none, the driver cannot do what is asked for, or what it is to hold from the start cannot be had.
    pub fn build(self, device: &CudaDevice) -> Result<DevicePool, DevicePoolError> {
        let (mut conf, millpond) = self.read()?;
        if self.direct {
            (conf.trim_every, conf.leak_report) = (Some(None), Some(false));
        }
        let retain = millpond.retain.clone();
        let fraction = *conf.memory_fraction.get_or_insert(FRACTION);
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(DevicePoolError::Fraction(fraction));
        }
        let settings = Settings {
            millpond,
            ..Settings::default()
        };
        let policy =
            policies::build(&self.policy, &settings).map_err(|_| DevicePoolError::UnknownPolicy {
                name: self.policy.clone(),
                known: policies::names().collect::<Vec<_>>().join(", "),
            })?;
        let source = CudaSource::shared(device, self.memory, self.sharing)?;
        let limit = Limit::new(limit_of(&conf, source.capacity())?);
        let leak_report = conf.leak_report.unwrap_or(cfg!(debug_assertions));
        let (number, flow) = (crate::pool::next_number(), Arc::default());
        let name = self.name.unwrap_or_else(|| format!("{device} pool {number}"));
        let (budget, reserved) = budgets(self.budget.as_ref(), &name)?;
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
        let tracks = cfg!(debug_assertions) || conf.leak_report == Some(true);
        let track = conf.track.unwrap_or(tracks.then_some(Tracking::All));
        if let Some(tracking) = track {
            let account = Ledger::builder(tracking).complete(true).times(true);
            pool.track(Some(account.stacks(conf.stacks.unwrap_or(true))));
        } else if registry::are_wanted() {
            registry::begin_account(&pool);
        }
        if let Some(prewarm) = &conf.prewarm {
            pool.prewarm(prewarm).map_err(DevicePoolError::Start)?;
        }
        if let Some(bytes) = conf.capacity {
            pool.reserve(bytes).map_err(DevicePoolError::Start)?;
        }
        if leak_report {
            watch_exit();
        }
        let lookout = Lookout::new(conf.trim_at_pressure.flatten(), Readings::system());
        keep(
            DeviceWard::of(&pool.0),
            conf.trim_every.unwrap_or(Some(TICK)),
            lookout,
        );
        Ok(pool)
    }
}
