//! Runs long work without the interpreter's lock, so that other Python threads run and Ctrl-C interrupts it. Shows its progress.

use millpond_cli::{Error, Work};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The interval at which signals are checked.
const PATIENCE: Duration = Duration::from_millis(50);

/// The number of checks for signals before progress is shown, and between two updates after that.
const LONG: u32 = 10;
const UPDATE: u32 = 4;

/// Runs `call` on a new thread. If a signal handler raises an exception, such as `KeyboardInterrupt`, the work is interrupted, and
/// the exception is returned at once.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce(&Work) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let work = Work::default();
    let theirs = work.clone();
    let (done, results) = mpsc::channel();
    // The result of interrupted work is not received.
    let begin = move || drop(done.send(call(&theirs)));
    thread::Builder::new().name("millpond".to_owned()).spawn(begin)?;
    let mut shown = None;
    let result = wait(py, &work, results, &mut shown);
    if result.is_err() {
        work.interrupt();
    }
    if let Some(shown) = shown {
        shown.call_method0("close")?;
    }
    result
}

/// Waits for the result of work. Shows its progress in `shown` if the work takes long and the program runs in a notebook.
fn wait<'py, T: Send + 'static>(
    py: Python<'py>,
    work: &Work,
    mut results: Receiver<Result<T, Error>>,
    shown: &mut Option<Bound<'py, PyAny>>,
) -> PyResult<T> {
    let mut looked = 0u32;
    loop {
        let result;
        (result, results) = py.detach(move || (results.recv_timeout(PATIENCE), results));
        match result {
            Ok(result) => return result.map_err(raised),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "internal error in millpond, shown on standard error; please report it",
                ));
            }
        }
        py.check_signals()?;
        looked = looked.wrapping_add(1);
        if looked >= LONG
            && looked.is_multiple_of(UPDATE)
            && let Some(stage) = work.stage()
        {
            // This call also checks for signals. It raises no other exceptions.
            let show = match shown {
                Some(shown) => shown,
                None => shown.insert(py.import("millpond._notebook")?.getattr("Progress")?.call0()?),
            };
            show.call_method1("show", (stage.text, stage.share))?;
        }
    }
}

/// Returns the exception for an error: that of the system, or a `ValueError`.
fn raised(error: Error) -> PyErr {
    match error.io() {
        Some((io, path)) if io.raw_os_error().is_some() => os_error(io, path),
        Some(_) => PyOSError::new_err(error.to_string()),
        None => PyValueError::new_err(error.to_string()),
    }
}

/// Returns the exception for an error of the system, with its number and the path.
pub(crate) fn os_error(error: &io::Error, path: &Path) -> PyErr {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            // Python adds the number itself.
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((code, text, path.as_os_str().to_owned()))
        }
        None => PyOSError::new_err(format!("{}: {text}", path.display())),
    }
}
