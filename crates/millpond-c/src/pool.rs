//! Pools of host memory and of device memory.

use crate::any_pool::{AnyPool, any_pool};
use crate::arguments::{Growing, Out, optional_text, read};
use crate::budget::{MILLPOND_NO_LIMIT, of_handle};
use crate::handles::{self, Kind, Object, end_if_empty, millpond_budget, millpond_pool};
use crate::open_device::OpenDevicePool;
use crate::status::{Failure, guard, millpond_status};
use millpond::cuda::{CudaDevice, DevicePool};
use millpond::{Budget, Pool};
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Ordinary memory of the host, the default.
pub const MILLPOND_MEMORY_HOST: u32 = 0;
/// Memory of the host that the system keeps in RAM (`mlock`).
pub const MILLPOND_MEMORY_PINNED: u32 = 1;

/// The settings of a new pool. Set `size`, and leave fields at zero for the defaults: `millpond_pool_options o = { .size = sizeof o };`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millpond_pool_options {
    /// The size of this structure in bytes.
    pub size: usize,
    /// The name in reports. The default is "pool" and a number.
    pub name: *const c_char,
    /// Settings as text, `key:value,…`, such as "track:all,trim-every:500ms". The book lists them in its chapter on pools. They replace the
    /// environment variable `MILLPOND_CONF`.
    pub settings: *const c_char,
    /// The most bytes that the pool may take from the system or the device, or `MILLPOND_NO_LIMIT`. 0 is the default: no limit for the host,
    /// and 80 % of a device.
    pub limit: u64,
    /// The budget that the pool is charged to. The pool keeps it alive.
    pub budget: *mut millpond_budget,
    /// `MILLPOND_MEMORY_HOST` or `MILLPOND_MEMORY_PINNED`. For pools of a device, it must be 0.
    pub memory: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it is `repr(C)` without padding, begins with its size, and null pointers and zeros are values.
unsafe impl Growing for millpond_pool_options {}

/// The settings of a new pool, checked.
struct Settings<'a> {
    name: Option<&'a str>,
    text: Option<&'a str>,
    limit: Option<u64>,
    budget: Option<Budget>,
    memory: u32,
}

/// Reads options. Null stands for the defaults.
///
/// # Safety
/// The rules on arguments of the crate apply.
unsafe fn settings<'a>(options: *const millpond_pool_options) -> Result<Settings<'a>, Failure> {
    if options.is_null() {
        return Ok(Settings {
            name: None,
            text: None,
            limit: None,
            budget: None,
            memory: MILLPOND_MEMORY_HOST,
        });
    }
    // SAFETY: the caller guarantees it.
    let options = unsafe { read(options, "options") }?;
    if options.reserved != 0 {
        return Err(Failure::argument(
            "the field `reserved` of `options` is not zero: set it to zero",
        ));
    }
    // SAFETY: the caller guarantees it.
    let name = unsafe { optional_text(options.name, "name") }?;
    // SAFETY: the caller guarantees it.
    let text = unsafe { optional_text(options.settings, "settings") }?;
    let budget = match options.budget.is_null() {
        true => None,
        false => Some(of_handle(options.budget)?),
    };
    Ok(Settings {
        name,
        text,
        limit: (options.limit != 0).then_some(options.limit),
        budget,
        memory: options.memory,
    })
}

/// Sets a builder's settings. The builders of both kinds of pools have the same methods and no common type.
macro_rules! with_settings {
    ($builder:expr, $settings:expr) => {{
        let mut builder = $builder;
        if let Some(name) = $settings.name {
            builder = builder.name(name);
        }
        if let Some(text) = $settings.text {
            builder = builder.settings(text);
        }
        if let Some(limit) = $settings.limit {
            builder = builder.limit(limit);
        }
        if let Some(budget) = &$settings.budget {
            builder = builder.budget(budget);
        }
        builder
    }};
}

fn handle(id: usize) -> *mut millpond_pool {
    ptr::without_provenance_mut(id)
}

/// Creates a pool of host memory. `options` may be null. Destroy the pool with `millpond_pool_destroy`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE` for the budget, and `MILLPOND_SYSTEM_ERROR` or `MILLPOND_OUT_OF_MEMORY` if
/// the system has no memory for the pool.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_create(
    options: *const millpond_pool_options,
    pool: *mut *mut millpond_pool,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(pool, "pool") }?;
        // SAFETY: the caller guarantees it.
        let settings = unsafe { settings(options) }?;
        let builder = with_settings!(Pool::builder(), settings);
        let pool = match settings.memory {
            MILLPOND_MEMORY_HOST => builder.host(),
            MILLPOND_MEMORY_PINNED => builder.pinned(),
            other => {
                return Err(Failure::argument(format!(
                    "the field `memory` of `options` is {other}: set it to MILLPOND_MEMORY_HOST or MILLPOND_MEMORY_PINNED"
                )));
            }
        };
        out.set(handle(handles::add_host(pool?)?));
        Ok(())
    })
}

/// Creates a pool of a CUDA device's memory. Devices are numbered from 0, as by the driver. `options` may be null. Destroy the pool with
/// `millpond_pool_destroy`. The pool uses the primary context of the device, as CUDA's runtime does.
///
/// Errors: those of `millpond_pool_create`, and `MILLPOND_CUDA_ERROR` if there is no driver or no such device.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_pool_create(
    device: u32,
    options: *const millpond_pool_options,
    pool: *mut *mut millpond_pool,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(pool, "pool") }?;
        // SAFETY: the caller guarantees it.
        let settings = unsafe { settings(options) }?;
        if settings.memory != 0 {
            return Err(Failure::argument(
                "the field `memory` of `options` is for pools of the host: set it to zero",
            ));
        }
        let mut builder = with_settings!(DevicePool::builder(), settings);
        if settings.limit == Some(MILLPOND_NO_LIMIT) {
            builder = builder.memory_fraction(1.0);
        }
        let pool = builder.build(&CudaDevice::get(device)?)?;
        let pool = Object::Device(Arc::new(OpenDevicePool::new(pool)));
        out.set(handle(handles::add_object(pool)?));
        Ok(())
    })
}

/// Destroys a pool. It serves no more requests. Its live blocks stay valid, and the handle stays valid for freeing them; the pool ends with
/// its last block. A pool without live blocks ends now, and its memory is returned.
///
/// Errors: `MILLPOND_INVALID_HANDLE`, also if the pool was destroyed before.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_destroy(pool: *mut millpond_pool) -> millpond_status {
    guard(|| {
        let again = || {
            let text =
                "the pool was destroyed before: its handle is only for freeing the blocks that are live";
            Failure::new(millpond_status::MILLPOND_INVALID_HANDLE, text)
        };
        match any_pool(pool)? {
            AnyPool::Host(entry) => {
                if entry.destroyed.swap(true, Ordering::AcqRel) {
                    return Err(again());
                }
                entry.pool.close();
                end_if_empty(pool, entry);
            }
            AnyPool::Device(entry) => {
                if !entry.destroy() {
                    return Err(again());
                }
                if entry.is_empty() {
                    let _ = handles::remove(pool.addr(), Kind::Pool);
                }
            }
        }
        Ok(())
    })
}
