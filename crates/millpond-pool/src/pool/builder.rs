//! The settings of a new pool, and the errors of creating one.

use super::background;
use super::conf::{PoolConf, ReadSettings, SettingsChange, limit_of};
use super::exit::report_leaks_at_exit;
use super::guard::{self, Guard};
use super::heap::{Heap, Parts};
use super::prewarm::Prewarm;
use super::settings::{PoolSettings, budgets};
use super::zero_tracking::ZeroTrackingSource;
use super::{Handle, Pool};
use crate::MemorySource;
use crate::host::{Host, HostError, HugePages, Node};
use millpond_account::budget::{BudgetError, Measure};
use millpond_account::error::AllocError;
use millpond_account::post_mortem::{Lister, Survey};
use millpond_engine::policies::UnknownPolicy;
use millpond_engine::{Amount, ConfError, Engine, Limit, MillpondConf, Source};
use millpond_os as os;
use millpond_os::device::Device;
use millpond_os::pressure::Readings;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use thiserror::Error;

/// The reason why a pool could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The source cannot be created as described.
    #[error(transparent)]
    Source(#[from] HostError),
    /// There is no policy of this name.
    #[error("there is no policy {name:?}: choose one of {known}")]
    UnknownPolicy {
        /// The name.
        name: String,
        /// The known policies.
        known: String,
    },
    /// A setting cannot be parsed or is invalid.
    #[error(transparent)]
    Settings(#[from] ConfError),
    /// The settings in the environment cannot be parsed.
    #[error("MILLPOND_CONF: {0}")]
    Environment(#[source] ConfError),
    /// There is no memory for the initial contents of the pool.
    #[error("the memory that the pool must hold from the start cannot be allocated: {0}")]
    Start(#[source] AllocError),
    /// Guarded blocks were requested, but the source cannot protect single pages of the system. Explicit huge pages cannot.
    #[error("blocks cannot be guarded, because the source cannot protect single pages of its memory")]
    Unguardable,
    /// The pools of a set are in host memory only.
    #[error(
        "a set creates pools of memory that the host can access, not of the memory of {device}: use `cuda::DevicePool`, and `cuda::DeviceTensor` for tensors"
    )]
    NotTheHosts {
        /// The device.
        device: Device,
    },
    /// Sets create no pools of managed memory.
    #[error(
        "a set creates no pool of managed memory: create one over `cuda::CudaManaged` and insert it into the set"
    )]
    NotManaged,
    /// No child budget for the pool can be created below the given budget.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A function that is called while this thread creates the pool for a set of pools requested this same pool.
    #[error("the pool {name} was requested by a function that is called while this thread creates the pool")]
    Reentered {
        /// The name of the pool in the set.
        name: String,
    },
}

impl From<UnknownPolicy> for PoolError {
    fn from(UnknownPolicy { name, known }: UnknownPolicy) -> Self {
        Self::UnknownPolicy { name, known }
    }
}

/// Describes a pool.
///
/// Settings that the builder's methods do not set are taken from the environment variable `MILLPOND_CONF`, a list of
/// `key:value,…` with the keys of [`settings`](Self::settings). All other settings have the defaults that the methods
/// describe.
///
/// ```
/// use millpond::{Pool, pool::Prewarm};
/// use std::time::Duration;
///
/// let pool = Pool::builder()
///     .name("activations")
///     .limit(2 << 30)
///     .cache_size("512MiB".parse_size()?)
///     .capacity(16 << 20)
///     .prewarm(Prewarm::small_sizes())
///     .trim_every(Some(Duration::from_secs(1)))
///     .host()?;
/// assert!(pool.stats().reserved.current >= 16 << 20);
/// # trait ParseSize { fn parse_size(&self) -> Result<u64, millpond::engine::ParseSizeError>; }
/// # impl ParseSize for str { fn parse_size(&self) -> Result<u64, millpond::engine::ParseSizeError> { millpond::engine::parse_size(self) } }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PoolBuilder {
    settings: PoolSettings,
    cache_size: Option<u64>,
    /// Blocks that are prepared if no setting says otherwise and they need at most an eighth of the limit.
    carved: Option<Prewarm>,
    readings: Readings,
    of_a_program: bool,
    of_malloc: bool,
}

crate::common_settings!(PoolBuilder);

