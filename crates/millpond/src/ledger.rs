//! The ledger: an account of live blocks, one entry for each, to find leaks, the largest blocks, who holds what, and frees
//! that are wrong.
//!
//! ```text
//!   record      what is known of one block
//!   sampling    which allocations are entered, if not all
//!   table       a hash table under whose lock nothing is allocated
//!   shard       one part of the account, by address: blocks, sums by tag, what was freed last
//!   stacks      where from: addresses, each stack kept once
//!   stack       a stack that a person can read
//!   places      which stacks are of one place in the program
//!   wrong       a free that is wrong, and who was there first
//!   leak        what is live, as values
//!   report      the same, as a person wants to read it
//! ```
//!
//! Its locks are the last ones anybody takes: under them nothing is allocated, freed or called. So it works while the
//! pool that it accounts for is the program's global allocator, and may be asked under that pool's own locks. What it
//! allocates for itself, outside its locks, is not entered in any account.

mod leak;
mod places;
mod record;
mod report;
mod sampling;
mod shard;
mod stack;
mod stacks;
mod table;
#[cfg(test)]
mod tests;
mod wrong;

pub use leak::{Leak, Mark, TagTotal};
pub(crate) use places::Places;
pub use record::Record;
pub use report::{LeakGroup, LeakReport};
pub use sampling::{Sampler, Tracking};
pub use stack::{Frame, Stack};
#[cfg(target_os = "linux")]
pub(crate) use wrong::By;
pub use wrong::{FreedBlock, WrongFree};

use crate::event::Facts;
use crate::memory::MemoryKind;
use crate::post_mortem::Survey;
use crate::ranked::{Locked, Rank, Ranked};
use crate::scope;
use crate::tag::Tag;
use crate::thread::{self, COUNTING};
use crate::time::Time;
pub(crate) use sampling::Filter;
use shard::{Removal, Shard};
pub(crate) use stacks::StackId;
use stacks::Stacks;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use table::Line;
use wrong::wrong_free;

/// Parts with a lock each.
const SHARDS: usize = 64;

/// Describes a ledger.
///
/// ```
/// use millpond::{Ledger, Tracking};
///
/// let ledger = Ledger::builder(Tracking::All).times(true).build();
/// assert_eq!(ledger.blocks(), 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LedgerBuilder {
    tracking: Tracking,
    stacks: bool,
    times: bool,
    complete: bool,
    freed: usize,
}

impl LedgerBuilder {
    /// Whether to note the stack of each allocation and free that is entered, 32 frames of it. It takes the feature
    /// `stacks`, without which nothing is noted, and each time about 2 µs; on x86-64 a twentieth of that as long as a thread's
    /// stacks are much alike.
    #[must_use]
    pub fn stacks(mut self, on: bool) -> Self {
        self.stacks = on;
        self
    }

    /// Whether to note when blocks were allocated and freed, for their age.
    #[must_use]
    pub fn times(mut self, on: bool) -> Self {
        self.times = on;
        self
    }

    /// Says that every block there is was entered, so that an address that is not in the ledger is in nobody's hands: to
    /// be said where the ledger watches its pools from their beginning, with [`Tracking::All`]. Else a free of an
    /// address that is unknown may be of a block that is older than the ledger, and is let pass.
    #[must_use]
    pub fn complete(mut self, yes: bool) -> Self {
        self.complete = yes;
        self
    }

    /// How many of the blocks freed last are remembered, to name who freed a block first that is freed twice; 1,024
    /// unless said otherwise, a million at most, and none where allocations are sampled.
    #[must_use]
    pub fn remember_freed(mut self, blocks: usize) -> Self {
        self.freed = blocks.min(1 << 20);
        self
    }

    /// Whether it enters some blocks only.
    pub(crate) fn samples(&self) -> bool {
        self.tracking != Tracking::All
    }

    /// The ledger.
    #[must_use]
    pub fn build(self) -> Ledger {
        self.build_with(None)
    }

