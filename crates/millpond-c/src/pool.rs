//! Pools of host memory and of device memory.

use crate::arguments::{Growing, Out, OutStruct, optional_text, read};
use crate::budget::{MILLPOND_NO_LIMIT, of_handle};
use crate::handles::{self, HostPool, Kind, Object, end_if_empty, millpond_budget, millpond_pool};
use crate::open_device::OpenDevicePool;
use crate::status::{Failure, guard, millpond_status};
use millpond::cuda::{CudaDevice, DevicePool};
use millpond::engine::Gauge;
use millpond::{Budget, Pool, PoolStats};
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
    /// The most bytes that the pool may take from the system or the device. The default is no limit for the host, and 80 % of a device.
    pub limit: u64,
    /// The budget that the pool is charged to. The pool keeps it alive.
    pub budget: *mut millpond_budget,
    /// `MILLPOND_MEMORY_HOST` or `MILLPOND_MEMORY_PINNED`. Pools of a device have no other value than 0.
    pub memory: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it is `repr(C)` without padding, begins with its size, and null pointers and zeros are values.
unsafe impl Growing for millpond_pool_options {}

/// The figures of a pool. Peaks are those since the last `millpond_pool_reset_peak`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct millpond_pool_stats {
    /// The size of this structure in bytes, which the caller sets.
    pub size: usize,
    /// The bytes that the program requested and holds.
    pub requested: u64,
    /// Its peak.
    pub requested_peak: u64,
    /// The bytes of the blocks that the program holds.
    pub allocated: u64,
    /// Its peak.
    pub allocated_peak: u64,
    /// The bytes that the pool has taken from the system or the device.
    pub reserved: u64,
    /// Its peak.
    pub reserved_peak: u64,
    /// The bytes of freed blocks that wait for a stream.
    pub waiting: u64,
    /// The number of successful allocations.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// The number of allocations that called neither the system nor the driver.
    pub hits: u64,
    /// The number of refused allocations.
    pub refusals: u64,
    /// The limit in bytes, or `MILLPOND_NO_LIMIT`.
    pub limit: u64,
}

// SAFETY: it is `repr(C)` without padding, begins with its size, and zeros are values.
unsafe impl Growing for millpond_pool_stats {}

/// A pool of either kind.
enum AnyPool {
    Host(&'static HostPool),
    Device(Arc<OpenDevicePool>),
}

/// Calls a method that pools of both kinds have.
macro_rules! of_both {
    ($pool:expr, $method:ident($($argument:expr),*)) => {
        match &$pool {
            AnyPool::Host(entry) => entry.pool.$method($($argument),*),
            AnyPool::Device(entry) => entry.pool.$method($($argument),*),
        }
    };
}

fn any_pool(pool: *mut millpond_pool) -> Result<AnyPool, Failure> {
    match handles::find(pool.addr(), Kind::Pool)? {
        Object::Host(entry) => Ok(AnyPool::Host(entry)),
        Object::Device(entry) => Ok(AnyPool::Device(entry)),
        Object::Budget(_) | Object::Recording(_) => {
            Err(Failure::argument("the handle is no pool: pass a pool"))
        }
    }
}

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
        limit: (options.limit != 0 && options.limit != MILLPOND_NO_LIMIT).then_some(options.limit),
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
        let device = CudaDevice::get(device)?;
        let pool = with_settings!(DevicePool::builder(), settings).build(&device)?;
        let pool = Object::Device(Arc::new(OpenDevicePool::new(pool)));
        out.set(handle(handles::add_object(pool)?));
        Ok(())
    })
}

/// Destroys a pool. It allocates nothing from now on. Its live blocks stay valid, and the handle stays valid for freeing them; the pool ends
/// with its last block. A pool without live blocks ends now, and its memory goes back.
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

/// Writes the figures of a pool to `stats`, whose field `size` the caller has set.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` and `MILLPOND_INVALID_HANDLE`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_stats(
    pool: *mut millpond_pool,
    stats: *mut millpond_pool_stats,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { OutStruct::new(stats, "stats") }?;
        let pool = any_pool(pool)?;
        let limit = match &pool {
            AnyPool::Host(entry) => entry.pool.limit().unwrap_or(MILLPOND_NO_LIMIT),
            AnyPool::Device(entry) => entry.pool.limit(),
        };
        out.set(&figures(&of_both!(pool, stats()), limit));
        Ok(())
    })
}

