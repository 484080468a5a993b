//! The number of threads of one operation: one or more with the feature `rayon`, and one without it.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of threads for one operation, or 0 before the first query.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Returns the maximum number of threads that one operation uses.
///
/// Without the feature `rayon` this is 1. With it, this is the last value of [`set_threads`], or else that of the environment
/// variable `MILLPOND_THREADS`, or else the number of rayon's threads, and never more than the latter. If `MILLPOND_THREADS` is not
/// a number above 0, it is ignored, and a message is written to standard error once. Small operations always use one thread,
/// because waking a thread takes longer than the operation.
#[must_use]
pub fn threads() -> usize {
    if !cfg!(feature = "rayon") {
        return 1;
    }
    let limit = match LIMIT.load(Ordering::Relaxed) {
        0 => {
            let limit = std::env::var("MILLPOND_THREADS").map_or(usize::MAX, |said| limit_of(&said));
            // A limit that another thread set in the meantime takes precedence.
            let set = LIMIT.compare_exchange(0, limit, Ordering::Relaxed, Ordering::Relaxed);
            set.err().unwrap_or(limit)
        }
        limit => limit,
    };
    // A limit of 1 does not call rayon, which would start its threads.
    if limit == 1 { 1 } else { limit.min(available()) }
}

/// Parses the value of the environment variable. Returns `usize::MAX`, which means no limit, if it is not a number above 0.
fn limit_of(said: &str) -> usize {
    match said.trim().parse() {
        Ok(limit @ 1..) => limit,
        _ => {
            // There is no caller to return an error to, because this runs in the middle of operations. If standard error is closed,
            // the message is lost.
            let _ = writeln!(
                std::io::stderr(),
                "millpond: MILLPOND_THREADS={said:?} is ignored: write a number above 0"
            );
            usize::MAX
        }
    }
}

/// Limits the number of threads of one operation from now on, in the whole process. 0 means all threads. Results do not depend on
/// it. If several threads are used, rayon allocates its threads and queues from the program's allocator, and nothing from a pool.
///
/// ```
/// millpond::set_threads(1);
/// assert_eq!(millpond::threads(), 1);
/// ```
pub fn set_threads(limit: usize) {
    LIMIT.store(if limit == 0 { usize::MAX } else { limit }, Ordering::Relaxed);
}

/// Returns the number of threads that are available to one operation.
#[cfg(feature = "rayon")]
pub fn available() -> usize {
    use std::sync::atomic::AtomicU32;
    /// The process that has the threads. The child of a fork does not have them, and would wait for them forever.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let here = std::process::id();
    match PROCESS.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(process) if process != here => 1,
        _ => rayon::current_num_threads(),
    }
}

/// Returns 1: the feature `rayon` is off.
#[cfg(not(feature = "rayon"))]
pub fn available() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_numbers_of_threads_are_ignored() {
        assert_eq!(["1", " 12 "].map(limit_of), [1, 12]);
        assert_eq!(["", "0", "-1", "all", "1.5"].map(limit_of), [usize::MAX; 5]);
    }
}
