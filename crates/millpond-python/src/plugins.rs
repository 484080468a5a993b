//! Pools as the memory of PyTorch, and tags for the requests of other libraries.
//!
//! PyTorch calls functions of the C library, which this library contains. These functions use one pool for each device.

use crate::pools::{Figures, Pool, figures};
use millpond::Tag;
use millpond::ledger::TagScope;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::RefCell;

thread_local! {
    /// The tag of this thread for requests that come from outside of Python.
    static TAG: RefCell<Option<TagScope>> = const { RefCell::new(None) };
}

/// Makes PyTorch allocate from a pool on the pool's device.
#[pyfunction]
pub(crate) fn plug(pool: &Bound<'_, Pool>) -> PyResult<()> {
    let device = pool.get().device()?;
    // Dropping the last handle of the previous pool waits for streams.
    let plugged = pool.py().detach(|| millpond_c::plugin::set_pool(device));
    plugged.map_err(PyRuntimeError::new_err)
}

/// Returns the pool from which PyTorch allocates on a device, and creates it if there is none.
#[pyfunction]
pub(crate) fn plugged(py: Python<'_>, device: u32) -> PyResult<Pool> {
    let pool = py.detach(|| millpond_c::plugin::plugged_pool(device));
    pool.map(Pool::of_device).map_err(PyRuntimeError::new_err)
}

/// Returns the figures of PyTorch's private pools on a device.
#[pyfunction]
pub(crate) fn private_stats(py: Python<'_>, device: u32) -> Vec<Figures> {
    let stats = py.detach(|| millpond_c::plugin::private_stats(device));
    stats.iter().map(figures).collect()
}

/// Returns the devices on which PyTorch allocates from a pool.
#[pyfunction]
pub(crate) fn plugged_devices() -> Vec<u32> {
    millpond_c::plugin::plugged_devices()
}

/// Sets the peaks of PyTorch's private pools on a device to the present figures.
#[pyfunction]
pub(crate) fn reset_private_peaks(py: Python<'_>, device: u32) {
    py.detach(|| millpond_c::plugin::reset_private_peaks(device));
}

/// Sets the tag of this thread for requests that come from outside of Python. An empty text removes the tag.
#[pyfunction]
pub(crate) fn set_thread_tag(name: &str) {
    TAG.with(|tag| {
        // The previous scope ends first, because scopes nest.
        *tag.borrow_mut() = None;
        if !name.is_empty() {
            *tag.borrow_mut() = Some(Tag::new(name).enter());
        }
    });
}
