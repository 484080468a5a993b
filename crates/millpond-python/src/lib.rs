//! The compiled part of the Python package `millpond`: the command, and recordings. The Python code is in `python/millpond`.
//!
//! ```text
//!   recording   recordings in memory, and their answers
//!   table       tables for other libraries, through Arrow's C interface
//!   work        long work without the interpreter's lock
//! ```
#![forbid(unsafe_code)]

mod recording;
mod table;
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
    use super::{command, recording::Answer, recording::Recording, table::Table};
}
