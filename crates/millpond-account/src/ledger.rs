//! The ledger: an account with one entry for each live block. It finds leaks, the largest blocks, the holders of memory, and
//! wrong frees.
//!
//! ```text
//!   record      the entry of one block
//!   sampling    selects the allocations that are entered
//!   table       a hash table that never allocates under its lock
//!   shard       one part of the account, by address: blocks, sums by tag, recent frees
//!   stacks      stacks as addresses, each stored once
//!   stack       stacks with resolved names
//!   places      groups stacks by the place in the program
//!   wrong       wrong frees, with the block's earlier allocation and free
//!   leak        live blocks as values
//!   report      live blocks as a readable report
//! ```
//!
//! Its locks are the last in the lock order, and nothing is allocated, freed or called while they are held. So it works while
//! the pool that it observes is the program's global allocator, and it may be called under that pool's own locks. Its own
//! allocations, which are made outside its locks, are not entered in any account.

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
pub use wrong::By;
pub use wrong::{FreedBlock, WrongFree};

use crate::event::BlockInfo;
use crate::memory::MemoryKind;
use crate::post_mortem::Survey;
use crate::scope;
use crate::tags::Tag;
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::thread::{self, COUNTING};
use millpond_os::time::Time;
pub use sampling::Filter;
use shard::{Removal, Shard};
pub(crate) use stacks::StackId;
use stacks::Stacks;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use table::CacheLine;
use wrong::wrong_free;

/// The number of shards, each with its own lock.
const SHARDS: usize = 64;

/// Builds a ledger.
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
    /// Sets whether the stack of each recorded allocation and free is stored, with up to 32 frames. This needs the
    /// feature `stacks`; without it, nothing is stored. A stack takes about 2 µs. On x86-64 it takes a twentieth of
    /// that while the stacks of a thread are similar.
    #[must_use]
    pub fn stacks(mut self, on: bool) -> Self {
        self.stacks = on;
        self
    }

    /// Sets whether the times of allocations and frees are stored, from which ages are computed.
    #[must_use]
    pub fn times(mut self, on: bool) -> Self {
        self.times = on;
        self
    }

    /// Declares that every existing block is in the ledger, so that an address that is not in the ledger belongs to no
    /// caller. Use it with [`Tracking::All`] if the ledger observes its pools from their beginning. Otherwise a free of
    /// an unknown address is accepted, because the block may be older than the ledger.
    #[must_use]
    pub fn complete(mut self, yes: bool) -> Self {
        self.complete = yes;
        self
    }

    /// Sets how many of the last freed blocks are remembered, so that the first free of a block that is freed twice can
    /// be reported. The default is 1,024, the maximum about a million. With sampling none are remembered.
    #[must_use]
    pub fn remember_freed(mut self, blocks: usize) -> Self {
        self.freed = blocks.min(1 << 20);
        self
    }

    /// Returns true if only some blocks are recorded.
    #[doc(hidden)]
    pub fn samples(&self) -> bool {
        self.tracking != Tracking::All
    }

    /// Builds the ledger.
    #[must_use]
    pub fn build(self) -> Ledger {
        self.build_with(None)
    }

    /// Builds the ledger with a filter that other ledgers may share.
    #[doc(hidden)]
    pub fn build_with(self, filter: Option<Filter>) -> Ledger {
        let _inside = thread::enter(COUNTING);
        let all = self.tracking == Tracking::All;
        let freed = if all { self.freed.div_ceil(SHARDS) } else { 0 };
        Ledger {
            settings: self,
            shards: (0..SHARDS)
                .map(|_| CacheLine::new(Rank::Shard, Shard::new(freed)))
                .collect(),
            stacks: Stacks::new(),
            filter: filter.unwrap_or_else(|| {
                if all {
                    Filter::everything()
                } else {
                    Filter::empty()
                }
            }),
            serial: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            complete: AtomicBool::new(self.complete && all),
            passing: AtomicBool::new(false),
        }
    }
}

