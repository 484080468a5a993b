//! Runs independent pieces of work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `work` for each index below `count`, on `threads` threads at most. 0 means as many threads as the
/// machine has. Returns the results in the order of the indices, whichever thread finished first. Leaves out
/// the indices for which `work` returns `None`.
pub(crate) fn map<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> Option<T> + Sync) -> Vec<T> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        some => some,
    };
    let slots: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let take_turns = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = slots.get(index) else { return };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = work(index);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(take_turns);
        }
        take_turns();
    });
    let results = slots.into_iter().map(Mutex::into_inner);
    results
        .filter_map(|result| result.unwrap_or_else(PoisonError::into_inner))
        .collect()
}
