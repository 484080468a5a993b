//! Streams of other libraries.

use millpond::cuda::{CudaDevice, CudaError, CudaStream};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// The driver's handles of the legacy default stream, and of the per-thread default stream.
const LEGACY: [usize; 2] = [0, 1];
const PER_THREAD: usize = 2;

/// The functions that return the stream that a library uses now: its module, and the path of the function.
const CURRENT: [(&str, [&str; 2]); 2] = [
    ("torch", ["cuda", "current_stream"]),
    ("cupy", ["cuda", "get_current_stream"]),
];

/// Returns the stream of an object of another library, which is kept as long as the stream is in use. `None` is the default stream.
pub(crate) fn of(device: &CudaDevice, stream: Option<&Bound<'_, PyAny>>) -> PyResult<CudaStream> {
    let Some(stream) = stream else {
        return Ok(CudaStream::legacy(device));
    };
    let handle = if let Ok(handle) = stream.extract::<usize>() {
        if handle > PER_THREAD {
            return Err(PyTypeError::new_err(
                "a number does not keep a stream alive: give the stream object of PyTorch, CuPy, Numba or cuda.core",
            ));
        }
        handle
    } else if let Ok(answer) = stream.call_method0("__cuda_stream__") {
        answer.get_item(1)?.extract()?
    } else {
        let names = ["cuda_stream", "ptr"];
        let handle = names.iter().find_map(|name| stream.getattr(*name).ok());
        handle.and_then(|handle| handle.extract().ok()).ok_or_else(|| {
            let kind = stream.get_type();
            PyTypeError::new_err(format!(
                "a stream is an object with __cuda_stream__, and not {kind}"
            ))
        })?
    };
    if LEGACY.contains(&handle) {
        return Ok(CudaStream::legacy(device));
    }
    expect_shared(handle)?;
    let keeper = Arc::new(stream.clone().unbind());
    // SAFETY: the object has a stream of the primary context, as the libraries that have such objects use no other context, and keeps it
    // alive. The stream is not the per-thread default stream.
    Ok(unsafe { CudaStream::kept_by(device, pointer(handle), keeper) })
}

/// Calls a function with the stream of a handle, for which the caller of this module has promised that it lives until the call returns.
/// No handle, and -1, mean that there is nothing to do.
pub(crate) fn with_handle(
    device: &CudaDevice,
    handle: Option<isize>,
    order: impl FnOnce(&CudaStream) -> Result<(), CudaError>,
) -> PyResult<()> {
    let stream = match handle.map(usize::try_from) {
        // The standard's number for a consumer that needs no order.
        Some(Err(_)) => return Ok(()),
        None => CudaStream::legacy(device),
        Some(Ok(handle)) if LEGACY.contains(&handle) => CudaStream::legacy(device),
        Some(Ok(handle)) => {
            expect_shared(handle)?;
            // SAFETY: by the standard, a consumer gives a stream of the device's context that lives during the call. No pool gets it.
            unsafe { CudaStream::from_raw(device, pointer(handle)) }
        }
    };
    order(&stream).map_err(failed)
}

/// Returns the streams that PyTorch and CuPy use now, if the program uses these libraries.
pub(crate) fn current(py: Python<'_>, device: &CudaDevice) -> Vec<CudaStream> {
    let Ok(modules) = py.import("sys").and_then(|sys| sys.getattr("modules")) else {
        return Vec::new();
    };
    let found = CURRENT.iter().filter_map(|(library, [module, function])| {
        let cuda = modules.get_item(library).ok()?.getattr(*module).ok()?;
        // PyTorch would initialise CUDA.
        let is_ready = cuda
            .call_method0("is_initialized")
            .map_or(Ok(true), |ready| ready.is_truthy());
        let stream = is_ready
            .is_ok_and(|ready| ready)
            .then(|| cuda.call_method1(*function, (device.number(),)).ok());
        of(device, stream.flatten().as_ref()).ok()
    });
    found.collect()
}

fn pointer(handle: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(handle)
}

/// Refuses the per-thread default stream.
fn expect_shared(handle: usize) -> PyResult<()> {
    match handle == PER_THREAD {
        true => Err(PyTypeError::new_err(
            "the per-thread default stream is another stream on each thread: use a stream object or the default stream",
        )),
        false => Ok(()),
    }
}

/// Returns the exception for an error of the driver.
pub(crate) fn failed(error: CudaError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
