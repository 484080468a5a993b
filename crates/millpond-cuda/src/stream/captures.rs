//! The streams that this library captures.

use super::{CudaStream, RawStream};
use crate::error::CudaError;
use crate::{captured as counts, fork, later};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A captured stream. All of its work was complete when its capture began.
struct Captured {
    stream: CudaStream,
    /// The number of the pool that serves the stream during the capture.
    pool: u64,
    /// Whether the capture began on this stream. Otherwise the stream has joined it.
    began: bool,
}

static CAPTURED: Mutex<Vec<Captured>> = Mutex::new(Vec::new());

fn captured() -> MutexGuard<'static, Vec<Captured>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a stream on which a capture is about to begin.
pub(crate) fn add(stream: &CudaStream, pool: u64) {
    counts::add(stream.device().number());
    captured().push(Captured {
        stream: stream.clone(),
        pool,
        began: true,
    });
}

/// Removes the streams of the capture that has this pool.
pub(crate) fn forget(pool: u64) {
    if fork::is_forked() {
        return;
    }
    let gone: Vec<_> = captured().extract_if(.., |of| of.pool == pool).collect();
    for of in &gone {
        counts::remove(of.stream.device().number());
    }
    drop(gone);
    later::retry();
}

/// Joins `stream`, which is about to wait for `other`, to the capture of `other`, if `other` is captured. Before it joins, this waits until
/// the earlier work of `stream` is complete. Returns whether it joined.
pub(super) fn joins(stream: &CudaStream, other: &CudaStream) -> Result<bool, CudaError> {
    if !counts::any() || is_captured(stream.raw()) || !is_captured(other.raw()) {
        return Ok(false);
    }
    stream.synchronize()?;
    let mut captured = captured();
    // The capture may have ended by now.
    let pool = captured.iter().find(|of| of.stream == *other).map(|of| of.pool);
    if let Some(pool) = pool {
        counts::add(stream.device().number());
        captured.push(Captured {
            stream: stream.clone(),
            pool,
            began: false,
        });
    }
    Ok(pool.is_some())
}

/// Removes a stream that was about to join a capture and could not.
pub(super) fn stays_out(stream: &CudaStream) {
    let mut captured = captured();
    if let Some(at) = captured.iter().position(|of| of.stream == *stream && !of.began) {
        let out = captured.remove(at);
        drop(captured);
        counts::remove(out.stream.device().number());
    }
}

/// Returns whether this library captures the stream. The driver is asked as well, because a capture can end or be invalidated before the
/// library notices.
pub(crate) fn is_captured(stream: &RawStream) -> bool {
    if !counts::any() {
        return false;
    }
    // The driver is not called under the lock.
    let known = captured().iter().any(|of| of.stream.raw().is(stream));
    known && stream.is_capturing().unwrap_or(true)
}

/// Returns the number of the pool that serves a stream while it is captured.
///
/// # Errors
/// Returns [`CudaError::Capturing`] for a stream that takes part in a capture which began on another stream.
pub(crate) fn pool_of(stream: &CudaStream) -> Result<Option<u64>, CudaError> {
    let found = {
        let captured = captured();
        let found = captured.iter().find(|of| of.stream == *stream);
        found.map(|of| (of.pool, of.began))
    };
    match found {
        Some((pool, true)) => Ok(Some(pool)),
        None if !stream.is_capturing()? => Ok(None),
        Some((_, false)) | None => Err(CudaError::Capturing),
    }
}
