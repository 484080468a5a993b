//! Contexts, which free their memory when they end, and the driver's figures of a device.

use super::{calls, current, set, value};
use crate::account;
use crate::driver;
use crate::format::kind;
use crate::state;
use std::ffi::c_int;

/// Records how much memory of a device all processes use. The device must be that of the current context.
pub(super) fn measure(device: i32) {
    let (mut free, mut total) = (0, 0);
    if driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) == 0 {
        let used = total.saturating_sub(free) as u64;
        let _ = state::with(|state| {
            state
                .log
                .words(kind::MEASURED, &[device as u64, used, total as u64]);
        });
    }
}

/// Records the end of a primary context if it has ended.
fn primary_released(device: c_int, is_reset: bool) {
    let (mut flags, mut active) = (0, 0);
    let asked = driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active);
    let is_over = is_reset || asked == 0 && active == 0;
    if is_over && let Some(context) = state::with(|state| state.account.primary(device)).flatten() {
        account::context_ended(context);
    }
}

calls! {
    cuCtxDestroy_v2(context: u64) {
        let result = driver::cuCtxDestroy_v2(context);
        if result == 0 {
            account::context_ended(context);
        }
        result
    }
    cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) {
        let result = driver::cuDevicePrimaryCtxRetain(context, device);
        if result == 0 {
            let _ = state::with(|state| state.account.keep_primary(device, value(context)));
        }
        result
    }
    cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let result = driver::cuDevicePrimaryCtxRelease_v2(device);
        if result == 0 {
            primary_released(device, false);
        }
        result
    }
    cuDevicePrimaryCtxReset_v2(device: c_int) {
        let result = driver::cuDevicePrimaryCtxReset_v2(device);
        if result == 0 {
            primary_released(device, true);
        }
        result
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let result = driver::cuMemGetInfo_v2(free, total);
        if let Some(limit) = account::limit().filter(|_| result == 0 && !free.is_null() && !total.is_null()) {
            let (_, device) = current();
            let used = state::with(|state| state.account.total(device)).unwrap_or(0);
            let left = usize::try_from(limit.saturating_sub(used)).unwrap_or(usize::MAX);
            set(free, value(free).min(left));
            set(total, smaller(value(total)));
        }
        result
    }
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let result = driver::cuDeviceTotalMem_v2(bytes, device);
        if result == 0 {
            set(bytes, smaller(value(bytes)));
        }
        result
    }
}

/// Returns the bytes of a device, or the limit if it is smaller.
fn smaller(total: usize) -> usize {
    let limit = state::settings().and_then(|settings| settings.limit);
    limit.map_or(total, |limit| {
        total.min(usize::try_from(limit).unwrap_or(usize::MAX))
    })
}