fn figures(stats: &PoolStats, limit: u64) -> millpond_pool_stats {
    let Gauge { current, peak } = stats.requested;
    millpond_pool_stats {
        size: size_of::<millpond_pool_stats>(),
        requested: current,
        requested_peak: peak,
        allocated: stats.allocated.current,
        allocated_peak: stats.allocated.peak,
        reserved: stats.reserved.current,
        reserved_peak: stats.reserved.peak,
        waiting: stats.waiting,
        allocations: stats.allocations,
        frees: stats.frees,
        hits: stats.hits,
        refusals: stats.refusals,
        limit,
    }
}

/// Resets the peaks of a pool to the present figures.
///
/// Errors: `MILLPOND_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_reset_peak(pool: *mut millpond_pool) -> millpond_status {
    guard(|| {
        of_both!(any_pool(pool)?, reset_peak());
        Ok(())
    })
}

/// Changes the limit of a pool in bytes. If more is reserved, free memory goes back, and the pool takes no memory until enough has gone back.
///
/// Errors: `MILLPOND_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_set_limit(pool: *mut millpond_pool, limit: u64) -> millpond_status {
    guard(|| {
        of_both!(any_pool(pool)?, set_limit(limit));
        Ok(())
    })
}

/// Takes memory until the pool has reserved at least `total` bytes, so that later requests up to that sum call neither the system nor the
/// driver.
///
/// Errors: `MILLPOND_INVALID_HANDLE`, and the errors of an allocation. The memory that was reserved until then stays reserved.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_reserve(pool: *mut millpond_pool, total: u64) -> millpond_status {
    guard(|| {
        of_both!(any_pool(pool)?, reserve(total))?;
        Ok(())
    })
}

/// Gives back all memory that no block uses. A pool of a device waits for the streams that have used its memory.
///
/// Errors: `MILLPOND_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_trim(pool: *mut millpond_pool) -> millpond_status {
    guard(|| {
        of_both!(any_pool(pool)?, trim());
        Ok(())
    })
}

/// Writes a text about a pool to a buffer: its figures and, if the pool was created with the setting `track:all`, its live blocks by tag,
/// the largest sum first. The text ends with a zero byte. `length` gets the bytes of the whole text without the zero byte, and may be null.
/// With a capacity of 0, `buffer` may be null.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE`, and `MILLPOND_TRUNCATED` if the buffer is too small.
///
/// # Safety
/// The rules on arguments apply. `buffer` is valid for writes of `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_report(
    pool: *mut millpond_pool,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> millpond_status {
    guard(|| {
        let pool = any_pool(pool)?;
        let mut text = format!("pool '{}': {}", of_both!(pool, name()), of_both!(pool, stats()));
        if let Some(report) = of_both!(pool, leak_report()) {
            text = format!("{text}\n{report}");
        }
        let text = text.replace('\0', "\u{fffd}");
        if !length.is_null() {
            // SAFETY: the caller guarantees it.
            unsafe { Out::new(length, "length") }?.set(text.len());
        }
        if capacity == 0 || buffer.is_null() {
            let empty = capacity == 0 && !length.is_null();
            return match empty {
                true => Ok(()),
                false => Err(Failure::argument(
                    "`buffer` is null: pass a buffer, or a capacity of 0 and `length`",
                )),
            };
        }
        // A character is not cut.
        let mut end = text.len().min(capacity - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: `end` is below the capacity, for which the caller guarantees the buffer.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), end) };
        // SAFETY: as above.
        let last = unsafe { buffer.add(end) };
        // SAFETY: as above.
        unsafe { last.write(0) };
        match end == text.len() {
            true => Ok(()),
            false => Err(Failure::new(
                millpond_status::MILLPOND_TRUNCATED,
                format!("the text has {} bytes: pass a buffer of one more", text.len()),
            )),
        }
    })
}
