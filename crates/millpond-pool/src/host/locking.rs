//! A lock that prevents sources from locking new memory while locked pages move.
//!
//! Linux miscounts a locked part that is moved out of a map, and forgets that the rest of the map is locked. Therefore a part is
//! unlocked, moved and locked again.

use millpond_os::fork::{Participant, Resting};
use millpond_os::ranked::{InTurn, Rank, Shared};
use millpond_os::reentrancy::{Inside, inside};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Moving locked pages unlocks them for a moment. If another source locked memory at that time, it could use up the
/// process's limit. This lock prevents that.
static LOCKING: Shared<()> = Shared::new(Rank::Locking, ());

static FORKS: Participant = Participant::new(Rank::Locking, || Box::new(exclusive()));

/// The held lock. Allocations under it do not come from the program's pool, because the pool's source may wait for the
/// lock.
pub(crate) struct Locking<G> {
    _guard: InTurn<G>,
    _inside: Inside,
}

impl Resting for Locking<RwLockWriteGuard<'static, ()>> {}

/// Takes the lock for locking new memory.
pub(super) fn shared() -> Locking<RwLockReadGuard<'static, ()>> {
    FORKS.register();
    Locking {
        _inside: inside(),
        _guard: LOCKING.read(),
    }
}

/// Takes the lock for moving locked pages, and for a fork.
pub(crate) fn exclusive() -> Locking<RwLockWriteGuard<'static, ()>> {
    FORKS.register();
    Locking {
        _inside: inside(),
        _guard: LOCKING.write(),
    }
}
