//! Budgets: limits on the memory of several pools together.

use crate::arguments::{Growing, Out, OutStruct, optional_text, read};
use crate::handles::{self, Kind, Object, millpond_budget};
use crate::status::{Failure, guard, millpond_status};
use millpond::Budget;
use millpond::budget::Measure;
use std::ffi::c_char;
use std::ptr;

/// No limit.
pub const MILLPOND_NO_LIMIT: u64 = u64::MAX;
/// A budget counts the bytes that its pools have taken from the system or the devices. This is the default.
pub const MILLPOND_MEASURE_RESERVED: u32 = 0;
/// A budget counts the bytes of the blocks that the program holds. It may be below a budget of reserved bytes, but not above one.
pub const MILLPOND_MEASURE_ALLOCATED: u32 = 1;

/// The settings of a new budget. Set `size`, and leave fields at zero for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millpond_budget_options {
    /// The size of this structure in bytes.
    pub size: usize,
    /// The name in reports. The default is "budget".
    pub name: *const c_char,
    /// The most bytes. 0 and `MILLPOND_NO_LIMIT` are no limit.
    pub limit: u64,
    /// The budget above this one, which is charged too. The new budget keeps it alive.
    pub parent: *mut millpond_budget,
    /// `MILLPOND_MEASURE_RESERVED` or `MILLPOND_MEASURE_ALLOCATED`.
    pub measure: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it is `repr(C)` without padding, begins with its size, and null pointers and zeros are values.
unsafe impl Growing for millpond_budget_options {}

/// The figures of a budget.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct millpond_budget_stats {
    /// The size of this structure in bytes, which the caller sets.
    pub size: usize,
    /// The bytes that are charged now.
    pub used: u64,
    /// The most bytes that were charged at once.
    pub peak: u64,
    /// The limit in bytes, or `MILLPOND_NO_LIMIT`.
    pub limit: u64,
    /// The number of requests that the budget refused.
    pub refusals: u64,
}

// SAFETY: it is `repr(C)` without padding, begins with its size, and zeros are values.
unsafe impl Growing for millpond_budget_stats {}

/// Returns the budget of a handle.
pub(crate) fn of_handle(budget: *mut millpond_budget) -> Result<Budget, Failure> {
    match handles::find(budget.addr(), Kind::Budget)? {
        Object::Budget(budget) => Ok(budget),
        _ => Err(Failure::argument("the handle is not a budget: pass a budget")),
    }
}

/// Creates a budget. `options` may be null. Destroy it with `millpond_budget_destroy`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, and `MILLPOND_INVALID_HANDLE` for the parent.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_create(
    options: *const millpond_budget_options,
    budget: *mut *mut millpond_budget,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(budget, "budget") }?;
        let mut builder = Budget::builder("budget");
        if !options.is_null() {
            // SAFETY: the caller guarantees it.
            let options = unsafe { read(options, "options") }?;
            // SAFETY: the caller guarantees it.
            let name = unsafe { optional_text(options.name, "name") }?.unwrap_or("budget");
            builder = match options.parent.is_null() {
                true => Budget::builder(name),
                false => of_handle(options.parent)?.child_builder(name),
            };
            builder = builder.measure(match (options.measure, options.reserved) {
                (MILLPOND_MEASURE_RESERVED, 0) => Measure::Reserved,
                (MILLPOND_MEASURE_ALLOCATED, 0) => Measure::Allocated,
                _ => {
                    return Err(Failure::argument(
                        "the field `measure` or `reserved` of `options` is unknown: set `measure` to MILLPOND_MEASURE_RESERVED or MILLPOND_MEASURE_ALLOCATED, and `reserved` to zero",
                    ));
                }
            });
            if options.limit != 0 && options.limit != MILLPOND_NO_LIMIT {
                builder = builder.limit(options.limit);
            }
        }
        let budget = Object::Budget(builder.build()?);
        out.set(ptr::without_provenance_mut(handles::add_object(budget)?));
        Ok(())
    })
}

/// Destroys the handle of a budget. The budget stays in effect for the pools and budgets that were created below it.
///
/// Errors: `MILLPOND_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_destroy(budget: *mut millpond_budget) -> millpond_status {
    guard(|| {
        handles::remove(budget.addr(), Kind::Budget)?;
        Ok(())
    })
}

/// Changes the limit of a budget in bytes. A limit below the bytes in use refuses requests until enough is freed.
///
/// Errors: `MILLPOND_INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_set_limit(budget: *mut millpond_budget, limit: u64) -> millpond_status {
    guard(|| {
        of_handle(budget)?.set_limit((limit != MILLPOND_NO_LIMIT).then_some(limit));
        Ok(())
    })
}

/// Writes the figures of a budget to `stats`, whose field `size` the caller has set.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` and `MILLPOND_INVALID_HANDLE`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_get_stats(
    budget: *mut millpond_budget,
    stats: *mut millpond_budget_stats,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { OutStruct::new(stats, "stats") }?;
        let budget = of_handle(budget)?;
        out.set(&millpond_budget_stats {
            size: size_of::<millpond_budget_stats>(),
            used: budget.used(),
            peak: budget.peak(),
            limit: budget.limit().unwrap_or(MILLPOND_NO_LIMIT),
            refusals: budget.refusals(),
        });
        Ok(())
    })
}
