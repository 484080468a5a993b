//! Locks with a rank in one global order.
//!
//! Threads that take the same two locks in different orders will eventually deadlock, and a fork takes all locks. So there is one
//! order, [`Rank`]. In debug builds, a thread that requests a lock which does not come after all locks that it holds panics at
//! once, even if no other thread is involved. So every test that runs this code finds the mistake. A thread that requests a lock
//! that it already holds also panics, even during a fork. In release builds, a [`Ranked`] is only a mutex.
//!
//! The locks of two pools are not ordered, because the source of one pool may allocate from another, and because sums and forks go
//! through all pools.
//!
//! The number of locks of each rank that a thread holds is in cells without a destructor. The holder of a pool's lock is stored in
//! the pool. So the checks work inside the program's allocator and at the very end of a thread.

#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

macro_rules! ranks {
    ($($(#[$doc:meta])* $rank:ident,)*) => {
        /// The purpose of a lock. Locks are taken in the order of the variants, also by a [fork](crate::fork).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rank {
            $($(#[$doc])* $rank,)*
        }

        #[cfg(debug_assertions)]
        impl Rank {
            const ALL: [Self; RANKS] = [$(Self::$rank),*];
        }
    };
}

ranks! {
    /// Recordings that begin or end.
    Recording,
    /// The initialisation of the clock.
    Clock,
    /// The default set of pools. Every access to a set takes it for reading.
    Sets,
    /// The pools of one set.
    Set,
    /// The names of tags.
    Names,
    /// The work of the background thread.
    Background,
    /// Turning the profiler on or off.
    Profiler,
    /// The beginning and end of accounts of live blocks.
    Counting,
    /// The decision about which thread writes an out-of-memory snapshot.
    Snapshots,
    /// The list of pools.
    Heaps,
    /// The list of caches of a pool. The ranks from here to `WaitQueue` belong to a pool.
    CacheRegistry,
    /// The small blocks of one size that no thread caches, in the order of the classes.
    Shelf,
    /// The places of guarded blocks.
    GuardedBlocks,
    /// The errors that were found in guarded blocks.
    Found,
    /// For tests: simulates that the system makes no more mappings.
    NoMaps,
    /// The engine.
    Core,
    /// The observers of a pool.
    Watchers,
    /// The segments that a pool retains.
    Retain,
    /// The charge of each block.
    Charges,
    /// Counts that are no longer reported.
    Forgotten,
    /// The list of the accounts of live blocks.
    Ledgers,
    /// The waiting requests.
    WaitQueue,
    /// One shard of the blocks of an account.
    Shard,
    /// One shard of the stacks of an account.
    Stacks,
    /// The scopes to which blocks are charged.
    Scopes,
    /// Locking memory, and moving locked pages.
    Locking,
    /// The pinned addresses.
    Pinned,
    /// The locks of budgets. Taking one of them takes this for reading, and changes of their lines take it for writing.
    Budgets,
    /// The maps that are closed in the child of a fork.
    Maps,
    /// The participants in a fork.
    Participants,
    /// The tables in the arena.
    Tables,
}

/// The number of ranks.
pub(crate) const RANKS: usize = Rank::Tables as usize + 1;

#[cfg(debug_assertions)]
impl Rank {
    fn is_of_a_pool(self) -> bool {
        (Self::CacheRegistry..=Self::WaitQueue).contains(&self)
    }
}

/// The maximum number of shelves of a pool.
pub const SHELVES: usize = 88;
#[cfg(debug_assertions)]
const SLOTS: usize = SHELVES + Rank::WaitQueue as usize - Rank::CacheRegistry as usize;

/// The [`id`] of the thread that holds each lock of a pool, in their order, or 0.
#[cfg(debug_assertions)]
struct Holders([AtomicUsize; SLOTS]);

/// The locks of one pool. It is empty in release builds.
#[derive(Clone, Copy)]
pub struct Order {
    /// Never freed, like the pool's shared part.
    #[cfg(debug_assertions)]
    holders: &'static Holders,
}

impl Order {
    /// Makes the order for a new pool.
    #[doc(hidden)]
    pub fn new() -> Self {
        Self {
            #[cfg(debug_assertions)]
            holders: Box::leak(Box::new(Holders([const { AtomicUsize::new(0) }; SLOTS]))),
        }
    }

    /// Makes the pool's lock of a rank.
    #[doc(hidden)]
    pub fn lock<T>(self, rank: Rank, value: T) -> Ranked<T> {
        self.nth(rank, 0, value)
    }

    /// Makes one of several locks of a rank, which are taken in the order of their places.
    #[doc(hidden)]
    pub fn nth<T>(self, rank: Rank, place: usize, value: T) -> Ranked<T> {
        #[cfg(not(debug_assertions))]
        let _ = (rank, place);
        Ranked {
            #[cfg(debug_assertions)]
            place: Place {
                rank,
                slot: match rank {
                    Rank::CacheRegistry => 0,
                    Rank::Shelf => 1 + place.min(SHELVES - 1) as u32,
                    _ => (SHELVES + rank as usize - Rank::Shelf as usize) as u32,
                },
                of: Some(self.holders),
            },
            #[cfg(debug_assertions)]
            holder: AtomicUsize::new(0),
            mutex: Mutex::new(value),
        }
    }
}

/// The place of a lock in the order.
#[cfg(debug_assertions)]
#[derive(Clone, Copy)]
struct Place {
    rank: Rank,
    /// The type is narrow, so that a part of an account with its lock fits into its cache lines.
    slot: u32,
    of: Option<&'static Holders>,
}

#[cfg(debug_assertions)]
mod held {
    use super::RANKS;
    use std::cell::Cell;

    thread_local! {
        /// The number of locks that this thread holds, by rank.
        pub(super) static BY_RANK: [Cell<u32>; RANKS] = const { [const { Cell::new(0) }; RANKS] };
        pub(super) static FORKS: Cell<bool> = const { Cell::new(false) };
    }
}

/// Returns an id that no other live thread has. The child of a fork keeps its id.
#[cfg(debug_assertions)]
fn id() -> usize {
    held::BY_RANK.with(|held| held.as_ptr().addr())
}

#[cfg(debug_assertions)]
impl Place {
    /// Panics unless this thread may take the lock now.
    fn check(self) {
        let forks = held::FORKS.get();
        let out_of_turn = held::BY_RANK.with(|held| {
            let below = &held[self.rank as usize..];
            below.iter().enumerate().position(|(at, count)| {
                let rank = self.rank as usize + at;
                let of_a_pool = self.rank.is_of_a_pool() && rank <= Rank::WaitQueue as usize;
                // A fork takes all shards of an account, and one account after the other. Every other kind has one
                // lock, or one lock for each pool.
                let of_a_kind = match self.rank {
                    Rank::Shard => true,
                    Rank::Stacks => at == 0,
                    _ => false,
                };
                let of_a_kind = of_a_kind && rank <= Rank::Stacks as usize;
                count.get() > 0 && !of_a_pool && !(forks && of_a_kind)
            })
        });
        if let Some(at) = out_of_turn {
            self.refuse(self.rank as usize + at, "");
        }
        let Some(Holders(slots)) = self.of else { return };
        // Most threads hold no lock of any pool.
        let after = self.rank as usize..=Rank::WaitQueue as usize;
        if held::BY_RANK.with(|held| held[after].iter().all(|count| count.get() == 0)) {
            return;
        }
        let here = id();
        let held = |slot: &AtomicUsize| slot.load(Ordering::Relaxed) == here;
        let first = self.slot as usize;
        if let Some(at) = slots[first..].iter().position(held) {
            let slot = first + at;
            let rank = match slot {
                0 => Rank::CacheRegistry as usize,
                1..=SHELVES => Rank::Shelf as usize,
                _ => slot - SHELVES + Rank::Shelf as usize,
            };
            self.refuse(rank, " of the same pool");
        }
    }

    fn count(self, held: bool) {
        if let Some(holders) = self.of {
            holders.0[self.slot as usize].store(if held { id() } else { 0 }, Ordering::Relaxed);
        }
        held::BY_RANK.with(|by_rank| {
            let count = &by_rank[self.rank as usize];
            count.set(if held {
                count.get() + 1
            } else {
                count.get().saturating_sub(1)
            });
        });
    }

    #[cold]
    fn refuse(self, held: usize, of: &str) -> ! {
        let (asked, held) = (self.rank, Rank::ALL[held]);
        panic!("wrong lock order: {asked:?} is requested while {held:?}{of} is held");
    }
}

/// Records that a lock is held, until this is dropped. It is empty in release builds.
struct Turn<'a> {
    #[cfg(debug_assertions)]
    place: Place,
    /// The field of the lock that contains the holding thread.
    #[cfg(debug_assertions)]
    holder: Option<&'a AtomicUsize>,
    _lock: PhantomData<&'a ()>,
}

impl Turn<'_> {
    /// Panics, in debug builds, unless a lock of this rank may be taken now. Call this before the lock is taken.
    fn of(rank: Rank) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        #[cfg(debug_assertions)]
        let place = Place {
            rank,
            slot: 0,
            of: None,
        };
        #[cfg(debug_assertions)]
        place.check();
        #[cfg(debug_assertions)]
        place.count(true);
        Self {
            #[cfg(debug_assertions)]
            place,
            #[cfg(debug_assertions)]
            holder: None,
            _lock: PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(holder) = self.holder {
            holder.store(0, Ordering::Relaxed);
        }
        self.place.count(false);
    }
}

/// Panics, in debug builds, if a lock of this rank could not be taken now. Code that takes the lock only seldom calls
/// this every time.
#[inline]
pub(crate) fn might_take(rank: Rank) {
    #[cfg(debug_assertions)]
    drop(Turn::of(rank));
    #[cfg(not(debug_assertions))]
    let _ = rank;
}

/// Sets whether this thread may take every lock of each kind, as a fork does.
pub fn take_all_of_a_kind(yes: bool) {
    #[cfg(debug_assertions)]
    held::FORKS.set(yes);
    #[cfg(not(debug_assertions))]
    let _ = yes;
}

/// A mutex with a place in the order. No panic in the library leaves its contents inconsistent, so poisoning is
/// ignored.
pub struct Ranked<T> {
    #[cfg(debug_assertions)]
    place: Place,
    /// The [`id`] of the thread that holds the lock, or 0.
    #[cfg(debug_assertions)]
    holder: AtomicUsize,
    mutex: Mutex<T>,
}

/// A lock that is held.
pub struct Locked<'a, T> {
    /// This is dropped before the guard, while the lock is still held.
    turn: Turn<'a>,
    guard: MutexGuard<'a, T>,
}