impl PoolBuilder {
    /// Sets the settings as text, `key:value,…`. The text replaces that of the environment variable `MILLPOND_CONF`. The
    /// builder's other methods take precedence over both.
    ///
    /// The keys are `limit`, `memory-fraction`, `cache-size`, `capacity`, `prewarm` (`small`, `six=SIZE` or
    /// `[64*1000,1MiB*4]`), `trim-every` (a time, or `off`), `trim-at-pressure` (a share, or `off`), `zero-on-reuse`,
    /// `pinned`, `node`, `huge-pages`, `align`, `track` (`off`, `all` or `one-in=N`), `stacks`, `guard`, `quarantine`,
    /// `leak-report`, and those of the policies `millpond` and `planned`, which `millpond policies` lists. With another
    /// policy, a setting of these two policies except `memory-fraction` is an error ([`ConfError::Unused`]).
    #[must_use]
    pub fn settings(mut self, text: &str) -> Self {
        self.settings.text = Some(text.to_owned());
        self
    }

    /// Parses a text of [`settings`](Self::settings) without creating a pool. It is intended for programs that run the
    /// policy by itself and use the same text for both.
    ///
    /// ```
    /// let read = millpond::PoolBuilder::read_settings("guard:on,handle:4MiB")?;
    /// assert_eq!((read.policy_text.as_str(), read.policy.handle_bytes), ("handle:4MiB", 4 << 20));
    /// assert_eq!(read.pool_text, "guard:on");
    /// # Ok::<(), millpond::engine::ConfError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a key is unknown or a value is invalid. This includes the pool's keys.
    pub fn read_settings(text: &str) -> Result<ReadSettings, ConfError> {
        ReadSettings::parse(text)
    }

