//! What a pool is to be like, and why it cannot be.

use super::conf::{Change, PoolConf, ReadSettings, unused, unused_key};
use super::gate::Gate;
use super::guard::{self, Guard};
use super::heap::{Heap, Parts};
use super::keeper;
use super::lookout::Lookout;
use super::prewarm::Prewarm;
use super::{Handle, Pool};
use crate::budget::{Budget, BudgetError, Measure};
use crate::device::Device;
use crate::error::AllocError;
use crate::host::{Host, HostError, HugePages, Node};
use crate::ledger::{Ledger, Tracking};
use crate::memory::MemorySource;
use crate::os;
use crate::post_mortem::{Lister, Survey};
use crate::pressure::{Readings, Share};
use crate::registry;
use millpond_engine::{
    Amount, ConfError, Engine, Limit, MillpondConf, RetainConf, Settings, Source, policies,
};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Why a pool could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The source of memory cannot be as described.
    #[error(transparent)]
    Source(#[from] HostError),
    /// There is no policy of this name.
    #[error("there is no policy {name:?}: choose one of {known}")]
    UnknownPolicy {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A setting cannot be read, or cannot be as it is.
    #[error(transparent)]
    Settings(#[from] ConfError),
    /// The settings in the environment cannot be read.
    #[error("MILLPOND_CONF: {0}")]
    Environment(#[source] ConfError),
    /// There is no memory for what the pool is to hold from the start.
    #[error("what the pool is to hold from the start cannot be had: {0}")]
    Start(#[source] AllocError),
    /// Blocks are to be guarded, and the source cannot close pages of the system one by one, as explicit huge pages cannot
    /// be.
    #[error("blocks cannot be guarded: the source cannot close single pages of its memory")]
    Unguardable,
    /// Pools of a set are of the host's memory.
    #[error(
        "a set's pools are of memory that the host can touch, not {device}'s own: for that there is `cuda::DevicePool`"
    )]
    NotTheHosts {
        /// The device.
        device: Device,
    },
    /// Sets make no pools of managed memory.
    #[error(
        "a set makes no pool of managed memory: make one over `cuda::CudaManaged`, and put it into the set"
    )]
    NotManaged,
    /// The budget cannot have one below it for the pool.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The pool is wanted by what is called while this very thread makes it for a set of pools.
    #[error("{name} is wanted by what is called while this thread makes it")]
    Reentered {
        /// What the set calls it.
        name: String,
    },
}

/// Describes a pool.
///
/// What is not said here is taken from the environment variable `MILLPOND_CONF`, a list of `key:value,…` with the keys
/// of [`settings`](Self::settings); what is not said there either is as the methods say.
///
/// ```
/// use millpond::{Pool, Prewarm};
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
    name: Option<String>,
    policy: Option<String>,
    settings: Option<String>,
    conf: PoolConf,
    cache_size: Option<u64>,
    budget: Option<Budget>,
    /// Made ready where nothing else is said of it anywhere, and an eighth of the limit is enough for it.
    carved: Option<Prewarm>,
    readings: Readings,
    /// What holds where neither a text nor the environment says anything of it.
    assumed: PoolConf,
    of_a_program: bool,
}

impl PoolBuilder {
    /// Its name, for people; `pool` and a number unless said otherwise.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The policy that places blocks; `millpond` unless said otherwise.
    #[must_use]
    pub fn policy(mut self, name: &str) -> Self {
        self.policy = Some(name.to_owned());
        self
    }

    /// Settings as text, `key:value,…`, in place of those in the environment variable `MILLPOND_CONF`. What is said by
    /// the other methods goes before both.
    ///
    /// The keys are `limit`, `memory-fraction`, `cache-size`, `capacity`, `prewarm` (`small`, `six=SIZE` or
    /// `[64*1000,1MiB*4]`), `trim-every` (a time, or `off`), `trim-at-pressure` (a share, or `off`), `zero-on-reuse`,
    /// `pinned`, `node`, `huge-pages`, `align`, `track` (`off`, `all` or `one-in=N`), `stacks`, `guard`, `quarantine`,
    /// `leak-report`,
    /// and those of the policies `millpond` and `planned`, which `millpond policies` lists. A pool of another policy is
    /// refused with a setting that only these have, as [`ConfError::Unused`], `memory-fraction` aside.
    #[must_use]
    pub fn settings(mut self, text: &str) -> Self {
        self.settings = Some(text.to_owned());
        self
    }

