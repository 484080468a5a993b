//! The compiled part of the Python package `millpond`: the command, and answers to recordings. The Python code is in `python/millpond`.
#![forbid(unsafe_code)]

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs the command `millpond` with these arguments. Returns the exit code.
#[pyfunction]
fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let all = std::iter::once("millpond".into()).chain(arguments);
    py.detach(|| millpond_cli::run(all))
}

/// Replays a recording and writes a page about it. Returns for each device the sentences of the answer and the path of the page.
/// Raises a `RuntimeError` if the recording cannot be replayed, or if the page cannot be written.
#[pyfunction]
fn answers(py: Python<'_>, recording: PathBuf, page: PathBuf) -> PyResult<Vec<(Vec<String>, PathBuf)>> {
    let answers = py.detach(|| millpond_cli::answers(&recording, &page));
    let answers = answers.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(answers
        .into_iter()
        .map(|answer| (answer.sentences, answer.page))
        .collect())
}

#[pymodule]
mod _millpond {
    #[pymodule_export]
    use super::{answers, command};
}
