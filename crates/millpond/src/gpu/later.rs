//! What cannot be ended while streams are captured, and is as soon as they are not.
//!
//! A source that is dropped has to wait for the streams that used its memory before that goes back, and a module for those that run
//! its code. While others capture one of them nobody can. So what is to be ended is kept here, whole, and dropped again at the
//! next chance; what still cannot end keeps itself once more.

use super::fork;
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Kept {
    /// Ends when it is dropped.
    _what: Box<dyn Any + Send>,
    device: u32,
    /// Of the device's memory.
    bytes: u64,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
/// How many those are, to be looked at without a lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what could not end, and holds so many bytes of a device.
pub(super) fn keep(what: impl Any + Send, device: u32, bytes: u64) {
    kept().push(Kept {
        _what: Box::new(what),
        device,
        bytes,
    });
    COUNT.fetch_add(1, Ordering::AcqRel);
}

/// Lets what is kept end, as far as it can by now.
pub(super) fn retry() {
    if COUNT.load(Ordering::Acquire) == 0 || fork::is_forked() {
        return;
    }
    let all = std::mem::take(&mut *kept());
    COUNT.fetch_sub(all.len(), Ordering::AcqRel);
    // Outside the lock: one may keep itself again.
    drop(all);
}

/// Bytes of a device that are still to go back, of sources that nobody has any more.
pub(super) fn bytes(device: u32) -> u64 {
    let kept = kept();
    let of = kept.iter().filter(|kept| kept.device == device);
    of.map(|kept| kept.bytes).sum()
}
