//! A library for Python's `ctypes` that exchanges tensors with NumPy in both directions by DLPack, without a copy. The
//! script `numpy.py` in the same directory is the other half and verifies it:
//!
//! ```console
//! $ cargo build -p millpond --features dlpack --example numpy
//! $ python3 crates/millpond/examples/numpy.py target/debug/examples/libnumpy.so
//! ```
//!
//! Every function takes pointers that another function has returned, or null. On failure it returns null or false, and
//! `pond_error` returns the reason.
#![expect(
    clippy::missing_safety_doc,
    reason = "all of them are called from Python, with what the others gave"
)]

use millpond::dlpack::{DLManagedTensor, DLManagedTensorVersioned};
use millpond::{DType, Pool, Tensor, TensorError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::ptr;
use std::sync::OnceLock;

type Failure = Box<dyn std::error::Error>;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Returns the value, or records the error for `pond_error` and returns `None`.
fn noted<T, E: Display>(result: Result<T, E>) -> Option<T> {
    let why = match result {
        Ok(value) => return Some(value),
        Err(why) => why,
    };
    let text = CString::new(why.to_string()).unwrap_or_default();
    ERROR.with_borrow_mut(|error| *error = text);
    None
}

fn handed<T, E: Display>(result: Result<T, E>) -> *mut T {
    noted(result).map_or(ptr::null_mut(), |value| Box::into_raw(Box::new(value)))
}

fn pool() -> Result<&'static Pool, String> {
    static POOL: OnceLock<Result<Pool, String>> = OnceLock::new();
    let pool = POOL.get_or_init(|| Pool::host().map_err(|error| error.to_string()));
    pool.as_ref().map_err(Clone::clone)
}

fn ramp(dtype: &str, rows: usize, columns: usize) -> Result<Tensor, Failure> {
    let dtype: DType = dtype.parse()?;
    let mut tensor = Tensor::zeros_in(pool()?, [rows, columns], dtype)?;
    let shape = [rows, columns];
    match dtype {
        DType::Bool => {
            for at in (1..rows * columns).step_by(2) {
                tensor.view_mut()?.set(&[at / columns, at % columns], true)?;
            }
        }
        _ => tensor.copy_from(
            &*Tensor::arange(0.0, (rows * columns) as f64, 1.0)?
                .reshape(shape)?
                .cast(dtype)?,
        )?,
    }
    Ok(tensor)
}

/// Returns a matrix of 0, 1, 2 and so on, of a type given by name. Truth values alternate between false and true.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_ramp(dtype: *const c_char, rows: usize, columns: usize) -> *mut Tensor {
    // SAFETY: Python passes a C string.
    let dtype = unsafe { CStr::from_ptr(dtype) };
    handed(
        dtype
            .to_str()
            .map_err(Into::into)
            .and_then(|dtype| ramp(dtype, rows, columns)),
    )
}

fn seen(tensor: &Tensor, how: u32) -> Result<Tensor, TensorError> {
    let columns = tensor.size(1)?;
    match how {
        0 => Ok(tensor.clone()),
        1 => tensor.transpose(0, 1),
        2 => tensor.select(1, columns - 1),
        3 => tensor.slice(0, 1..)?.step(1, 2),
        4 => tensor.select(0, 1)?.broadcast_to([3, columns]),
        5 => tensor.slice(1, columns..),
        6 => tensor.select(0, 1)?.select(0, 1),
        _ => tensor.unsqueeze(1),
    }
}

/// Returns another tensor of the same elements: all, transposed, the last column, every other column without the first
/// row, the second row three times, none, one, or all in three dimensions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_view(tensor: *const Tensor, how: u32) -> *mut Tensor {
    // SAFETY: the pointer is to a tensor.
    handed(seen(unsafe { &*tensor }, how))
}

/// Drops a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_drop(tensor: *mut Tensor) {
    // SAFETY: the pointer is to a tensor that is not used any more.
    drop(unsafe { Box::from_raw(tensor) });
}

