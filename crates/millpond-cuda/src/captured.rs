//! Counts the streams of each device that this library captures.

use super::fork;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The device of each captured stream, and the number of these streams, which can be read without a lock.
static DEVICES: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn devices() -> MutexGuard<'static, Vec<u32>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a stream of a device.
pub(super) fn add(device: u32) {
    COUNT.fetch_add(1, Ordering::AcqRel);
    devices().push(device);
}

/// Removes a stream of a device.
pub(super) fn remove(device: u32) {
    let mut devices = devices();
    if let Some(at) = devices.iter().position(|of| *of == device) {
        devices.swap_remove(at);
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns whether any stream is captured. The checks of captures are skipped if none is.
#[inline]
pub(super) fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0 && !fork::is_forked()
}

/// Returns whether any stream of the device is captured.
pub(super) fn any_on(device: u32) -> bool {
    any() && devices().contains(&device)
}
