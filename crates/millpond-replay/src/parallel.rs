//! Runs independent pieces of work on several threads.

use crate::error::ReplayError;
use millpond_trace::Interrupt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The number of threads of a replay, and a way to interrupt it. Clones interrupt each other's work.
///
/// ```
/// use millpond_replay::{Options, ReplayError, Threads, replay};
/// use millpond_trace::{ReadOptions, read_bytes};
///
/// let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,3000000,0,a\n1,free,1,3000000,0,\n";
/// let recording = read_bytes(csv, "tiny", &ReadOptions::default())?;
/// let options = Options { threads: Threads::at_most(2), ..Options::default() };
/// // Usually another thread does this, while the replay runs.
/// options.threads.interrupt();
/// let interrupted = replay(&recording.traces[0], &options, &|_, _| {});
/// assert_eq!(interrupted.err(), Some(ReplayError::Interrupted));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Threads {
    /// 0 means as many as the machine has.
    most: usize,
    interrupt: Interrupt,
}

impl Threads {
    /// Limits the number of threads to `most`. 0 means as many as the machine has, which is the default.
    #[must_use]
    pub fn at_most(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Interrupts the current and all later work on these threads. The interrupted functions return
    /// [`ReplayError::Interrupted`] after the runs that have begun are finished.
    pub fn interrupt(&self) {
        self.interrupt.set();
    }

    /// Returns the flag that [`interrupt`](Self::interrupt) sets. Given to [`ReadOptions`](millpond_trace::ReadOptions), it also interrupts
    /// reading a recording.
    #[must_use]
    pub fn flag(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Checks that the work was not interrupted.
    ///
    /// # Errors
    /// Returns an error if the work was interrupted, because some results are then missing.
    pub(crate) fn check(&self) -> Result<(), ReplayError> {
        match self.interrupt.is_set() {
            false => Ok(()),
            true => Err(ReplayError::Interrupted),
        }
    }
}

/// Calls `work` for each index below `count`. Returns the results in the order of the indices, whichever thread
/// finished first. Leaves out the indices for which `work` returns `None`, and those that remain if the work is
/// interrupted.
pub(crate) fn map<T: Send>(
    threads: &Threads,
    count: usize,
    work: impl Fn(usize) -> Option<T> + Sync,
) -> Vec<T> {
    let most = match threads.most {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        some => some,
    };
    let slots: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let take_turns = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = slots.get(index).filter(|_| threads.check().is_ok()) else {
                return;
            };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = work(index);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..most.min(count) {
            scope.spawn(take_turns);
        }
        take_turns();
    });
    let results = slots.into_iter().map(Mutex::into_inner);
    results
        .filter_map(|result| result.unwrap_or_else(PoisonError::into_inner))
        .collect()
}
