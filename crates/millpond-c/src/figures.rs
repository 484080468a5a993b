//! The figures of a pool, changes of a pool that is in use, and reports on it.

use crate::any_pool::{AnyPool, any_pool, of_both};
use crate::arguments::{Growing, Out, OutStruct};
use crate::budget::MILLPOND_NO_LIMIT;
use crate::handles::{closed, millpond_pool};
use crate::status::{Failure, guard, millpond_status};
use millpond::PoolStats;
use millpond::engine::Gauge;
use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::Ordering;

/// The figures of a pool. Peaks are those since the last `millpond_pool_reset_peak`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct millpond_pool_stats {
    /// The size of this structure in bytes, which the caller sets.
    pub size: usize,
    /// The bytes that the program requested and holds.
    pub requested: u64,
    /// The peak of `requested`.
    pub requested_peak: u64,
    /// The bytes of the blocks that the program holds.
    pub allocated: u64,
    /// The peak of `allocated`.
    pub allocated_peak: u64,
    /// The bytes that the pool has taken from the system or the device.
    pub reserved: u64,
    /// The peak of `reserved`.
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

/// Resets the peaks of a pool to the current figures.
///
/// Errors: `MILLPOND_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_reset_peak(pool: *mut millpond_pool) -> millpond_status {
    guard(|| {
        of_both!(any_pool(pool)?, reset_peak());
        Ok(())
    })
}

/// Changes the limit of a pool in bytes. If the pool has reserved more, it returns free memory, and takes no more until it is below the limit.
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
        let pool = any_pool(pool)?;
        let destroyed = match &pool {
            AnyPool::Host(entry) => entry.destroyed.load(Ordering::Acquire),
            AnyPool::Device(entry) => entry.is_destroyed(),
        };
        if destroyed {
            return Err(closed());
        }
        of_both!(pool, reserve(total))?;
        Ok(())
    })
}

/// Returns all unused memory to the system or the device. A pool of a device waits for the streams that have used its memory.
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
        // The text is not cut within a character.
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
