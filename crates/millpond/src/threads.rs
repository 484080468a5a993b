//! How many threads one operation uses. With the feature `rayon` there may be several, without it there is one.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most threads that one operation takes; 0 until somebody asked.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// How many threads one operation takes at most.
///
/// Without the feature `rayon` that is 1. With it, what [`set_threads`] said last, or else the environment's
/// `MILLPOND_THREADS`, or as many as rayon has; never more than those. A `MILLPOND_THREADS` that is no number above 0 is told of
/// on standard error, once, and passed over. Small operations take one whatever it is: to
/// wake a thread takes longer than they do.
#[must_use]
pub fn threads() -> usize {
    if !cfg!(feature = "rayon") {
        return 1;
    }
    let limit = match LIMIT.load(Ordering::Relaxed) {
        0 => {
            let limit = std::env::var("MILLPOND_THREADS").map_or(usize::MAX, |said| limit_of(&said));
            // What was set meanwhile holds.
            let set = LIMIT.compare_exchange(0, limit, Ordering::Relaxed, Ordering::Relaxed);
            set.err().unwrap_or(limit)
        }
        limit => limit,
    };
    // One needs nobody else: rayon is not even asked, which would start its threads.
    if limit == 1 { 1 } else { limit.min(available()) }
}

/// What the environment says; as many as there are where it is no number of threads.
fn limit_of(said: &str) -> usize {
    match said.trim().parse() {
        Ok(limit @ 1..) => limit,
        _ => {
            // Nobody to answer: this is asked in the middle of operations. Where standard error is closed nobody hears it.
            let _ = writeln!(
                std::io::stderr(),
                "millpond: MILLPOND_THREADS={said:?} is passed over: write a number above 0"
            );
            usize::MAX
        }
    }
}

/// Limits how many threads one operation takes from now on, in the whole process; 0 is as many as there are. Results do not
/// depend on it. Where several work, rayon takes memory for its threads and queues from the program's allocator, and nothing
/// from a pool.
///
/// ```
/// millpond::set_threads(1);
/// assert_eq!(millpond::threads(), 1);
/// ```
pub fn set_threads(limit: usize) {
    LIMIT.store(if limit == 0 { usize::MAX } else { limit }, Ordering::Relaxed);
}

/// Returns how many threads there are for one operation.
#[cfg(feature = "rayon")]
pub(crate) fn available() -> usize {
    use std::sync::atomic::AtomicU32;
    /// The process that has the threads. The child of a fork has none of them, and would wait for them forever.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let here = std::process::id();
    match PROCESS.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(process) if process != here => 1,
        _ => rayon::current_num_threads(),
    }
}

#[cfg(not(feature = "rayon"))]
pub(crate) fn available() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_threads_is_passed_over() {
        assert_eq!(["1", " 12 "].map(limit_of), [1, 12]);
        assert_eq!(["", "0", "-1", "all", "1.5"].map(limit_of), [usize::MAX; 5]);
    }
}