impl<T> Ranked<T> {
    /// Makes a lock that does not belong to a pool.
    pub const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            place: Place {
                rank,
                slot: 0,
                of: None,
            },
            #[cfg(debug_assertions)]
            holder: AtomicUsize::new(0),
            mutex: Mutex::new(value),
        }
    }

    /// Locks the value. A panic of an earlier owner is ignored.
    #[inline]
    pub fn lock(&self) -> Locked<'_, T> {
        #[cfg(debug_assertions)]
        {
            // This check also applies during a fork, which may take several locks of a kind.
            if self.holder.load(Ordering::Relaxed) == id() {
                panic!(
                    "{:?} is requested by the thread that already holds it",
                    self.place.rank
                );
            }
            self.place.check();
        }
        self.locked(self.mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock if no thread holds it. This does not wait, so it needs no order.
    pub fn try_lock(&self) -> Option<Locked<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(self.locked(guard)),
            Err(std::sync::TryLockError::Poisoned(guard)) => Some(self.locked(guard.into_inner())),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn locked<'a>(&'a self, guard: MutexGuard<'a, T>) -> Locked<'a, T> {
        #[cfg(debug_assertions)]
        self.place.count(true);
        #[cfg(debug_assertions)]
        self.holder.store(id(), Ordering::Relaxed);
        Locked {
            turn: Turn {
                #[cfg(debug_assertions)]
                place: self.place,
                #[cfg(debug_assertions)]
                holder: Some(&self.holder),
                _lock: PhantomData,
            },
            guard,
        }
    }
}

