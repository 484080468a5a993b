//! Who may lock memory while pages that are locked move.
//!
//! Linux miscounts a locked part that is moved out of a map, and forgets that the rest of the map is locked. So a part is unlocked,
//! moved and locked again.

use crate::fork::{Participant, Resting};
use crate::ranked::{InTurn, Rank, Shared};
use crate::reentrancy::{Inside, inside};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Moving locked pages unlocks them for a moment. Were another source to lock memory just then, it could take
/// the last of what the process may lock; so nobody does.
static LOCKING: Shared<()> = Shared::new(Rank::Locking, ());

static FORKS: Participant = Participant::new(Rank::Locking, || Box::new(exclusive()));

/// The lock, held. What is allocated under it is not the program's pool's, whose source may wait for it.
pub(crate) struct Locking<G> {
    _guard: InTurn<G>,
    _inside: Inside,
}

impl Resting for Locking<RwLockWriteGuard<'static, ()>> {}

/// Held while memory is locked that was not.
pub(super) fn shared() -> Locking<RwLockReadGuard<'static, ()>> {
    FORKS.register();
    Locking {
        _inside: inside(),
        _guard: LOCKING.read(),
    }
}

/// Held while locked pages move, and around a fork.
pub(crate) fn exclusive() -> Locking<RwLockWriteGuard<'static, ()>> {
    FORKS.register();
    Locking {
        _inside: inside(),
        _guard: LOCKING.write(),
    }
}
