//! The compiled part of the Python package `millpond`: the command, recordings, and pools. The Python code is in `python/millpond`.
//!
//! ```text
//!   recording   recordings in memory, and answers to questions about them
//!   pools       pools, budgets and recordings of them
//!   limits      limits of tests
//!   block       blocks of pools as memory for Python
//!   buffer      memory of other libraries on the host
//!   devices     arrays in a device's memory
//!   dlpack      exchange of arrays with other libraries through DLPack
//!   stream      streams of other libraries
//!   plugins     pools from which PyTorch allocates
//!   numpy       a pool from which NumPy allocates the data of arrays
//!   table       tables for other libraries, through Arrow's C interface
//!   work        long work without the interpreter's lock
//! ```

mod block;
mod buffer;
#[forbid(unsafe_code)]
mod devices;
mod dlpack;
#[forbid(unsafe_code)]
mod limits;
mod numpy;
#[forbid(unsafe_code)]
mod plugins;
#[forbid(unsafe_code)]
mod pools;
#[forbid(unsafe_code)]
mod recording;
mod stream;
#[forbid(unsafe_code)]
mod table;
#[forbid(unsafe_code)]
mod work;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command `millpond` with these arguments. Returns the exit code.
#[pyfunction]
fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let all = std::iter::once("millpond".into()).chain(arguments);
    py.detach(|| millpond_cli::run(all))
}

#[pymodule]
mod _millpond {
    #[pymodule_export]
    use super::block::Block;
    #[pymodule_export]
    use super::command;
    #[pymodule_export]
    use super::devices::{DeviceArray, device_array, device_copy};
    #[pymodule_export]
    use super::limits::LimitsScope;
    #[pymodule_export]
    use super::numpy::{NumpyHandler, set_numpy_handler, take_numpy_refusal};
    #[pymodule_export]
    use super::plugins::{
        plug, plugged, plugged_devices, private_stats, reset_private_peaks, set_thread_tag,
    };
    #[pymodule_export]
    use super::pools::{Budget, Pool, Recorder, mark, refusals};
    #[pymodule_export]
    use super::recording::{Answer, Recording};
    #[pymodule_export]
    use super::table::Table;
}