    /// Sets the maximum amount of free memory that the pool keeps for longer than the time between two trims. Policies other than
    /// `millpond` and `planned` have no such bound: creating the pool then fails with [`ConfError::Unused`].
    #[must_use]
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.cache_size = Some(bytes);
        self
    }

    /// Sets the source of the readings of [`trim_at_pressure`](Self::trim_at_pressure). The default is the system. Tests
    /// set another one.
    #[must_use]
    pub fn readings(mut self, readings: Readings) -> Self {
        self.readings = readings;
        self
    }

    /// Sets the NUMA node that the memory comes from. By default the system chooses.
    #[must_use]
    pub fn node(mut self, node: Node) -> Self {
        self.settings.conf.node = Some(node);
        self
    }

    /// Sets the page sizes that the system uses. The default is [`HugePages::Auto`]. The pool reserves memory in pages of
    /// its own. Their size is 2 MiB, or 64 KiB if the pool may reserve at most 128 MiB or its memory is locked. With
    /// [`HugePages::System`] it is 64 KiB, and the reserved memory follows the need most closely.
    #[must_use]
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.settings.conf.huge_pages = Some(huge);
        self
    }

    /// Sets the alignment of every address, a power of two. The default is 64. The pool of a whole program uses the
    /// alignment of the requested layouts.
    #[must_use]
    pub fn align(mut self, bytes: usize) -> Self {
        self.settings.conf.align = Some(bytes);
        self
    }

    /// Sets whether blocks are guarded, to find invalid writes. The default is off. It cannot be changed during the pool's
    /// life.
    ///
    /// - A block has its own pages and ends where a protected page begins. A write past its end raises `SIGSEGV` at that write.
    ///   If the size is not a multiple of the alignment (at least 64), there are bytes between the block's end and the page's
    ///   end. These bytes and those before the block are filled, and checked when the block is freed. If they changed, a
    ///   [`WrongFree::Overrun`](millpond_account::WrongFree::Overrun) is reported to
    ///   [subscribers](millpond_account::Subscriber::wrong_free) and on standard error, and the program continues.
    /// - A freed block is filled, and its pages are protected and stay in [quarantine](Self::quarantine). A use after the free
    ///   raises `SIGSEGV` at that use.
    /// - A buffer has no more capacity than was requested, and does not grow in place.
    ///
    /// The pool sets no signal handler: call [`describe_fault`](crate::describe_fault) in yours to describe the block of an
    /// address. Each block takes at least two system pages, four system calls, and two of the about 65,000 mappings of a
    /// process. When no mappings are left, pages are filled and checked instead of protected. A policy that cannot align to
    /// pages (`buckets`) refuses every request with [`AllocError::Alignment`].
    ///
    /// ```
    /// use millpond::Pool;
    ///
    /// let pool = Pool::builder().guard(true).host()?;
    /// let block = pool.alloc_zeroed::<u8>(1000)?;
    /// assert_eq!(block.capacity(), 1000);
    /// drop(block);
    /// assert_eq!(pool.guard_stats().map(|guard| guard.quarantined), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn guard(mut self, on: bool) -> Self {
        self.settings.conf.guard = Some(on);
        self
    }

    /// Sets the maximum number of bytes of freed blocks' pages that a guarded pool keeps protected. The oldest are released first.
    /// The default is 64 MiB. These pages stay reserved. A trim empties the quarantine, and so does a request that finds no
    /// free memory.
    #[must_use]
    pub fn quarantine(mut self, bytes: u64) -> Self {
        self.settings.conf.quarantine = Some(bytes);
        self
    }

    /// Creates a pool over ordinary memory of this process, or over locked memory if the settings contain `pinned:on`.
    ///
    /// # Errors
    /// Returns an error if the policy or a setting is unknown, or if the memory is not available.
    pub fn host(self) -> Result<Pool, PoolError> {
        let most = self.most_reserved();
        self.build(|conf| {
            if conf.pinned == Some(true) {
                Ok(Box::new(host(conf, SMALL_PAGES).build_pinned()?))
            } else {
                let most = most.min(limit_of(conf, Some(os::machine_memory().1))?);
                let pages = if most <= WORTH_LARGE {
                    SMALL_PAGES
                } else {
                    LARGE_PAGES
                };
                Ok(Box::new(host(conf, pages).build()?))
            }
        })
    }

    /// Creates a pool over locked memory, which the system limits. See [`Pinned`](crate::Pinned).
    ///
    /// # Errors
    /// Returns the same errors as [`host`](Self::host).
    pub fn pinned(self) -> Result<Pool, PoolError> {
        self.build(|conf| Ok(Box::new(host(conf, SMALL_PAGES).build_pinned()?)))
    }

    /// Creates a pool over a source of memory.
    ///
    /// # Errors
    /// Returns an error if the policy or a setting is unknown.
    pub fn over(self, source: Box<dyn MemorySource + Send>) -> Result<Pool, PoolError> {
        self.build(|_| Ok(source))
    }

    /// Returns the bytes that the budget still allows the pool to reserve.
    fn most_reserved(&self) -> u64 {
        let budget = self.settings.budget.as_ref();
        let reserved = budget.and_then(|budget| budget.nearest(Measure::Reserved));
        reserved.map_or(u64::MAX, |budget| budget.remaining())
    }

    /// Sets the blocks that are prepared from the start if no setting says otherwise and the limit is large enough.
    #[doc(hidden)]
    pub fn carved(mut self, prewarm: Prewarm) -> Self {
        self.carved = Some(prewarm);
        self
    }

    /// Sets the defaults of a whole program's pool, for settings that neither the text nor the environment sets. An
    /// allocator starts no threads, so free memory is given back by `trim` only. Debug builds track the blocks of other
    /// pools, but for a whole program this is too expensive by default. Background work starts only with
    /// [`look_after`](Self::look_after).
    pub(crate) fn of_a_program(mut self, limit: Option<u64>, of_malloc: bool) -> Self {
        (self.of_a_program, self.of_malloc) = (true, of_malloc);
        self.settings.defaults = PoolConf {
            limit: limit.map(Some),
            trim_every: Some(None),
            trim_at_pressure: Some(None),
            ..PoolConf::default()
        };
        self
    }

    /// Starts the background work of the program's pool, which was created with these settings, if they enable it. This
    /// starts a thread that allocates like any other, so the global allocator must already find the pool.
    pub(crate) fn look_after(&self, pool: &Pool) {
        if let Ok((conf, _)) = self.read() {
            background::maintain(pool.heap, &conf, self.readings.clone());
        }
    }

    /// Parses changeable settings as a pool with these settings would.
    ///
    /// # Errors
    /// Returns an error if a live pool with these settings would return one.
    #[doc(hidden)]
    pub fn check_change(&self, text: &str) -> Result<(), ConfError> {
        // If the pool's own settings are invalid, creating the pool reports that error.
        let now = self.read().map(|(_, policy)| policy.retain).unwrap_or_default();
        SettingsChange::parse(text, self.settings.policy(), &now).map(|_| ())
    }

    fn read(&self) -> Result<(PoolConf, MillpondConf), PoolError> {
        let (conf, mut policy) = self.settings.read(PoolError::Environment)?;
        if let Some(bytes) = self.cache_size {
            self.settings.parse(&format!("cache-size:{bytes}"))?;
            policy.retain.high_water = Some(Amount::Bytes(bytes));
        }
        policy.retain.check()?;
        // Handles of host memory cost nothing. The cost is per call, and one call opens many pages.
        policy.single_pages = true;
        Ok((conf, policy))
    }

    fn build(
        self,
        source: impl FnOnce(&PoolConf) -> Result<Box<dyn MemorySource + Send>, PoolError>,
    ) -> Result<Pool, PoolError> {
        let (mut conf, policy) = self.read()?;
        let align = conf.align.unwrap_or(1);
        if !align.is_power_of_two() {
            let told = ConfError::value("align", &align.to_string(), "a power of two is needed");
            return Err(told.into());
        }
        let retain = policy.retain.clone();
        let policy = self.settings.build_policy(policy)?;
        let source = source(&conf)?;
        let guard = conf.guard == Some(true);
        if guard && !source.can_protect() {
            return Err(PoolError::Unguardable);
        }
        let kind = source.kind();
        let limit = Limit::new(limit_of(&conf, source.capacity())?);
        let heap = Heap::new(|number, order| {
            let name = self.settings.name;
            let name = name.unwrap_or_else(|| format!("pool {number}"));
            let (budget, reserved) = budgets(self.settings.budget.as_ref(), &name)?;
            let flow = Arc::default();
            let guard = guard.then(|| {
                let quarantine = conf.quarantine.unwrap_or(guard::QUARANTINE);
                Guard::new(order, quarantine, conf.stacks.unwrap_or(true))
            });
            let gate = ZeroTrackingSource::new(source, limit.clone(), reserved.clone(), Arc::clone(&flow));
            Ok::<_, PoolError>(Parts {
                name,
                kind,
                memory: Engine::new(policy, gate),
                limit,
                budget,
                reserved,
                retain,
                align,
                guard,
                flow,
                is_mapped: self.of_malloc,
            })
        })?;
        if !self.of_a_program {
            heap.announce();
        }
        if heap.guard.is_some() {
            guard::register(heap);
        }
        if let Some(budget) = heap.budget.as_ref().or(heap.reserved.as_ref()) {
            budget.set_lister(Some(Arc::new(PoolLister(heap))));
        }
        // The handle closes the pool if anything below fails.
        let pool = Pool {
            heap,
            align,
            handle: Arc::new(Handle(heap)),
        };
        if conf.complete(cfg!(debug_assertions) && !self.of_a_program) {
            heap.reports_in.store(process::id(), Ordering::Relaxed);
            report_leaks_at_exit();
        }
        heap.start(&conf).map_err(PoolError::Start)?;
        let carved = self.carved.filter(|carved| {
            // If the limit is small, blocks that were not requested must not use it up.
            conf.prewarm.is_none() && heap.limit.bytes() / 8 >= carved.bytes()
        });
        if let Some(carved) = carved {
            let _ = heap.prewarm(&carved);
        }
        if !self.of_a_program {
            background::maintain(heap, &conf, self.readings);
        }
        Ok(pool)
    }
}

