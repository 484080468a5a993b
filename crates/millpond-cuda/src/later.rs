//! Items that cannot be freed while streams are captured, and are freed as soon as that is possible.
//!
//! A source that is dropped has to wait for the streams that used its memory before the memory is freed, and a module has to wait for those
//! that run its code. That is not possible while another library captures one of them. The item is therefore kept here, whole, and dropped
//! again at the next chance. If it still cannot be freed, it is kept once more.

use super::fork;
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Kept {
    /// The item, which is freed when it is dropped.
    _what: Box<dyn Any + Send>,
    device: u32,
    /// The bytes of the device's memory that the item holds.
    bytes: u64,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
/// The number of kept items, which can be read without a lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an item that could not be freed and that holds `bytes` bytes of a device.
pub(super) fn keep(what: impl Any + Send, device: u32, bytes: u64) {
    kept().push(Kept {
        _what: Box::new(what),
        device,
        bytes,
    });
    COUNT.fetch_add(1, Ordering::AcqRel);
}

/// Drops the kept items. Those that still cannot be freed are kept again.
#[inline]
pub(super) fn retry() {
    if COUNT.load(Ordering::Acquire) > 0 && !fork::is_forked() {
        drop_kept();
    }
}

#[cold]
fn drop_kept() {
    let all = std::mem::take(&mut *kept());
    COUNT.fetch_sub(all.len(), Ordering::AcqRel);
    // The items are dropped outside of the lock, because an item may be kept again.
    drop(all);
}

/// Returns the bytes of a device's memory that the kept items hold.
pub(super) fn bytes(device: u32) -> u64 {
    let kept = kept();
    let of = kept.iter().filter(|kept| kept.device == device);
    of.map(|kept| kept.bytes).sum()
}