    /// Reads a text of [`settings`](Self::settings) without making a pool: for who runs the policy by itself, and has
    /// the same text for both.
    ///
    /// ```
    /// let read = millpond::PoolBuilder::read_settings("guard:on,handle:4MiB")?;
    /// assert_eq!((read.policy_text.as_str(), read.policy.handle_bytes), ("handle:4MiB", 4 << 20));
    /// assert_eq!(read.pool_text, "guard:on");
    /// # Ok::<(), millpond::engine::ConfError>(())
    /// ```
    ///
    /// # Errors
    /// On an unknown key or an unusable value, of the pool's keys too.
    pub fn read_settings(text: &str) -> Result<ReadSettings, ConfError> {
        ReadSettings::parse(text)
    }

    /// The most bytes the pool may take from its source; all that the source has unless said otherwise.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.conf.limit = Some(Some(bytes));
        self
    }

    /// The share of the source's *whole* memory that the pool may take, above 0 and up to 1.
    #[must_use]
    pub fn memory_fraction(mut self, fraction: f64) -> Self {
        self.conf.memory_fraction = Some(fraction);
        self
    }

    /// The most free memory that the pool keeps for longer than the time between two trims. Policies other than `millpond`
    /// and `planned` have no such bound: the pool is refused with [`ConfError::Unused`].
    #[must_use]
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.cache_size = Some(bytes);
        self
    }

    /// Bytes that are reserved from the start, with memory behind them; see [`Pool::reserve`].
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.conf.capacity = Some(bytes);
        self
    }

    /// Blocks that are ready from the start.
    #[must_use]
    pub fn prewarm(mut self, prewarm: Prewarm) -> Self {
        self.conf.prewarm = Some(prewarm);
        self
    }

    /// How often memory that has not been used for a while goes back to the system in the background: each second
    /// unless said otherwise, never with `None`. Each time is one tick for the policy, which gives back what no block
    /// has touched for `decay` ticks, 64 unless set.
    #[must_use]
    pub fn trim_every(mut self, time: Option<Duration>) -> Self {
        self.conf.trim_every = Some(time);
        self
    }

    /// Gives back what no block uses when so much is used of any limit on memory that the process is under, less what
    /// the system takes back by itself: never with `None`, which is the default. The limits are those of
    /// [`pressure`](crate::pressure()) but for `RLIMIT_AS`, as a pool keeps its addresses. They are read in the
    /// background each time that [`trim_every`](Self::trim_every) sets, each second where that is never, and only while
    /// the pool has a mebibyte or more to give; after it has given, not for five seconds.
    ///
    /// As text it is `trim-at-pressure:80%`, or `off`.
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
        self.conf.trim_at_pressure = Some(used);
        self
    }

    /// Where [`trim_at_pressure`](Self::trim_at_pressure) reads: the system unless said otherwise, for tests.
    #[must_use]
    pub fn readings(mut self, readings: Readings) -> Self {
        self.readings = readings;
        self
    }

    /// Clears each block before it is handed out, for tenants that must not see each other's data. Off unless said
    /// otherwise; on, every call goes the slow way.
    #[must_use]
    pub fn zero_on_reuse(mut self, on: bool) -> Self {
        self.conf.zero_on_reuse = Some(on);
        self
    }

    /// The NUMA node that memory comes from; the system's choice unless said otherwise.
    #[must_use]
    pub fn node(mut self, node: Node) -> Self {
        self.conf.node = Some(node);
        self
    }

    /// The pages that the system is to use; [`HugePages::Auto`] unless said otherwise. The pool's own pages, of which what it
    /// reserves is made, are 2 MiB then, or 64 KiB where it may reserve 128 MiB at most or memory is locked; with
    /// [`HugePages::System`] they are 64 KiB and follow need most closely.
    #[must_use]
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.conf.huge_pages = Some(huge);
        self
    }

    /// What every address is a multiple of, a power of two; 64 unless said otherwise. A program's own pool keeps to the
    /// layouts it is asked for.
    #[must_use]
    pub fn align(mut self, bytes: usize) -> Self {
        self.conf.align = Some(bytes);
        self
    }

    /// Which blocks the pool keeps an [account](Pool::ledger) of. In debug builds it is all of them unless said otherwise,
    /// else none.
    #[must_use]
    pub fn track(mut self, tracking: Option<Tracking>) -> Self {
        self.conf.track = Some(tracking);
        self
    }

    /// Whether the account has the stack of each allocation, which takes the feature `stacks`; on unless said otherwise.
    #[must_use]
    pub fn stacks(mut self, on: bool) -> Self {
        self.conf.stacks = Some(on);
        self
    }

    /// Guards blocks, to find who writes where it must not; off unless said otherwise, and for the pool's life.
    ///
    /// - A block has pages of its own and ends where a closed page begins: a write past its end is a `SIGSEGV` at that very
    ///   write. Bytes between, if the size is no multiple of the alignment (64 at the least), and those before the block are
    ///   filled and looked at when it is freed: a [`WrongFree::Overrun`](crate::WrongFree::Overrun) is told to
    ///   [subscribers](crate::Subscriber::wrong_free) and standard error, and the program goes on.
    /// - A freed block is filled, and its pages are closed and stay in [quarantine](Self::quarantine): a use after the free is
    ///   a `SIGSEGV` at that use.
    /// - A buffer has no more room than was asked for, and does not grow where it is.
    ///
    /// No handler is set: [`describe_fault`](crate::describe_fault) says in yours whose block it was. Each block takes two
    /// pages of the system at the least, four calls of it, and two of the some 65,000 mappings of a process; when there
    /// are no more, pages are filled and looked at instead of closed. A policy that cannot align to pages (`buckets`) refuses
    /// every request with [`AllocError::Alignment`].
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
        self.conf.guard = Some(on);
        self
    }

    /// The most bytes of freed blocks' pages that a pool which guards them keeps closed, the oldest going first; 64 MiB
    /// unless said otherwise. They stay reserved; a trim, and a request that finds no room, empty it.
    #[must_use]
    pub fn quarantine(mut self, bytes: u64) -> Self {
        self.conf.quarantine = Some(bytes);
        self
    }

    /// Whether standard error is told, when the process ends, which blocks are still held: how many, of what size, age and
    /// tag, and where they were allocated. It takes an [account](Self::track), which is begun where nothing is said of one.
    /// On in debug builds, where there mostly is an account, off in others unless asked for; and the program's own pool
    /// ([`GlobalPool`](crate::GlobalPool)), which statics hold blocks of, tells only when asked. Nothing is told where nothing
    /// is held, of what was [leaked](crate::Buffer::leak) on purpose, and by the child of a fork.
    #[must_use]
    pub fn leak_report(mut self, on: bool) -> Self {
        self.conf.leak_report = Some(on);
        self
    }

    /// What the pool is charged to, and what warns before memory runs out: a
    /// [soft limit](crate::BudgetBuilder::soft_limit) is told once when use passes it, which is the warning at 80 % that
    /// some pools have built in. The example `monitor` shows it.
    ///
    /// ```
    /// use millpond::{Budget, Measure, Pool};
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
    /// A budget of allocated bytes is charged for each block and the nearest one above it
    /// of reserved bytes for what the pool takes from its source; a budget of reserved bytes for the latter only. The
    /// pool gets a budget of its own below it, with its name.
    #[must_use]
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// A pool over ordinary memory of this process, or over locked memory where the settings say `pinned:on`.
    ///
    /// # Errors
    /// Where there is no such policy or setting, or no such memory.
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

    /// A pool over memory that is locked in place, which the system limits; see [`Pinned`](crate::Pinned).
    ///
    /// # Errors
    /// As [`host`](Self::host).
    pub fn pinned(self) -> Result<Pool, PoolError> {
        self.build(|conf| Ok(Box::new(host(conf, SMALL_PAGES).build_pinned()?)))
    }

    /// A pool over a source of memory.
    ///
    /// # Errors
    /// Where there is no such policy or setting.
    pub fn over(self, source: Box<dyn MemorySource + Send>) -> Result<Pool, PoolError> {
        self.build(|_| Ok(source))
    }

    /// The most that the budget leaves it to reserve.
    fn most_reserved(&self) -> u64 {
        let budget = self.budget.as_ref();
        let reserved = budget.and_then(|budget| budget.nearest(Measure::Reserved));
        reserved.map_or(u64::MAX, |budget| budget.remaining())
    }

    /// Blocks that are ready from the start where nothing else is said of it, and there is plenty of room.
    pub(crate) fn carved(mut self, prewarm: Prewarm) -> Self {
        self.carved = Some(prewarm);
        self
    }

    /// The name, if one was given.
    pub(crate) fn given_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// As the pool of a whole program is where neither a text nor the environment says otherwise. An allocator starts no
    /// threads: what is to go back goes by `trim`. Debug builds keep an account of other pools; of a whole program that is
    /// too much unless it is asked for. And it is looked after only from [`look_after`](Self::look_after) on.
    pub(crate) fn of_a_program(mut self, limit: Option<u64>) -> Self {
        self.of_a_program = true;
        self.assumed = PoolConf {
            limit: limit.map(Some),
            trim_every: Some(None),
            trim_at_pressure: Some(None),
            ..PoolConf::default()
        };
        self
    }

    /// Has the program's pool, made as this says, looked after in the background, if it is to be. A thread begins, which
    /// allocates as any other: the pool has to be where it will be found.
    pub(crate) fn look_after(&self, pool: &Pool) {
        if let Ok((conf, _)) = self.read() {
            keep(pool.heap, &conf, self.readings.clone());
        }
    }

    /// Reads what may be changed later as it would be for a pool made now.
    ///
    /// # Errors
    /// On what a live pool made so would refuse.
    pub(crate) fn check_change(&self, text: &str) -> Result<(), ConfError> {
        // Where the pool's own settings cannot be read, whoever makes it is told.
        let now = self.read().map(|(_, policy)| policy.retain).unwrap_or_default();
        Change::parse(text, self.policy_name(), &now).map(|_| ())
    }

    fn policy_name(&self) -> &str {
        self.policy.as_deref().unwrap_or("millpond")
    }

    /// Reads a text for a pool of this policy.
    fn parse(&self, text: &str) -> Result<(PoolConf, MillpondConf), ConfError> {
        let read = PoolConf::parse(text)?;
        match unused_key(text, self.policy_name()) {
            // A name that is none is told as that.
            Some(key) if policies::names().any(|name| name == self.policy_name()) => {
                Err(unused(&key, self.policy_name()))
            }
            _ => Ok(read),
        }
    }

    fn read(&self) -> Result<(PoolConf, MillpondConf), PoolError> {
        let (conf, mut policy) = match &self.settings {
            Some(text) => self.parse(text)?,
            None => match std::env::var("MILLPOND_CONF") {
                Ok(text) => self.parse(&text).map_err(PoolError::Environment)?,
                Err(_) => PoolConf::parse("")?,
            },
        };
        if let Some(bytes) = self.cache_size {
            self.parse(&format!("cache-size:{bytes}"))?;
            policy.retain.high_water = Some(Amount::Bytes(bytes));
        }
        policy.retain.check()?;
        // A host's handles cost nothing: what counts is the call, and one call opens many pages.
        policy.single_pages = true;
        let conf = self.assumed.clone().overridden(conf);
        Ok((conf.overridden(self.conf.clone()), policy))
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
        let settings = Settings {
            millpond: policy,
            ..Settings::default()
        };
        let name = self.policy_name();
        let policy = policies::build(name, &settings).map_err(|_| PoolError::UnknownPolicy {
            name: name.to_owned(),
            known: policies::names().collect::<Vec<_>>().join(", "),
        })?;
        let source = source(&conf)?;
        let guard = conf.guard == Some(true);
        if guard && !source.can_protect() {
            return Err(PoolError::Unguardable);
        }
        let kind = source.kind();
        let limit = Limit::new(limit_of(&conf, source.capacity())?);
        let heap = Heap::new(|number, order| {
            let name = self.name.unwrap_or_else(|| format!("pool {number}"));
            let (budget, reserved) = budgets(self.budget.as_ref(), &name)?;
            let flow = Arc::default();
            let guard = guard.then(|| {
                let quarantine = conf.quarantine.unwrap_or(guard::QUARANTINE);
                Guard::new(order, quarantine, conf.stacks.unwrap_or(true))
            });
            let gate = Gate::new(source, limit.clone(), reserved.clone(), Arc::clone(&flow));
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
            })
        })?;
        if heap.guard.is_some() {
            guard::register(heap);
        }
        if let Some(budget) = heap.budget.as_ref().or(heap.reserved.as_ref()) {
            budget.set_lister(Some(Arc::new(PoolLister(heap))));
        }
        // From here on it is closed if anything fails.
        let pool = Pool {
            heap,
            align,
            handle: Arc::new(Handle(heap)),
        };
        let told = conf.leak_report == Some(true);
        let debug = cfg!(debug_assertions) && !self.of_a_program;
        if conf.leak_report.unwrap_or(debug) {
            heap.report_at_exit();
        }
        if conf.track.is_none() && (told || debug) {
            conf.track = Some(Some(Tracking::All));
        }
        heap.start(&conf).map_err(PoolError::Start)?;
        let carved = self.carved.filter(|carved| {
            // Where little may be had nobody is to be refused for what nobody asked for.
            conf.prewarm.is_none() && heap.limit.bytes() / 8 >= carved.bytes()
        });
        if let Some(carved) = carved {
            let _ = heap.prewarm(&carved);
        }
        if !self.of_a_program {
            keep(heap, &conf, self.readings);
        }
        Ok(pool)
    }
}