    /// The same with a filter that is asked elsewhere too.
    pub(crate) fn build_with(self, filter: Option<Filter>) -> Ledger {
        let _inside = thread::enter(COUNTING);
        let all = self.tracking == Tracking::All;
        let freed = if all { self.freed.div_ceil(SHARDS) } else { 0 };
        Ledger {
            settings: self,
            shards: (0..SHARDS)
                .map(|_| Line::new(Rank::Shard, Shard::new(freed)))
                .collect(),
            stacks: Stacks::new(),
            filter: filter.unwrap_or_else(|| if all { Filter::everything() } else { Filter::new() }),
            serial: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            complete: AtomicBool::new(self.complete && all),
            passing: AtomicBool::new(false),
        }
    }
}

/// The account of live blocks of a pool: one entry for each block, or for a sample of them.
///
/// A pool that [tracks](crate::PoolBuilder::track) its blocks has one. It may be asked from any thread and at any time. A free of an
/// address that it does not know is a [wrong free](WrongFree) only if the account is [complete](LedgerBuilder::complete): otherwise the
/// block may be older than the account.
///
/// ```
/// use millpond::{Facts, Ledger, MemoryKind, Tag, Tracking};
///
/// let ledger = Ledger::new(Tracking::All);
/// let mark = ledger.mark();
/// let _scope = millpond::tag("weights");
/// let facts = Facts { address: 0x1000, requested: 100, bytes: 128, align: 64, ..Facts::default() };
/// ledger.insert(facts.address, ledger.record(&facts, MemoryKind::Host, None));
///
/// assert_eq!(ledger.leaks_since(&mark).len(), 1);
/// assert_eq!(ledger.by_tag()[0].tag, Tag::new("weights"));
/// let wrong = ledger.remove(0x1000, Some((50, 64))).unwrap_err();
/// assert!(wrong.to_string().starts_with("wrong size"), "{wrong}");
/// ledger.remove(0x1000, Some((100, 64))).unwrap();
/// assert!(ledger.leak_report().is_empty());
/// ```
pub struct Ledger {
    settings: LedgerBuilder,
    shards: Box<[Line<Ranked<Shard>>]>,
    stacks: Stacks,
    /// With sampling: which addresses are surely not in the account.
    filter: Filter,
    /// Blocks ever entered.
    serial: AtomicU64,
    /// Blocks that were not entered for want of memory.
    lost: AtomicU64,
    complete: AtomicBool,
    /// Begun by a profiler, and nobody else relies on it: it ends with that one.
    passing: AtomicBool,
}

/// A lock under which nothing of ours panics.
fn lock<T>(mutex: &Ranked<T>) -> Locked<'_, T> {
    mutex.lock()
}

/// All locks of a ledger, held. See [`Ledger::rest`].
pub(crate) struct Rest<'a> {
    _shards: [Locked<'a, Shard>; SHARDS],
    _stacks: stacks::Rest<'a>,
}

impl Ledger {
    /// An account with neither stacks nor times.
    #[must_use]
    pub fn new(tracking: Tracking) -> Self {
        Self::builder(tracking).build()
    }

    /// Begins to describe a ledger.
    #[must_use]
    pub fn builder(tracking: Tracking) -> LedgerBuilder {
        LedgerBuilder {
            tracking,
            stacks: false,
            times: false,
            complete: false,
            freed: 1024,
        }
    }

