//! Memory of other libraries on the host, through Python's buffer protocol.

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::slice;

/// The bytes of an object with the buffer protocol, in C order.
///
/// Invariant: the view was filled by Python, so its bytes exist until it is released, which happens exactly once.
pub(crate) struct HostBytes<'py> {
    view: Box<ffi::Py_buffer>,
    /// A view is released with the interpreter's lock.
    _py: PhantomData<Python<'py>>,
}

impl<'py> HostBytes<'py> {
    /// Returns the bytes of an object. Fails if their number is not the expected one, or if they are not in C order.
    pub(crate) fn of(array: &Bound<'py, PyAny>, expected: usize) -> PyResult<Self> {
        Self::with(array, expected, ffi::PyBUF_SIMPLE)
    }

    /// Like [`of`](Self::of). Also fails if the bytes cannot be written.
    pub(crate) fn writable(array: &Bound<'py, PyAny>, expected: usize) -> PyResult<Self> {
        Self::with(array, expected, ffi::PyBUF_WRITABLE)
    }

    fn with(array: &Bound<'py, PyAny>, expected: usize, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the interpreter is attached, and the view is to be filled.
        if unsafe { ffi::PyObject_GetBuffer(array.as_ptr(), &raw mut *view, flags) } != 0 {
            return Err(PyErr::fetch(array.py()));
        }
        let host = Self {
            view,
            _py: PhantomData,
        };
        let found = host.len();
        match found == expected {
            true => Ok(host),
            false => Err(PyValueError::new_err(format!(
                "the array on the device has {expected} bytes, but the one on the host has {found}: use arrays of the same size"
            ))),
        }
    }

    fn len(&self) -> usize {
        self.view.len.unsigned_abs()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: by the invariant. As for all libraries that release the interpreter's lock, the program orders the accesses of its threads.
        unsafe { slice::from_raw_parts(self.address(), self.len()) }
    }

    /// Returns the bytes of a writable view.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.view.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.address(), self.len()) }
    }

    /// Returns the address of the first byte, which is not null.
    fn address(&self) -> *mut u8 {
        match self.len() {
            0 => ptr::dangling_mut(),
            _ => self.view.buf.cast(),
        }
    }
}

impl Drop for HostBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: by the invariant. The interpreter is attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}