impl<'a, T> Locked<'a, T> {
    /// Releases the lock, sleeps until the condition is signalled or the time has passed, and takes the lock again.
    pub fn wait_timeout(self, condition: &Condvar, limit: Duration) -> Self {
        let Self { turn, guard } = self;
        #[cfg(debug_assertions)]
        let (place, holder) = (turn.place, turn.holder);
        drop(turn);
        // The lock is taken again while the thread's other locks are held.
        #[cfg(debug_assertions)]
        place.check();
        let waited = condition.wait_timeout(guard, limit);
        let (guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        #[cfg(debug_assertions)]
        {
            place.count(true);
            holder.inspect(|holder| holder.store(id(), Ordering::Relaxed));
        }
        Self {
            turn: Turn {
                #[cfg(debug_assertions)]
                place,
                #[cfg(debug_assertions)]
                holder,
                _lock: PhantomData,
            },
            guard,
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for Ranked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mutex.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Locked<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// A read-write lock with a place in the order. A thread may not hold it for reading twice at the same time.
pub struct Shared<T> {
    rank: Rank,
    lock: RwLock<T>,
}

/// A held [`Shared`].
pub struct InTurn<G> {
    guard: G,
    _turn: Turn<'static>,
}

impl<T> Shared<T> {
    /// Creates a lock with a rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            rank,
            lock: RwLock::new(value),
        }
    }

    /// Locks the value for reading.
    pub fn read(&self) -> InTurn<RwLockReadGuard<'_, T>> {
        InTurn {
            _turn: Turn::of(self.rank),
            guard: self.lock.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Locks the value for writing.
    pub fn write(&self) -> InTurn<RwLockWriteGuard<'_, T>> {
        InTurn {
            _turn: Turn::of(self.rank),
            guard: self.lock.write().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<G: Deref> Deref for InTurn<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for InTurn<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}
