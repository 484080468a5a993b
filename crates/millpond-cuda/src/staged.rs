//! Asynchronous copies of ordinary memory, each on a thread of its own.

use super::error::CudaError;
use super::transfer_error::TransferError;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// A copy through a [`Staging`](super::Staging), on a thread that owns both ends meanwhile. Dropping it waits for the copy.
#[must_use = "dropping it waits for the copy"]
pub struct Staged<E> {
    work: Arc<Mutex<Work<E>>>,
    thread: Option<JoinHandle<()>>,
}

struct Work<E> {
    ends: Option<E>,
    outcome: Result<(), CudaError>,
}

impl<E: Send + 'static> Staged<E> {
    pub(super) fn begin(
        ends: E,
        copy: impl FnOnce(&mut E) -> Result<(), CudaError> + Send + 'static,
    ) -> Result<Self, TransferError<E>> {
        let work = Arc::new(Mutex::new(Work {
            ends: Some(ends),
            outcome: Ok(()),
        }));
        let theirs = Arc::clone(&work);
        let body = move || {
            let mut work = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(ends) = &mut work.ends {
                work.outcome = copy(ends);
            }
        };
        match Builder::new().name("millpond staging".to_owned()).spawn(body) {
            Ok(thread) => Ok(Self {
                work,
                thread: Some(thread),
            }),
            Err(_) => Err(TransferError::new(CudaError::NoThread, take(&work))),
        }
    }

    /// Returns whether the thread has finished. A copy to the device has then read all elements, but may not have written the last ones
    /// yet.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread, and returns both ends.
    ///
    /// # Errors
    /// Returns the errors of the driver, with both ends.
    ///
    /// # Panics
    /// Panics if the function that copies on the host has panicked, with the same payload.
    pub fn wait(mut self) -> Result<E, TransferError<E>> {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        let outcome = self.work.lock().unwrap_or_else(PoisonError::into_inner).outcome;
        let ends = take(&self.work);
        match outcome {
            Ok(()) => ends.ok_or_else(|| TransferError::new(CudaError::NoThread, None)),
            Err(error) => Err(TransferError::new(error, ends)),
        }
    }
}

fn take<E>(work: &Mutex<Work<E>>) -> Option<E> {
    work.lock().unwrap_or_else(PoisonError::into_inner).ends.take()
}

impl<E> Drop for Staged<E> {
    fn drop(&mut self) {
        // The panic was reported when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl<E> fmt::Debug for Staged<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged").finish_non_exhaustive()
    }
}
