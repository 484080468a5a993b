//! The process at rest while it forks.
//!
//! The child of a fork has only the thread that forked. A lock that another thread held at that moment would stay locked forever, and
//! the data behind it may be changed in part. So every part of the library that has such a lock is a [`Participant`]. Around a fork the
//! forking thread locks all participants in the order of their [ranks](Rank). The [metadata arena](crate::metadata) is locked last. It is
//! released first, in the parent and in the child, because everything that follows may allocate and free tables.
//!
//! A participant registers itself before it takes its lock for the first time. The lock of the registry comes after the locks of all
//! participants. A fork takes it after it has their locks, and starts again if another participant has registered meanwhile. So no lock of
//! an unregistered participant is held in the child, and a thread that waits to register holds no lock that the fork waits for.

#[cfg(target_os = "linux")]
use crate::metadata::{NoTables, no_tables};
use crate::ranked::{InTurn, Locked, RANKS, Rank, Ranked, take_all_of_a_kind};
use crate::reentrancy::inside;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, Ordering};

/// A part of the library that is at rest while the process forks.
pub struct Participant {
    rank: Rank,
    rest: fn() -> Box<dyn Resting>,
    registered: AtomicBool,
}

/// A participant at rest. Its locks are free again when this is dropped.
pub trait Resting {
    /// Forgets the threads that the child of a fork does not have. Called in the child only.
    fn forget_others(&mut self) {}
}

impl<T> Resting for Locked<'static, T> {}
impl<T> Resting for InTurn<RwLockWriteGuard<'static, T>> {}

type Participants = [Option<&'static Participant>; RANKS];

/// The participants by rank.
static PARTICIPANTS: Ranked<Participants> = Ranked::new(Rank::Participants, [None; RANKS]);

impl Participant {
    /// A participant whose first lock has this rank. `rest` takes its locks.
    pub const fn new(rank: Rank, rest: fn() -> Box<dyn Resting>) -> Self {
        Self {
            rank,
            rest,
            registered: AtomicBool::new(false),
        }
    }

    /// Makes forks bring this participant to rest from now on. Must be called before any of its locks is taken.
    #[inline]
    pub fn register(&'static self) {
        if !self.registered.load(Ordering::Acquire) {
            self.register_now();
        }
    }

    #[cold]
    fn register_now(&'static self) {
        watch();
        let mut participants = PARTICIPANTS.lock();
        let place = &mut participants[self.rank as usize];
        debug_assert!(
            place.is_none_or(|other| std::ptr::eq(other, self)),
            "one of each rank"
        );
        *place = Some(self);
        self.registered.store(true, Ordering::Release);
    }
}

/// Prevents forks until the returned guard is dropped, for values that are set once and without a lock of their own.
pub fn prevent() -> impl Sized {
    watch();
    PARTICIPANTS.lock()
}

/// Makes the system call [`prepare`] and [`resume`] around every fork.
fn watch() {
    // This is not a `Once`, because the child of a fork would wait forever for a thread that was inside it. Threads that run this at the
    // same time register the functions twice, which `prepare` handles.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Ordering::Acquire) {
        #[cfg(target_os = "linux")]
        crate::around_fork(prepare, resume);
        WATCHED.store(true, Ordering::Release);
    }
}

/// The locks that the forking thread holds.
struct Held {
    #[cfg(target_os = "linux")]
    tables: NoTables,
    registry: Locked<'static, Participants>,
    /// In the order in which they were locked.
    resting: Vec<Box<dyn Resting>>,
    /// The process that forks.
    parent: u32,
}

thread_local! {
    /// This has no destructor, because a thread may fork at its very end.
    static HELD: Cell<Option<ManuallyDrop<Held>>> = const { Cell::new(None) };
}

/// Brings all participants to rest. Called before a fork by the thread that forks.
pub extern "C" fn prepare() {
    let _inside = inside();
    let held = HELD.take();
    if held.is_some() {
        // The functions were registered twice, and this is the second call.
        HELD.set(held);
        return;
    }
    take_all_of_a_kind(true);
    let held = loop {
        let participants = *PARTICIPANTS.lock();
        let resting = participants
            .iter()
            .flatten()
            .map(|participant| (participant.rest)())
            .collect();
        let registry = PARTICIPANTS.lock();
        let count = |all: &Participants| all.iter().flatten().count();
        if count(&registry) == count(&participants) {
            break Held {
                resting,
                registry,
                parent: std::process::id(),
                #[cfg(target_os = "linux")]
                tables: no_tables(),
            };
        }
        drop(registry);
        release(resting);
    };
    HELD.set(Some(ManuallyDrop::new(held)));
}

/// Releases all participants. Called after a fork in the parent and in the child.
pub extern "C" fn resume() {
    let _inside = inside();
    if let Some(held) = HELD.take() {
        let held = ManuallyDrop::into_inner(held);
        #[cfg(target_os = "linux")]
        drop(held.tables);
        drop(held.registry);
        let mut resting = held.resting;
        if held.parent != std::process::id() {
            for participant in resting.iter_mut().rev() {
                participant.forget_others();
            }
        }
        release(resting);
    }
    take_all_of_a_kind(false);
}

/// Releases the participants in the reverse order of their locking.
fn release(mut resting: Vec<Box<dyn Resting>>) {
    while let Some(participant) = resting.pop() {
        drop(participant);
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    thread_local! {
        /// The participants of this test that are at rest for this thread. Other tests may fork at the same time.
        static AT_REST: Cell<u32> = const { Cell::new(0) };
    }

    struct Counted;

    impl Resting for Counted {}

    impl Drop for Counted {
        fn drop(&mut self) {
            AT_REST.set(AT_REST.get() - 1);
        }
    }

    fn rest() -> Box<dyn Resting> {
        AT_REST.set(AT_REST.get() + 1);
        Box::new(Counted)
    }

    #[test]
    fn a_participant_that_registers_while_others_come_to_rest_is_at_rest_too() {
        // No other participant has these ranks.
        static LATE: Participant = Participant::new(Rank::CacheRegistry, rest);
        static LAST: Participant = Participant::new(Rank::Found, || {
            LATE.register();
            rest()
        });
        LAST.register();
        prepare();
        let at_rest = AT_REST.get();
        // Before the assertion: other tests wait for these locks.
        resume();
        assert_eq!((at_rest, AT_REST.get()), (2, 0));
    }
}