/// The account of live blocks of a pool: one entry for each block, or for a sample of them.
///
/// A pool that tracks its blocks has one. It may be used from any thread and at any time. A free of an address that it does not know is
/// a [wrong free](WrongFree) only if the account is [complete](LedgerBuilder::complete): otherwise the block may be older than the
/// account.
///
/// ```
/// use millpond::{Ledger, MemoryKind, Tag, Tracking, event::BlockInfo};
///
/// let ledger = Ledger::new(Tracking::All);
/// let mark = ledger.mark();
/// let _scope = millpond::tag("weights");
/// let info = BlockInfo { address: 0x1000, requested: 100, bytes: 128, align: 64, ..BlockInfo::default() };
/// ledger.insert(info.address, ledger.record(&info, MemoryKind::Host, None));
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
    shards: Box<[CacheLine<Ranked<Shard>>]>,
    stacks: Stacks,
    /// With sampling: the addresses that are certainly not in the account.
    filter: Filter,
    /// The number of blocks ever recorded.
    serial: AtomicU64,
    /// The number of blocks that were not recorded because memory was short.
    lost: AtomicU64,
    complete: AtomicBool,
    /// True if a profiler created the ledger and nothing else relies on it. It then ends with the profiler.
    passing: AtomicBool,
}

/// Locks a mutex. The library's code does not panic under it.
fn lock<T>(mutex: &Ranked<T>) -> Locked<'_, T> {
    mutex.lock()
}

/// All locks of a ledger, held. See [`Ledger::rest`].
pub struct LedgerLocks<'a> {
    _shards: [Locked<'a, Shard>; SHARDS],
    _stacks: stacks::StackLocks<'a>,
}

impl Ledger {
    /// Makes a ledger without stacks and times.
    #[must_use]
    pub fn new(tracking: Tracking) -> Self {
        Self::builder(tracking).build()
    }

    /// Returns a builder.
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

