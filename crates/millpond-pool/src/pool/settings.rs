//! The settings that the builders of host and of device pools have in common.

use super::conf::{PoolConf, expect_time, unused, unused_key};
use millpond_account::budget::{Budget, BudgetError, Measure};
use millpond_engine::policies::{self, UnknownPolicy};
use millpond_engine::{ConfError, MillpondConf, Policy, Settings};

/// The settings of a new pool, from the methods of a builder, from a text and from the environment.
#[derive(Clone, Debug, Default)]
pub struct PoolSettings {
    /// The name, or `None` for the default.
    pub name: Option<String>,
    /// The name of the policy, or `None` for the default.
    pub policy: Option<String>,
    /// The settings as text, which replace those of the environment.
    pub text: Option<String>,
    /// The budget that the pool is charged to.
    pub budget: Option<Budget>,
    /// The settings that were set by methods. They take precedence over the text and the environment.
    pub conf: PoolConf,
    /// The settings that apply if nothing else sets them.
    pub defaults: PoolConf,
}

impl PoolSettings {
    /// Returns the name of the policy.
    pub fn policy(&self) -> &str {
        self.policy.as_deref().unwrap_or("millpond")
    }

    /// Parses a text for a pool of this policy.
    ///
    /// # Errors
    /// Returns the errors of [`PoolConf::parse`], and an error for a setting that the policy does not have.
    pub fn parse(&self, text: &str) -> Result<(PoolConf, MillpondConf), ConfError> {
        let read = PoolConf::parse(text)?;
        match unused_key(text, self.policy()) {
            // An unknown policy name is reported as such, not as an unused key.
            Some(key) if policies::names().any(|name| name == self.policy()) => {
                Err(unused(&key, self.policy()))
            }
            _ => Ok(read),
        }
    }

    /// Returns all settings together: those of the pool, and those of the policy.
    ///
    /// # Errors
    /// Returns the errors of [`parse`](Self::parse), and an error for a value that is out of range. Errors of the environment are
    /// converted by `in_environment`.
    pub fn read<E: From<ConfError>>(
        &self,
        in_environment: impl FnOnce(ConfError) -> E,
    ) -> Result<(PoolConf, MillpondConf), E> {
        let (conf, policy) = match &self.text {
            Some(text) => self.parse(text)?,
            None => match std::env::var("MILLPOND_CONF") {
                Ok(text) => self.parse(&text).map_err(in_environment)?,
                Err(_) => PoolConf::parse("")?,
            },
        };
        let conf = self.defaults.clone().overridden(conf);
        let conf = conf.overridden(self.conf.clone());
        expect_time(conf.trim_every.flatten())?;
        Ok((conf, policy))
    }

    /// Creates the policy.
    ///
    /// # Errors
    /// Returns an error if there is no policy of this name.
    pub fn build_policy(&self, millpond: MillpondConf) -> Result<Box<dyn Policy>, UnknownPolicy> {
        let settings = Settings {
            millpond,
            ..Settings::default()
        };
        policies::build(self.policy(), &settings)
    }
}

/// Creates the pool's own child budgets, of allocated and of reserved bytes, below the given budget.
pub fn budgets(given: Option<&Budget>, name: &str) -> Result<(Option<Budget>, Option<Budget>), BudgetError> {
    let Some(given) = given else {
        return Ok((None, None));
    };
    let below = |measure| {
        let nearest = given.nearest(measure);
        nearest.map(|budget| budget.child(name)).transpose()
    };
    let budget = match given.measure() {
        Measure::Allocated => Some(given.child(name)?),
        Measure::Reserved => None,
    };
    Ok((budget, below(Measure::Reserved)?))
}

