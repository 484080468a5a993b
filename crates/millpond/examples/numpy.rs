//! A library for Python's `ctypes` whose tensors NumPy has without a copy, and which has NumPy's arrays without one: DLPack
//! both ways. `numpy.py` beside this file is the other half, and proves it:
//!
//! ```console
//! $ cargo build -p millpond --features dlpack --example numpy
//! $ python3 crates/millpond/examples/numpy.py target/debug/examples/libnumpy.so
//! ```
//!
//! Every function takes pointers that another has given, or null; what fails gives null or false, and `pond_error` says why.
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

/// The value, or nothing and a note of why.
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

/// A matrix of 0, 1, 2 and so on, of a type by name; of truth values false, true, false and so on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_ramp(dtype: *const c_char, rows: usize, columns: usize) -> *mut Tensor {
    // SAFETY: Python gives a name.
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

/// Another tensor of the same elements: all, turned, the last column, every other column but of the first row, the second
/// row three times, none, one, all in three dimensions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_view(tensor: *const Tensor, how: u32) -> *mut Tensor {
    // SAFETY: it is one.
    handed(seen(unsafe { &*tensor }, how))
}

/// Forgets a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_drop(tensor: *mut Tensor) {
    // SAFETY: it is one, which nobody uses any more.
    drop(unsafe { Box::from_raw(tensor) });
}

/// A tensor as it crosses: shared, to be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_to_dlpack(tensor: *const Tensor) -> *mut DLManagedTensorVersioned {
    // SAFETY: it is one.
    noted(unsafe { &*tensor }.to_dlpack()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// The same, given away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_into_dlpack(tensor: *mut Tensor) -> *mut DLManagedTensorVersioned {
    // SAFETY: it is one, which nobody uses any more.
    let tensor = *unsafe { Box::from_raw(tensor) };
    noted(tensor.into_dlpack()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// The same in the older form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_into_dlpack_legacy(tensor: *mut Tensor) -> *mut DLManagedTensor {
    // SAFETY: it is one, which nobody uses any more.
    let tensor = *unsafe { Box::from_raw(tensor) };
    noted(tensor.into_dlpack_legacy()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// A copy, given away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_copy_to_dlpack(tensor: *const Tensor) -> *mut DLManagedTensorVersioned {
    // SAFETY: it is one.
    noted(unsafe { &*tensor }.copy_to_dlpack()).map_or(ptr::null_mut(), |managed| managed.into_raw())
}

/// For a capsule that nobody has opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: it is one, which nobody uses any more.
    let deleter = unsafe { (*managed).deleter };
    if let Some(deleter) = deleter {
        // SAFETY: as above.
        unsafe { deleter(managed) };
    }
}

/// A tensor of another library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_from_dlpack(managed: *mut DLManagedTensorVersioned) -> *mut Tensor {
    // SAFETY: Python gives what an array gave it, and leaves it alone while it is written here.
    handed(unsafe { Tensor::from_dlpack(managed) })
}

/// The same of the older form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_from_dlpack_legacy(managed: *mut DLManagedTensor) -> *mut Tensor {
    // SAFETY: as above.
    handed(unsafe { Tensor::from_dlpack(managed) })
}

/// A copy of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_copy_from_dlpack(managed: *mut DLManagedTensorVersioned) -> *mut Tensor {
    let copied = pool().map_err(Failure::from).and_then(|pool| {
        // SAFETY: as above.
        unsafe { Tensor::copy_from_dlpack_in(pool, managed) }.map_err(Failure::from)
    });
    handed(copied)
}

/// Where the first element lies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_address(tensor: *const Tensor) -> usize {
    // SAFETY: it is one.
    let tensor = unsafe { &*tensor };
    tensor.storage().pointer().addr().get() + tensor.offset() * tensor.dtype().size()
}

/// The elements in order, as numbers; answers how many there are. Of complex numbers the real part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_numbers(tensor: *const Tensor, numbers: *mut f64, room: usize) -> usize {
    // SAFETY: it is one.
    let tensor = unsafe { &*tensor };
    let flat = if tensor.dtype() == DType::Bool {
        let bools = tensor.to_bools().unwrap_or_default();
        bools.into_iter().map(f64::from).collect()
    } else {
        let wide = noted(tensor.cast(DType::F64).and_then(|wide| wide.to_vec::<f64>()));
        wide.unwrap_or_default()
    };
    for (at, number) in flat.iter().enumerate().take(room) {
        // SAFETY: Python says that there is room.
        unsafe { *numbers.wrapping_add(at) = *number };
    }
    flat.len()
}

/// Writes a number to each element.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pond_fill(tensor: *mut Tensor, number: f64) -> bool {
    // SAFETY: it is one.
    noted(unsafe { &mut *tensor }.fill(number)).is_some()
}

/// Bytes that are in use, as the pool counts them.
#[unsafe(no_mangle)]
pub extern "C" fn pond_requested() -> u64 {
    pool().map_or(0, |pool| pool.stats().requested.current)
}

/// Bytes of other libraries that tensors stand on.
#[unsafe(no_mangle)]
pub extern "C" fn pond_foreign() -> u64 {
    millpond::foreign_memory().bytes
}

/// What went wrong last on this thread; for as long as nothing else does.
#[unsafe(no_mangle)]
pub extern "C" fn pond_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}