    /// Which allocations are entered.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        self.settings.tracking
    }

    /// Whether it notes times.
    #[must_use]
    pub fn keeps_times(&self) -> bool {
        self.settings.times
    }

    /// Allocations for which one entry stands: 1 unless it samples. Sums are estimates where it is more.
    #[must_use]
    pub fn weight(&self) -> u64 {
        match self.settings.tracking {
            Tracking::All => 1,
            Tracking::Sampled { one_in } => u64::from(one_in.max(1)),
        }
    }

    /// Blocks that could not be entered for want of memory. From the first one on the account is no longer taken to be
    /// complete.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How many allocations to let pass before the next one is entered; none with [`Tracking::All`]. Random, so that no
    /// loop of the program keeps step with it; the state is each thread's own.
    #[must_use]
    pub fn next_gap(&self, state: &mut Sampler) -> u32 {
        state.gap(self.settings.tracking)
    }

    /// How many allocations this thread is to let pass before the next one is entered.
    pub(crate) fn gap(&self) -> u32 {
        sampling::gap(self.settings.tracking)
    }

    /// Throws the dice for one allocation.
    #[inline]
    pub(crate) fn picks(&self) -> bool {
        match self.settings.tracking {
            Tracking::All => true,
            Tracking::Sampled { one_in } => sampling::dice(one_in),
        }
    }

    /// What there is to know about a block that this thread allocates now.
    #[must_use]
    pub fn record(&self, facts: &Facts, kind: MemoryKind, time: Option<Time>) -> Record {
        Record {
            requested: facts.requested,
            bytes: facts.bytes,
            align: facts.align,
            serial: 0,
            tag: Tag::current(),
            thread: thread::thread_number(),
            stack: self.stack_here(),
            charged: scope::here(),
            time: time.filter(|_| self.settings.times),
            leaked: false,
            kind,
        }
    }

    /// Says whether it was begun for a while only; whoever comes to rely on it says that it was not.
    pub(crate) fn set_passing(&self, passing: bool) {
        self.passing.store(passing, Ordering::Relaxed);
    }

    pub(crate) fn is_passing(&self) -> bool {
        self.passing.load(Ordering::Relaxed)
    }

    /// Begins anew, with no blocks. Nobody else has it.
    pub(crate) fn renew(&self) {
        for shard in &self.shards {
            lock(&shard.0).clear();
        }
        self.serial.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
    }

    /// Gives its tables back, with whatever is in them. Nobody asks for a stack that it had, and it may be of use again.
    #[cfg(target_os = "linux")]
    pub(crate) fn give_back(&self) {
        for shard in &self.shards {
            let gone = mem::replace(&mut *lock(&shard.0), Shard::new(0));
            // Outside the lock.
            drop(gone);
        }
        self.stacks.give_back();
    }

    fn stack_here(&self) -> Option<stacks::StackId> {
        if !self.settings.stacks {
            return None;
        }
        let _inside = thread::enter(COUNTING);
        self.stacks.here()
    }

    fn shard(&self, hash: u64) -> &Ranked<Shard> {
        // From the top: the tables inside take the lower bits, and seven from the very top.
        &self.shards[(hash >> 48) as usize % SHARDS].0
    }

    /// Enters a block and answers its entry, numbered; nothing where there is no memory for it. An entry that was there
    /// is replaced: its block must have been freed unseen.
    pub fn insert(&self, address: usize, record: Record) -> Option<Record> {
        let _inside = thread::enter(COUNTING);
        let serial = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        let record = Record { serial, ..record };
        let hash = table::hash(address);
        if !Shard::insert(self.shard(hash), hash, address, record) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.complete.store(false, Ordering::Relaxed);
            return None;
        }
        self.filter.add(address);
        Some(record)
    }

    /// Takes a block out that is freed now, and answers its entry if it had one. `given` is what the caller says it asked
    /// for, bytes and alignment, if it says so.
    ///
    /// # Errors
    /// The block is not what the caller says, and stays in the account; or it is in nobody's hands.
    pub fn remove(
        &self,
        address: usize,
        given: Option<(usize, usize)>,
    ) -> Result<Option<Record>, Box<WrongFree>> {
        let time = self.settings.times.then(Time::now);
        self.remove_at(address, given, time)
    }

    pub(crate) fn remove_at(
        &self,
        address: usize,
        given: Option<(usize, usize)>,
        time: Option<Time>,
    ) -> Result<Option<Record>, Box<WrongFree>> {
        if !self.may_hold(address) {
            return Ok(None);
        }
        let hash = table::hash(address);
        let removal = {
            let _inside = thread::enter(COUNTING);
            let remembers = self.settings.tracking == Tracking::All;
            let by = remembers.then(|| self.freed_here(time));
            lock(self.shard(hash)).remove(hash, address, given, by)
        };
        match removal {
            Removal::Done(record) => {
                self.filter.take(address);
                Ok(Some(record))
            }
            Removal::Unknown if !self.complete.load(Ordering::Relaxed) => Ok(None),
            wrong => Err(wrong_free(self, address, given, wrong)),
        }
    }

    /// Has the entry of a block, if there is one, stand for another request from now on: sizes and alignments as asked for.
    ///
    /// # Errors
    /// The block is not what the caller says, and nothing has changed.
    pub(crate) fn resize(
        &self,
        address: usize,
        from: (usize, usize),
        to: (usize, usize),
    ) -> Result<(), Box<WrongFree>> {
        if let Some(record) = self.remove(address, Some(from))? {
            let (requested, align) = to;
            self.insert(
                address,
                Record {
                    requested,
                    align,
                    ..record
                },
            );
        }
        Ok(())
    }

    /// What there is to know of a free by this thread now.
    pub(crate) fn freed_here(&self, time: Option<Time>) -> FreedBlock {
        FreedBlock {
            tag: Tag::current(),
            thread: thread::thread_number(),
            time: time.filter(|_| self.settings.times),
            stack: self.stack_here(),
        }
    }

    /// Where a free was, if stacks are kept.
    #[cfg(target_os = "linux")]
    pub(crate) fn freed_at(&self, freed: &FreedBlock) -> Option<Stack> {
        self.stacks.get(freed.stack?)
    }

    /// Whether a block of this address may be in the account: surely not, where allocations are sampled and it says no.
    #[inline]
    pub(crate) fn may_hold(&self, address: usize) -> bool {
        self.filter.may_hold(address)
    }

    /// Notes that a block is never given back, on purpose: reports of leaks tell of it apart.
    pub fn note_leaked(&self, address: usize) {
        let hash = table::hash(address);
        lock(self.shard(hash)).note_leaked(hash, address);
    }

    /// Blocks in the account: live ones, or those of them that were picked.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| lock(&shard.0).blocks() as u64)
            .sum()
    }

    /// Tells all blocks in the account: addresses and entries. Under its locks: nothing may be allocated, freed or locked there.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn each(&self, mut each: impl FnMut(usize, &Record)) {
        for shard in &self.shards {
            for (address, record) in lock(&shard.0).live() {
                each(*address, record);
            }
        }
    }

    /// The addresses of a stack by its [number](Record::stack_number).
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn stack_of_number(&self, number: u32) -> Option<Stack> {
        self.stacks.get(StackId::of_number(number)?)
    }

    /// Says who holds what, by tag, without allocating. May be called under a pool's locks.
    pub fn survey(&self, survey: &mut Survey) {
        let weight = self.weight();
        for shard in &self.shards {
            for (tag, sums) in lock(&shard.0).tags() {
                survey.holder(
                    tag.name(),
                    sums.bytes.saturating_mul(weight),
                    sums.blocks.saturating_mul(weight),
                );
            }
        }
    }

    /// Takes every lock, for a fork: in the child nobody could let go of one that another thread held. To be taken after
    /// all locks of the pools.
    pub(crate) fn rest(&self) -> Rest<'_> {
        Rest {
            _shards: std::array::from_fn(|at| lock(&self.shards[at].0)),
            _stacks: self.stacks.rest(),
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // Not entered when it was allocated, and so not taken out now.
        let _inside = thread::enter(COUNTING);
        drop(mem::take(&mut self.shards));
        self.stacks.clear();
        self.filter = Filter::everything();
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("tracking", &self.settings.tracking)
            .field("blocks", &self.blocks())
            .finish_non_exhaustive()
    }
}