/// Implements the methods of a builder for the settings that pools of all kinds of memory have. The builder has a field `settings` of
/// [`PoolSettings`].
#[doc(hidden)]
#[macro_export]
macro_rules! common_settings {
    ($builder:ty) => {
        const _: () = {
            use millpond_account::budget::Budget;
            use millpond_account::ledger::Tracking;
            use millpond_os::pressure::Share;
            use std::time::Duration;
            use $crate::Prewarm;

            impl $builder {
                /// Sets the name that people see. The default is `pool` and a number. For a device, it begins with the name of
                /// the device.
                #[must_use]
                pub fn name(mut self, name: impl Into<String>) -> Self {
                    self.settings.name = Some(name.into());
                    self
                }

                /// Returns the name, if one was set.
                #[doc(hidden)]
                pub fn given_name(&self) -> Option<&str> {
                    self.settings.name.as_deref()
                }

                /// Sets the policy that places blocks. The default is `millpond`.
                #[must_use]
                pub fn policy(mut self, name: &str) -> Self {
                    self.settings.policy = Some(name.to_owned());
                    self
                }

                /// Sets the maximum number of bytes that the pool may take from its source, such as the system or the device. The
                /// default is the capacity of the source. If there is also a [fraction](Self::memory_fraction), the smaller
                /// of the two applies.
                #[must_use]
                pub fn limit(mut self, bytes: u64) -> Self {
                    self.settings.conf.limit = Some(Some(bytes));
                    self
                }

                /// Sets the limit as a fraction of the source's *whole* memory, above 0 and up to 1. The default is 0.8 for
                /// a device, and no such limit for the host.
                #[must_use]
                pub fn memory_fraction(mut self, fraction: f64) -> Self {
                    self.settings.conf.memory_fraction = Some(fraction);
                    self
                }

                /// Sets the number of bytes that are reserved from the start. Host memory is also backed with physical memory,
                /// as by `Pool::reserve`.
                #[must_use]
                pub fn capacity(mut self, bytes: u64) -> Self {
                    self.settings.conf.capacity = Some(bytes);
                    self
                }

                /// Sets the blocks that are prepared from the start.
                #[must_use]
                pub fn prewarm(mut self, prewarm: Prewarm) -> Self {
                    self.settings.conf.prewarm = Some(prewarm);
                    self
                }

                /// Sets the interval at which memory that has been unused for a while is given back in the background. The
                /// default is one second, and `None` turns it off. Each interval is one tick for the policy, which gives
                /// back memory that no block has touched for `decay` ticks, 64 by default.
                ///
                /// On a device, no work waits for this. A tick counts only if none of the streams that this process's pools of
                /// the device know has work, and no capture by `DevicePool::capture` is in progress. The pool cannot detect
                /// captures that other libraries begin on streams that no pool was used on. Use `None` if there are such
                /// captures.
                ///
                /// The text form is `trim-every:500ms`, or `off`.
                #[must_use]
                pub fn trim_every(mut self, time: Option<Duration>) -> Self {
                    self.settings.conf.trim_every = Some(time);
                    self
                }

                /// Sets the share of a memory limit at which the pool gives back memory that no block uses. `None`, the
                /// default, turns this off. The memory use is read in the background at the interval that
                /// [`trim_every`](Self::trim_every) sets, or each second if that is off, and only while the pool has at least
                /// 2 MiB to give back. After the pool has given memory back, the use is not read for five seconds.
                ///
                /// On the host, the limits are all those that apply to the process, as in `pressure()`, except `RLIMIT_AS`,
                /// because a pool keeps its addresses. Memory that the system reclaims by itself does not count as used. On
                /// a device, the limit is the device's memory, and the memory of all processes counts. It is not read while
                /// work would have to wait.
                ///
                /// The text form is `trim-at-pressure:80%`, or `off`.
                ///
                /// ```
                /// use millpond::{Pool, pressure::Share};
                ///
                /// let pool = Pool::builder().trim_at_pressure(Some(Share::percent(80))).host()?;
                /// pool.configure("trim-at-pressure:off")?;
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                #[must_use]
                pub fn trim_at_pressure(mut self, used: Option<Share>) -> Self {
                    self.settings.conf.trim_at_pressure = Some(used);
                    self
                }

                /// Sets whether each block is cleared before it is allocated, for tenants that must not see each other's
                /// data. The default is off. While it is on, every call for memory of the host takes the slow path. Memory
                /// of a device is cleared on the stream of the request.
                #[must_use]
                pub fn zero_on_reuse(mut self, on: bool) -> Self {
                    self.settings.conf.zero_on_reuse = Some(on);
                    self
                }

                /// Sets which blocks the pool tracks, as by `Pool::ledger`. The default is all blocks in debug builds, and
                /// none otherwise.
                #[must_use]
                pub fn track(mut self, tracking: Option<Tracking>) -> Self {
                    self.settings.conf.track = Some(tracking);
                    self
                }

                /// Sets whether tracking records the stack of each allocation, which needs the feature `stacks`. The
                /// default is on.
                #[must_use]
                pub fn stacks(mut self, on: bool) -> Self {
                    self.settings.conf.stacks = Some(on);
                    self
                }

                /// Sets whether the process reports the blocks that are still live on standard error when it ends: their
                /// number, sizes, ages, tags and allocation sites. The report needs [tracking](Self::track), which it turns
                /// on if no setting says otherwise. The default is on in debug builds, where blocks are tracked by default,
                /// and off otherwise. The pool of a whole program (`GlobalPool`) reports only on request, because static
                /// variables hold blocks of it. Nothing is reported if no block is live, for blocks that were leaked on
                /// purpose with `Buffer::leak`, and in the child of a fork.
                #[must_use]
                pub fn leak_report(mut self, on: bool) -> Self {
                    self.settings.conf.leak_report = Some(on);
                    self
                }

                /// Sets the budget that the pool is charged to. A budget can also warn before memory runs out: it calls a
                /// callback when the use exceeds its [soft limit](millpond_account::budget::BudgetBuilder::soft_limit). The
                /// example `monitor` shows a warning at 80 %.
                ///
                /// ```
                /// use millpond::{Budget, Pool, budget::Measure};
                /// use std::sync::Arc;
                /// use std::sync::atomic::{AtomicU64, Ordering};
                ///
                /// let (limit, warned) = (10 << 20, Arc::new(AtomicU64::new(0)));
                /// let told = Arc::clone(&warned);
                /// let budget = Budget::builder("activations")
                ///     .measure(Measure::Allocated)
                ///     .limit(limit)
                ///     .soft_limit(limit / 100 * 80, move |crossing| told.store(crossing.used, Ordering::Relaxed))
                ///     .build()?;
                /// let pool = Pool::builder().budget(&budget).host()?;
                /// let half = pool.alloc_zeroed::<u8>(5 << 20)?;
                /// assert_eq!(warned.load(Ordering::Relaxed), 0);
                /// let more = pool.alloc_zeroed::<u8>(4 << 20)?;
                /// assert_eq!(warned.load(Ordering::Relaxed), 9 << 20);
                /// # drop((half, more));
                /// # Ok::<(), Box<dyn std::error::Error>>(())
                /// ```
                ///
                /// A budget of allocated bytes is charged for each block, and the nearest budget of reserved bytes above it
                /// is charged for the memory that the pool takes from its source. A budget of reserved bytes is charged for
                /// the latter only. The pool gets its own child budget with the pool's name.
                #[must_use]
                pub fn budget(mut self, budget: &Budget) -> Self {
                    self.settings.budget = Some(budget.clone());
                    self
                }
            }
        };
    };
}
