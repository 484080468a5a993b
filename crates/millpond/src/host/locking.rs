//! Who may lock memory while pages that are locked move.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Moving locked pages unlocks them for a moment. Were another source to lock memory just then, it could take
/// the last of what the process may lock; so nobody does.
static LOCKING: RwLock<()> = RwLock::new(());

/// Held while memory is locked that was not.
pub(super) fn shared() -> RwLockReadGuard<'static, ()> {
    LOCKING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held while locked pages move.
pub(super) fn exclusive() -> RwLockWriteGuard<'static, ()> {
    LOCKING.write().unwrap_or_else(PoisonError::into_inner)
}