/// Has a pool looked after in the background, if it is to be.
fn keep(heap: &'static Heap, conf: &PoolConf, readings: Readings) {
    let every = conf.trim_every.unwrap_or(Some(keeper::TICK));
    let lookout = Lookout::new(conf.trim_at_pressure.flatten(), readings);
    keeper::keep(heap, every, lookout);
}

/// Bytes of a host pool's pages where it may be large: whole huge pages, of which what is left beside a live block is
/// little.
const LARGE_PAGES: u64 = 2 << 20;
/// The same of a pool that has to stay small, or whose memory is locked.
const SMALL_PAGES: u64 = 64 << 10;
/// A pool of which no more may be reserved stays small.
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

/// The most that may be reserved: what is said, and what the share of a source's capacity comes to.
pub(crate) fn limit_of(conf: &PoolConf, capacity: Option<u64>) -> Result<u64, ConfError> {
    let limit = conf.limit.flatten().unwrap_or(u64::MAX);
    let Some(fraction) = conf.memory_fraction else {
        return Ok(limit);
    };
    // Also of what was not text, by the rules for text.
    RetainConf::default().set("memory-fraction", &fraction.to_string())?;
    let share = capacity.map_or(u64::MAX, |capacity| (capacity as f64 * fraction) as u64);
    Ok(limit.min(share))
}

/// The pool's own budgets, of allocated and of reserved bytes, below the one that was given.
pub(crate) fn budgets(
    given: Option<&Budget>,
    name: &str,
) -> Result<(Option<Budget>, Option<Budget>), BudgetError> {
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

/// Says what a pool holds, to whoever was refused. Pools are never freed, so that it cannot be left dangling, and one
/// that has closed has nothing to tell.
struct PoolLister(&'static Heap);

impl Lister for PoolLister {
    fn list(&self, survey: &mut Survey) {
        self.0.survey(survey);
    }
}

impl Heap {
    /// Makes what the pool is to hold from the start.
    fn start(&'static self, conf: &PoolConf) -> Result<(), AllocError> {
        if let Some(tracking) = conf.track.flatten() {
            let account = Ledger::builder(tracking).complete(true).times(true);
            self.track(Some(account.stacks(conf.stacks.unwrap_or(true))));
        } else if registry::are_wanted() {
            registry::begin_account(&self);
        }
        if let Some(on) = conf.zero_on_reuse {
            self.clear_on_reuse(on);
        }
        if let Some(prewarm) = &conf.prewarm {
            self.prewarm(prewarm)?;
        }
        conf.capacity.map_or(Ok(()), |total| self.reserve(total))
    }
}
