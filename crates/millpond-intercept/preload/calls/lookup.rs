//! The driver's own lookup of functions.

use super::calls;
use crate::driver;
use crate::lookup;
use std::ffi::{c_char, c_int, c_void};

calls! {
    cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
        let result = driver::cuGetProcAddress(name, function, version, flags);
        if result == 0 {
            lookup::replace(name, function, version, flags);
        }
        result
    }
    cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int
    ) {
        let result = driver::cuGetProcAddress_v2(name, function, version, flags, status);
        if result == 0 {
            lookup::replace(name, function, version, flags);
        }
        result
    }
}
