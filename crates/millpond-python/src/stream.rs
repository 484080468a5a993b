//! Streams of other libraries.
//!
//! A driver may crash if it is given a stream that has ended. So a pool gets a stream only with the object that keeps it alive. A stream
//! that is known only by its number is used only during one call. The documentation of the package requires that a stream which its
//! object does not own, such as an `ExternalStream`, lives as long as the pool.

use millpond::cuda::{CudaDevice, CudaError, CudaStream};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// The driver's handles of the legacy default stream, and of the per-thread default stream.
const LEGACY: [usize; 2] = [0, 1];
const PER_THREAD: usize = 2;

/// The standard's number for a consumer that needs no order.
const NO_ORDER: isize = -1;

/// The functions that return the current stream of a library: the module of the library, and the path of the function.
const CURRENT: [(&str, [&str; 2]); 2] = [
    ("torch", ["cuda", "current_stream"]),
    ("cupy", ["cuda", "get_current_stream"]),
];

/// Returns the stream of another library's object. The object is kept as long as the stream is in use. `None` is the default stream.
pub(crate) fn of(device: &CudaDevice, stream: Option<&Bound<'_, PyAny>>) -> PyResult<CudaStream> {
    let Some(stream) = stream else {
        return Ok(CudaStream::legacy(device));
    };
    let handle = handle_of(stream)?;
    if LEGACY.contains(&handle) {
        return Ok(CudaStream::legacy(device));
    }
    expect_shared(handle)?;
    if let Some(other) = device_of(stream).filter(|other| *other != device.number()) {
        return Err(PyValueError::new_err(format!(
            "the stream belongs to cuda:{other}, but the pool belongs to cuda:{}: use a stream of the pool's device",
            device.number()
        )));
    }
    let keeper = Arc::new(stream.clone().unbind());
    // SAFETY: the libraries that have such objects use the primary context only. The keeper is the object, so the stream lives until the
    // keeper is dropped (see the module). It is not the per-thread default stream.
    Ok(unsafe { CudaStream::kept_by(device, pointer(handle), keeper) })
}

/// Returns the driver's handle of a stream object.
fn handle_of(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    if let Ok(handle) = stream.extract::<usize>() {
        return match handle <= PER_THREAD {
            true => Ok(handle),
            false => Err(PyTypeError::new_err(
                "a number does not keep a stream alive: pass the stream object of PyTorch, CuPy, Numba or cuda.core",
            )),
        };
    }
    if stream.hasattr("__cuda_stream__")? {
        return stream.call_method0("__cuda_stream__")?.get_item(1)?.extract();
    }
    for name in ["cuda_stream", "ptr"] {
        if stream.hasattr(name)? {
            return stream.getattr(name)?.extract();
        }
    }
    let kind = stream.get_type();
    Err(PyTypeError::new_err(format!(
        "expected a stream object of PyTorch, CuPy, Numba or cuda.core, not {kind}"
    )))
}

/// Returns the number of the device of a stream object, if the object has it.
fn device_of(stream: &Bound<'_, PyAny>) -> Option<u32> {
    let names = [&["device_index"][..], &["device_id"], &["device", "device_id"]];
    names.iter().find_map(|path| {
        let mut found = stream.clone();
        for name in *path {
            found = found.getattr(*name).ok()?;
        }
        found.extract().ok()
    })
}

/// Calls a function with the stream of a handle. By the standard, the stream lives until the call returns. `None` is the default stream.
/// The function is not called if the consumer needs no order.
pub(crate) fn with_handle(
    device: &CudaDevice,
    handle: Option<isize>,
    order: impl FnOnce(&CudaStream) -> Result<(), CudaError>,
) -> PyResult<()> {
    let handle = match handle {
        Some(NO_ORDER) => return Ok(()),
        Some(handle) => usize::try_from(handle)
            .map_err(|_| PyValueError::new_err(format!("{handle} is not the handle of a stream")))?,
        None => 0,
    };
    let stream = match LEGACY.contains(&handle) {
        true => CudaStream::legacy(device),
        false => {
            expect_shared(handle)?;
            // SAFETY: by the standard, a consumer gives a stream of the device's context that lives during the call. No pool gets it.
            unsafe { CudaStream::from_raw(device, pointer(handle)) }
        }
    };
    order(&stream).map_err(failed)
}

/// Returns the current streams of PyTorch and CuPy, if the program uses these libraries.
pub(crate) fn current(py: Python<'_>, device: &CudaDevice) -> PyResult<Vec<CudaStream>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let mut found = Vec::new();
    for (library, [module, function]) in CURRENT {
        let module = modules
            .get_item(library)
            .and_then(|library| library.getattr(module));
        let Ok(cuda) = module else { continue };
        // If PyTorch has not initialised CUDA, the call would do so.
        let is_ready =
            !cuda.hasattr("is_initialized")? || cuda.call_method0("is_initialized")?.is_truthy()?;
        if is_ready && cuda.hasattr(function)? {
            let stream = cuda.call_method1(function, (device.number(),))?;
            found.push(of(device, Some(&stream))?);
        }
    }
    Ok(found)
}

fn pointer(handle: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(handle)
}

/// Refuses the per-thread default stream.
fn expect_shared(handle: usize) -> PyResult<()> {
    match handle == PER_THREAD {
        true => Err(PyValueError::new_err(
            "the per-thread default stream is a different stream on each thread: use a stream object or the default stream",
        )),
        false => Ok(()),
    }
}

/// Returns the exception for an error of the driver.
pub(crate) fn failed(error: CudaError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
