//! The host's pool that holds here, as each thread remembers it.
//!
//! To find it takes two locks and counts that all threads share: drawing 1,000 bytes and giving them back took 128 ns
//! instead of a pool's own 40, and with two threads at once 380 instead of 60 (2026). A thread that remembers looks at two
//! numbers: one changes when any set's pools or the default do, one when this thread enters or leaves a scope.

use super::pools;
use crate::pool::{Pool, PoolError};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often what holds somewhere may have changed. Raised after the change: who reads it before a look remembers nothing
/// for longer than it was so.
static CHANGES: AtomicU64 = AtomicU64::new(0);

struct Here {
    changes: u64,
    moves: u64,
    /// Keeps the pool open while this thread remembers it.
    pool: Pool,
}

thread_local! {
    /// How often this thread has entered or left a scope.
    static MOVES: Cell<u64> = const { Cell::new(0) };
    /// Empty while it is in use. At the end of a thread it is not there any more, and nothing is remembered.
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
}

/// What other threads remember may be so no more.
pub(super) fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// This thread has entered or left a scope: what it remembers is so no more, and what is in use now neither.
pub(super) fn moved() {
    MOVES.set(MOVES.get() + 1);
    drop(HERE.try_with(Cell::take));
}

/// Does something with the host's pool that holds here.
#[inline]
pub(crate) fn with_host<R>(work: impl FnOnce(&Pool) -> R) -> Result<R, PoolError> {
    let remembered = HERE.try_with(Cell::take).ok().flatten();
    let here = match remembered {
        Some(here) if here.changes == CHANGES.load(Ordering::Acquire) && here.moves == MOVES.get() => here,
        other => look(other)?,
    };
    let result = work(&here.pool);
    // What `work` called may have left something. Where it changed what holds, that was counted.
    let before = HERE.try_with(|place| place.replace(Some(here)));
    drop(before);
    Ok(result)
}

#[cold]
#[inline(never)]
fn look(before: Option<Here>) -> Result<Here, PoolError> {
    // It may close its pool.
    drop(before);
    let changes = CHANGES.load(Ordering::Acquire);
    let moves = MOVES.get();
    let pool = pools().host()?;
    Ok(Here { changes, moves, pool })
}
