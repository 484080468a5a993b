//! Blocks of pools, which Python accesses through its buffer protocol.

use millpond::Buffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// A block of a pool. It goes back to the pool when neither the block nor a view of it is used any more.
///
/// Invariant: `address` is the address of the `bytes` bytes of `memory`, which are neither read, written, moved nor freed by this crate
/// until the block is dropped. A view holds a reference to the block, so no view outlives it.
#[pyclass(frozen, module = "millpond._millpond")]
pub(crate) struct Block {
    address: usize,
    bytes: usize,
    #[expect(dead_code, reason = "held for its drop")]
    memory: Memory,
    /// Live blocks are listed through the objects of pools, so a pool's object lives as long as its blocks.
    #[expect(dead_code, reason = "held for its drop")]
    pool: Py<PyAny>,
}

/// The memory of a block.
pub(crate) enum Memory {
    Zeroed(Buffer<u8>),
    Uninit(Buffer<MaybeUninit<u8>>),
}

impl Block {
    pub(crate) fn new(mut memory: Memory, pool: Py<PyAny>) -> Self {
        let (address, bytes) = match &mut memory {
            Memory::Zeroed(buffer) => (buffer.as_mut_ptr().expose_provenance(), buffer.len()),
            Memory::Uninit(buffer) => (buffer.as_mut_ptr().expose_provenance(), buffer.len()),
        };
        Self {
            address,
            bytes,
            memory,
            pool,
        }
    }
}

#[pymethods]
impl Block {
    /// The number of bytes.
    fn __len__(&self) -> usize {
        self.bytes
    }

    /// The address of the first byte, a multiple of 64.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Fills a view through which Python reads and writes the bytes.
    ///
    /// # Safety
    /// `view` is null or a structure to be filled, as Python guarantees.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let block = slf.get();
        let bytes = ffi::Py_ssize_t::try_from(block.bytes)?;
        let address = std::ptr::with_exposed_provenance_mut(block.address);
        // SAFETY: the view is to be filled. The bytes stay at their address as long as `slf` lives, and the view gets a reference to `slf`.
        // By the invariant, this crate does not use them. Python's other views are used under the rules of their libraries.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, bytes, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
