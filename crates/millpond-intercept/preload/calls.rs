//! The functions that replace those of the driver in a program. Each calls the driver's function of the same name.
//!
//! # Invariant
//! A pointer from the program is null, or points to data that the driver reads or writes in the same call.

mod array;
mod context;
mod graph;
mod host;
mod lookup;
mod pages;
mod plain;
mod pool;

use crate::account::Request;
use crate::driver::{self, Slot};
use crate::format::Memory;
use crate::{stack, state};
use std::ffi::{CStr, c_int};

/// The driver's code `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// A function of this library, and the driver's function that it replaces.
pub(crate) struct Hook {
    pub(crate) slot: &'static Slot,
    pub(crate) function: *const (),
}

/// Defines functions with the driver's interface. A function called while the thread is inside another, or in a process that is not
/// recorded, only calls the driver.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            /// Replaces the driver's function of this name.
            ///
            /// # Safety
            /// The contract of the driver's function.
            #[cfg_attr(preloaded, unsafe(no_mangle))]
            #[allow(non_snake_case, unreachable_pub)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                let Some(_inside) = crate::state::Inside::enter() else {
                    return crate::driver::$name($($argument),*);
                };
                $body
            }
        )*
        /// The functions of this file.
        pub(super) const HOOKS: &[crate::calls::Hook] = &[
            $(crate::calls::Hook {
                slot: &crate::driver::slots::$name,
                function: $name as *const (),
            }),*
        ];
    };
}
use calls;

/// Returns all functions of this library.
pub(crate) fn hooks() -> impl Iterator<Item = &'static Hook> + Clone {
    const FILES: [&[Hook]; 8] = [
        array::HOOKS,
        context::HOOKS,
        graph::HOOKS,
        host::HOOKS,
        lookup::HOOKS,
        pages::HOOKS,
        plain::HOOKS,
        pool::HOOKS,
    ];
    FILES.into_iter().flatten()
}

/// Returns the function of this library that replaces the driver's function of this name.
pub(crate) fn hook(name: &CStr) -> Option<&'static Hook> {
    hooks().find(|hook| hook.slot.name == name)
}

/// Returns the value behind a pointer of the program, or a default if the pointer is null.
fn value<T: Copy + Default>(at: *const T) -> T {
    if at.is_null() {
        return T::default();
    }
    // SAFETY: by the invariant of this module.
    unsafe { at.read_unaligned() }
}

/// Returns a value at an offset in a structure of the program.
fn field<T: Copy + Default>(of: *const std::ffi::c_void, offset: usize) -> T {
    if of.is_null() {
        return T::default();
    }
    value(of.wrapping_byte_add(offset).cast())
}

/// Writes a value to an address of the program, unless the address is null.
fn set<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: by the invariant of this module.
        unsafe { at.write_unaligned(value) };
    }
}

/// Returns the current context and its device.
fn current() -> (u64, i32) {
    let mut context = 0;
    if driver::cuCtxGetCurrent(&raw mut context) != 0 || context == 0 {
        return (0, 0);
    }
    let known = state::with(|state| state.account.device_of_context(context)).flatten();
    (context, known.unwrap_or_else(|| meet(context)))
}

/// Queries the device of the current context, which was not known before, and records how much memory of the device is in use.
#[cold]
fn meet(context: u64) -> i32 {
    let mut device = 0;
    if driver::cuCtxGetDevice(&raw mut device) != 0 {
        return 0;
    }
    let _ = state::with(|state| state.account.keep_context(context, Some(device)));
    context::measure(device);
    device
}

/// Returns a request for memory that belongs to the current context.
#[inline(never)]
fn request(memory: Memory, bytes: usize, taken: u64) -> Request {
    let (context, device) = current();
    Request {
        memory,
        device: if memory.is_host() { -1 } else { device },
        bytes: taken,
        requested: bytes as u64,
        stream: 0,
        owner: context,
        stack: stack::capture(),
    }
}