/// Exports a tensor as shared and read-only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_to_dlpack(tensor: *const Tensor) -> *mut DLManagedTensorVersioned {
    // SAFETY: the pointer is to a tensor.
    noted(unsafe { &*tensor }.to_dlpack()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// Exports a tensor and transfers it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_into_dlpack(tensor: *mut Tensor) -> *mut DLManagedTensorVersioned {
    // SAFETY: the pointer is to a tensor that is not used any more.
    let tensor = *unsafe { Box::from_raw(tensor) };
    noted(tensor.into_dlpack()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// Exports a tensor in the older form and transfers it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_into_dlpack_legacy(tensor: *mut Tensor) -> *mut DLManagedTensor {
    // SAFETY: the pointer is to a tensor that is not used any more.
    let tensor = *unsafe { Box::from_raw(tensor) };
    noted(tensor.into_dlpack_legacy()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// Exports a copy of a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_copy_to_dlpack(tensor: *const Tensor) -> *mut DLManagedTensorVersioned {
    // SAFETY: the pointer is to a tensor.
    noted(unsafe { &*tensor }.copy_to_dlpack()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// Deletes the structure of a capsule that was not consumed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the pointer is to a structure that is not used any more.
    let deleter = unsafe { (*managed).deleter };
    if let Some(deleter) = deleter {
        // SAFETY: as above.
        unsafe { deleter(managed) };
    }
}

/// Imports a tensor of another library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_from_dlpack(managed: *mut DLManagedTensorVersioned) -> *mut Tensor {
    // SAFETY: Python passes a structure that an array returned, and does not use the array while it is written here.
    handed(unsafe { Tensor::from_dlpack(managed) })
}

/// Imports a tensor of another library in the older form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_from_dlpack_legacy(managed: *mut DLManagedTensor) -> *mut Tensor {
    // SAFETY: as above.
    handed(unsafe { Tensor::from_dlpack(managed) })
}

/// Imports a copy of another library's tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_copy_from_dlpack(managed: *mut DLManagedTensorVersioned) -> *mut Tensor {
    let copied = pool().map_err(Failure::from).and_then(|pool| {
        // SAFETY: as above.
        unsafe { Tensor::copy_from_dlpack_in(pool, managed) }.map_err(Failure::from)
    });
    handed(copied)
}

/// Returns the address of the first element.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_address(tensor: *const Tensor) -> usize {
    // SAFETY: the pointer is to a tensor.
    let tensor = unsafe { &*tensor };
    tensor.storage().pointer().addr().get() + tensor.offset() * tensor.dtype().size()
}

/// Writes the elements in order, as numbers, and returns how many there are. Complex numbers are written as their real
/// part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_numbers(tensor: *const Tensor, numbers: *mut f64, room: usize) -> usize {
    // SAFETY: the pointer is to a tensor.
    let tensor = unsafe { &*tensor };
    let flat = if tensor.dtype() == DType::Bool {
        let bools = tensor.to_bools().unwrap_or_default();
        bools.into_iter().map(f64::from).collect()
    } else {
        let wide = noted(tensor.cast(DType::F64).and_then(|wide| wide.to_vec::<f64>()));
        wide.unwrap_or_default()
    };
    for (at, number) in flat.iter().enumerate().take(room) {
        // SAFETY: Python guarantees that there is room.
        unsafe { *numbers.wrapping_add(at) = *number };
    }
    flat.len()
}

/// Writes a number to each element.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_fill(tensor: *mut Tensor, number: f64) -> bool {
    // SAFETY: the pointer is to a tensor.
    noted(unsafe { &mut *tensor }.fill(number)).is_some()
}

/// Returns the bytes in use, as counted by the pool.
#[unsafe(no_mangle)]
pub extern "C" fn pond_requested() -> u64 {
    pool().map_or(0, |pool| pool.stats().requested.current)
}

/// Returns the bytes of other libraries' memory that tensors use.
#[unsafe(no_mangle)]
pub extern "C" fn pond_foreign() -> u64 {
    millpond::source::foreign_memory().bytes
}

/// Returns the last error of this thread. The pointer is valid until the next error.
#[unsafe(no_mangle)]
pub extern "C" fn pond_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}