/// Bytes of the pages of a large host pool. These are whole huge pages. Compared with the size of a large pool, little memory
/// is lost around a live block.
const LARGE_PAGES: u64 = 2 << 20;
/// Bytes of the pages of a host pool that must stay small, or whose memory is locked.
const SMALL_PAGES: u64 = 64 << 10;
/// The largest limit of a pool that uses small pages.
const WORTH_LARGE: u64 = 64 * LARGE_PAGES;

fn host(conf: &PoolConf, page: u64) -> crate::host::HostBuilder {
    let huge = conf.huge_pages.unwrap_or_default();
    let page = match huge {
        HugePages::Explicit(bytes) => bytes,
        HugePages::Auto | HugePages::Transparent => page,
        HugePages::System => SMALL_PAGES,
    };
    let host = Host::builder()
        .page_bytes(page)
        .huge_pages(huge)
        .capacity(Some(os::machine_memory().1));
    match conf.node {
        Some(node) => host.node(node),
        None => host,
    }
}

/// Lists the contents of a pool when a request is refused. Pools are never freed, so the reference cannot dangle. A closed
/// pool lists nothing.
struct PoolLister(&'static Heap);

impl Lister for PoolLister {
    fn list(&self, survey: &mut Survey) {
        self.0.survey(survey);
    }
}

impl Heap {
    /// Applies the settings that take effect when the pool starts: tracking, clearing, prewarming and the capacity.
    fn start(&'static self, conf: &PoolConf) -> Result<(), AllocError> {
        conf.begin_account(&self);
        if let Some(on) = conf.zero_on_reuse {
            self.clear_on_reuse(on);
        }
        if let Some(prewarm) = &conf.prewarm {
            self.prewarm(prewarm)?;
        }
        conf.capacity.map_or(Ok(()), |total| self.reserve(total))
    }
}
