//! Who may lock memory while pages that are locked move.

use crate::global::{Inside, inside};
use crate::pool::watch_forks;
use crate::ranked::{InTurn, Rank, Shared};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Moving locked pages unlocks them for a moment. Were another source to lock memory just then, it could take
/// the last of what the process may lock; so nobody does.
static LOCKING: Shared<()> = Shared::new(Rank::Locking, ());

/// The lock, held. What is allocated under it is not the program's pool's, whose source may wait for it.
pub(crate) struct Locking<G> {
    _guard: InTurn<G>,
    _inside: Inside,
}

/// Held while memory is locked that was not.
pub(super) fn shared() -> Locking<RwLockReadGuard<'static, ()>> {
    watch_forks();
    Locking {
        _inside: inside(),
        _guard: LOCKING.read(),
    }
}

/// Held while locked pages move, and around a fork.
pub(crate) fn exclusive() -> Locking<RwLockWriteGuard<'static, ()>> {
    watch_forks();
    Locking {
        _inside: inside(),
        _guard: LOCKING.write(),
    }
}
