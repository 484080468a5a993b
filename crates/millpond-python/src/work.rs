//! Runs long work without the interpreter's lock, so that other Python threads go on and Ctrl-C interrupts it.

use millpond_cli::{Error, Threads};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How often signals are looked for.
const PATIENCE: Duration = Duration::from_millis(50);

/// Calls `work` in a thread of its own. If a signal handler raises an exception, such as `KeyboardInterrupt`, the work is interrupted, and
/// the exception is returned at once.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Threads) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let threads = Threads::default();
    let theirs = threads.clone();
    let (done, mut results) = mpsc::channel();
    // Nobody receives the result of work that was interrupted.
    let begin = move || drop(done.send(work(&theirs)));
    thread::Builder::new().name("millpond".to_owned()).spawn(begin)?;
    loop {
        let result;
        (result, results) = py.detach(move || (results.recv_timeout(PATIENCE), results));
        match result {
            Ok(result) => return result.map_err(raised),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "millpond failed because of an error in it, which standard error shows; please report it",
                ));
            }
        }
        if let Err(signal) = py.check_signals() {
            threads.interrupt();
            return Err(signal);
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