    /// Returns which allocations are recorded.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        self.settings.tracking
    }

    /// Returns true if times are stored.
    #[must_use]
    pub fn keeps_times(&self) -> bool {
        self.settings.times
    }

    /// Returns the number of allocations that one entry represents. It is 1 without sampling. If it is more, sums are
    /// estimates.
    #[must_use]
    pub fn weight(&self) -> u64 {
        match self.settings.tracking {
            Tracking::All => 1,
            Tracking::Sampled { one_in } => u64::from(one_in.max(1)),
        }
    }

    /// Returns the number of blocks that could not be recorded because memory was short. If it is not zero, the account
    /// is no longer treated as complete.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns how many allocations to skip before the next one is recorded, which is zero with [`Tracking::All`]. The
    /// number is random, so that a loop of the program cannot be in step with it. The state belongs to one thread.
    #[must_use]
    pub fn next_gap(&self, state: &mut Sampler) -> u32 {
        state.gap(self.settings.tracking)
    }

    /// Returns how many allocations this thread skips before the next one is recorded.
    #[doc(hidden)]
    pub fn gap(&self) -> u32 {
        sampling::gap(self.settings.tracking)
    }

    /// Decides at random whether one allocation is recorded.
    #[inline]
    #[doc(hidden)]
    pub fn picks(&self) -> bool {
        match self.settings.tracking {
            Tracking::All => true,
            Tracking::Sampled { one_in } => sampling::dice(one_in),
        }
    }

    /// Returns the record of a block that this thread allocates now.
    #[must_use]
    pub fn record(&self, info: &BlockInfo, kind: MemoryKind, time: Option<Time>) -> Record {
        Record {
            requested: info.requested,
            bytes: info.bytes,
            align: info.align,
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

    /// Sets whether the ledger is temporary. A user that relies on it clears the flag.
    #[doc(hidden)]
    pub fn set_passing(&self, passing: bool) {
        self.passing.store(passing, Ordering::Relaxed);
    }

    #[doc(hidden)]
    pub fn is_passing(&self) -> bool {
        self.passing.load(Ordering::Relaxed)
    }

    /// Removes all blocks. The caller must be the only user.
    #[doc(hidden)]
    pub fn renew(&self) {
        for shard in &self.shards {
            lock(&shard.0).clear();
        }
        self.serial.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
    }

    /// Frees the tables with their contents. The caller requests no stack of the old tables afterwards. The ledger may
    /// be used again.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn give_back(&self) {
        for shard in &self.shards {
            let gone = mem::replace(&mut *lock(&shard.0), Shard::new(0));
            // The old shard is dropped outside the lock.
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
        // The index uses upper bits, because the tables inside use the lower bits and the top seven.
        &self.shards[(hash >> 48) as usize % SHARDS].0
    }

    /// Records a block and returns its entry with its serial number, or `None` if memory is short. It replaces an
    /// existing entry, because that block must have been freed unobserved.
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

    /// Removes a block that is freed now and returns its entry if it had one. `given` is the size in bytes and the
    /// alignment that the caller claims to have requested, if it names them.
    ///
    /// # Errors
    /// Returns an error if the given size or alignment is wrong, in which case the block stays in the account, or if
    /// the block belongs to no caller.
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

    /// Changes the requested sizes and alignments of a block's entry, if there is one.
    ///
    /// # Errors
    /// Returns an error if the given size or alignment is wrong. Nothing has changed then.
    #[doc(hidden)]
    pub fn resize(
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

    /// Returns the data of a free by this thread now.
    #[doc(hidden)]
    pub fn freed_here(&self, time: Option<Time>) -> FreedBlock {
        FreedBlock {
            tag: Tag::current(),
            thread: thread::thread_number(),
            time: time.filter(|_| self.settings.times),
            stack: self.stack_here(),
        }
    }

    /// Returns the stack of a free, if stacks are stored.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn freed_at(&self, freed: &FreedBlock) -> Option<Stack> {
        self.stacks.get(freed.stack?)
    }

    /// Returns false if no block of this address is in the account. With sampling, this is a fast check that can return
    /// true for absent blocks.
    #[inline]
    pub(crate) fn may_hold(&self, address: usize) -> bool {
        self.filter.may_hold(address)
    }

    /// Marks a block as leaked on purpose. Leak reports list it separately.
    pub fn note_leaked(&self, address: usize) {
        let hash = table::hash(address);
        lock(self.shard(hash)).note_leaked(hash, address);
    }

    /// Returns the number of blocks in the account: all live blocks, or the sampled ones.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| lock(&shard.0).blocks() as u64)
            .sum()
    }

    /// Visits all blocks in the account with their addresses and entries. This runs under the ledger's locks, so the
    /// callback must not allocate, free or lock.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn each(&self, mut each: impl FnMut(usize, &Record)) {
        for shard in &self.shards {
            for (address, record) in lock(&shard.0).live() {
                each(*address, record);
            }
        }
    }

    /// Returns the addresses of a stack with the given [number](Record::stack_number).
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn stack_of_number(&self, number: u32) -> Option<Stack> {
        self.stacks.get(StackId::of_number(number)?)
    }

    /// Adds the bytes of each tag to a survey without allocating. It may be called under a pool's locks.
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

    /// Adds the bytes of one block to a survey, if the block is in the account. It may be called under a pool's locks.
    #[doc(hidden)]
    pub fn survey_block(&self, address: usize, survey: &mut Survey) {
        let hash = table::hash(address);
        let found = lock(self.shard(hash)).get(hash, address).copied();
        if let Some(Record { tag, bytes, .. }) = found {
            let weight = self.weight();
            survey.holder(tag.name(), (bytes as u64).saturating_mul(weight), weight);
        }
    }

    /// Takes every lock for a fork, because a child could never release a lock that another thread held. They are taken
    /// after all locks of the pools.
    #[doc(hidden)]
    pub fn rest(&self) -> LedgerLocks<'_> {
        LedgerLocks {
            _shards: std::array::from_fn(|at| lock(&self.shards[at].0)),
            _stacks: self.stacks.rest(),
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // The memory was not recorded when it was allocated, so its free is not recorded either.
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
