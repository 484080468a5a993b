//! Arrays. The driver chooses the layout of an array in memory, so only the bytes of its elements are counted.

use super::{OUT_OF_MEMORY, calls, field, request, value};
use crate::account;
use crate::driver;
use crate::format::Memory;
use crate::live::Space;
use crate::stack;
use std::ffi::{c_int, c_uint, c_void};

/// Returns the bytes of one element.
fn element(format: c_uint, channels: c_uint) -> usize {
    let bytes = match format {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    };
    bytes * channels as usize
}

/// Returns the bytes of a three-dimensional array, and of its smaller mipmap levels.
fn bytes_3d(described: *const c_void, levels: c_uint) -> usize {
    let sides: [usize; 3] = [field(described, 0), field(described, 8), field(described, 16)];
    let element = element(field(described, 24), field(described, 28));
    let level = |level: c_uint| {
        let sides = sides.map(|side| side.checked_shr(level).unwrap_or(0).max(1));
        sides.into_iter().fold(element, usize::saturating_mul)
    };
    (0..levels.clamp(1, 32)).map(level).fold(0, usize::saturating_add)
}

fn create(array: *mut u64, bytes: usize, call: impl FnOnce() -> c_int) -> c_int {
    let request = request(Memory::Array, bytes, bytes as u64);
    if !account::admit(&request) {
        return OUT_OF_MEMORY;
    }
    let result = call();
    account::answered(
        &request,
        Space::Array,
        result,
        if result == 0 { value(array) } else { 0 },
    );
    result
}

fn destroy(array: u64, call: impl FnOnce() -> c_int) -> c_int {
    let freed = account::free(Space::Array, array, 0, stack::capture());
    let result = call();
    if let Some(freed) = freed {
        freed.answered(result);
    }
    result
}

calls! {
    cuArrayCreate_v2(array: *mut u64, described: *const c_void) {
        let sides: [usize; 2] = [field(described, 0), field(described, 8)];
        let element = element(field(described, 16), field(described, 20));
        let bytes = sides.into_iter().fold(element, |bytes, side| bytes.saturating_mul(side.max(1)));
        create(array, bytes, || driver::cuArrayCreate_v2(array, described))
    }
    cuArray3DCreate_v2(array: *mut u64, described: *const c_void) {
        create(array, bytes_3d(described, 1), || driver::cuArray3DCreate_v2(array, described))
    }
    cuArrayDestroy(array: u64) {
        destroy(array, || driver::cuArrayDestroy(array))
    }
    cuMipmappedArrayCreate(array: *mut u64, described: *const c_void, levels: c_uint) {
        let bytes = bytes_3d(described, levels);
        create(array, bytes, || driver::cuMipmappedArrayCreate(array, described, levels))
    }
    cuMipmappedArrayDestroy(array: u64) {
        destroy(array, || driver::cuMipmappedArrayDestroy(array))
    }
}
