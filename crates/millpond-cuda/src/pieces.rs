//! Work that several threads share piece by piece.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Pieces that several threads take one after the other.
pub(super) struct Pieces<I>(Mutex<Option<I>>);

impl<I: Iterator> Pieces<I> {
    pub(super) fn new(pieces: I) -> Self {
        Self(Mutex::new(Some(pieces)))
    }

    pub(super) fn take(&self) -> Option<I::Item> {
        lock(&self.0).as_mut()?.next()
    }

    /// Calls `work` on `threads` threads, including this one. After the first error, no thread finds more pieces.
    ///
    /// # Errors
    /// Returns the first error of `work`.
    pub(super) fn share<E: Send>(
        &self,
        threads: usize,
        work: impl Fn() -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        I: Send,
    {
        let failed = Mutex::new(None);
        let run = || {
            if let Err(error) = work() {
                // No thread finds a piece from here on.
                *lock(&self.0) = None;
                lock(&failed).get_or_insert(error);
            }
        };
        on_threads(threads, run);
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `run` on `threads` threads, including this one, or on fewer if the system cannot create more.
///
/// The threads are new, because the threads of a thread pool may be waiting for a lock that the caller holds.
fn on_threads(threads: usize, run: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::Builder::new().spawn_scoped(scope, &run).is_err() {
                break;
            }
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn each_piece_is_taken_once_for_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let (pieces, sum) = (Pieces::new(1..=1000_u32), AtomicU32::new(0));
            let shared = pieces.share(threads, || {
                while let Some(piece) = pieces.take() {
                    sum.fetch_add(piece, Ordering::Relaxed);
                }
                Ok::<(), ()>(())
            });
            assert_eq!((shared, sum.into_inner()), (Ok(()), 500_500));
        }
    }

    #[test]
    fn an_error_ends_the_work_of_all_threads() {
        let (pieces, taken) = (Pieces::new(0_u32..), AtomicU32::new(0));
        let shared = pieces.share(3, || {
            while let Some(piece) = pieces.take() {
                taken.fetch_max(piece, Ordering::Relaxed);
                if piece == 100 {
                    return Err(piece);
                }
            }
            Ok(())
        });
        assert_eq!(shared, Err(100));
        assert!(taken.into_inner() >= 100);
        assert_eq!(pieces.take(), None);
    }
}
