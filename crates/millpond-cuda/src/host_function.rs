//! Functions of the host that run in the order of a stream, on memory that both the host and the device can access.
//!
//! Each function belongs to a loan of the memory. The end of the loan waits for running functions, and no other function begins after it,
//! so the borrowed memory has one user at a time. This also holds on a lost device, where the driver may call functions after a failed
//! wait.

use super::abi::{Code, SUCCESS, StreamHandle};
use super::callback;
use super::error::CudaError;
use super::stream::CudaStream;
use super::stream::mark::expect_uncaptured;
use millpond_pool::dtype::Element;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The functions on the elements of one loan.
///
/// Invariant: no function runs after [`end`](Self::end) has returned.
#[derive(Debug, Default)]
pub(super) struct HostFunctions {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// Whether no further function may begin.
    closed: bool,
    panicked: bool,
}

impl HostFunctions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function, unless this is closed.
    fn run(&self, work: impl FnOnce()) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.running += 1;
        drop(state);
        let mut panicked = true;
        callback::run(|| {
            work();
            panicked = false;
        });
        let mut state = self.lock();
        state.running -= 1;
        state.panicked |= panicked;
        self.ended.notify_all();
    }

    /// Waits for running functions, and prevents further ones from running. If the device fails, the driver may still call some of them
    /// later.
    ///
    /// # Errors
    /// Returns [`CudaError::HostPanicked`] if a function has panicked.
    pub(super) fn end(&self) -> Result<(), CudaError> {
        let mut state = self.lock();
        state.closed = true;
        while state.running > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.panicked {
            return Err(CudaError::HostPanicked);
        }
        Ok(())
    }
}

/// A function and the elements that it gets.
struct Call<T, F> {
    start: *mut T,
    len: usize,
    work: F,
    functions: Arc<HostFunctions>,
}

/// The function that the driver calls.
///
/// # Safety
/// The pointer must come from a boxed [`Call`] of these types, and is passed to only one call. No other code may use its elements until its
/// functions have ended.
unsafe extern "C" fn run<T: Element, F: FnOnce(&mut [T])>(_: StreamHandle, code: Code, call: *mut c_void) {
    // SAFETY: the caller guarantees this.
    let call = *unsafe { Box::from_raw(call.cast::<Call<T, F>>()) };
    let Call { start, len, work, .. } = call;
    let mut work = Some(work);
    // After an error of the device, the earlier work has not been done.
    if code == SUCCESS {
        call.functions.run(|| {
            if let Some(work) = work.take() {
                // SAFETY: the caller guarantees the elements.
                work(unsafe { std::slice::from_raw_parts_mut(start, len) });
            }
        });
    }
    // The values that the closure has captured must not use the driver either.
    callback::run(|| drop(work));
}

/// Queues a function on a stream. The function receives these elements.
///
/// # Safety
/// The elements must be managed memory whose address was exposed, or there must be none. No other code except work of the stream may use
/// them until the functions have ended.
pub(super) unsafe fn queue<T: Element, F>(
    functions: &Arc<HostFunctions>,
    stream: &CudaStream,
    (address, len): (u64, usize),
    work: F,
) -> Result<(), CudaError>
where
    F: FnOnce(&mut [T]) + Send + 'static,
{
    expect_uncaptured(stream)?;
    let _current = stream.device().enter()?;
    let start: *mut T = match len {
        0 => std::ptr::dangling_mut(),
        _ => std::ptr::with_exposed_provenance_mut(address as usize),
    };
    let call = Box::into_raw(Box::new(Call {
        start,
        len,
        work,
        functions: Arc::clone(functions),
    }));
    let driver = stream.device().driver();
    // If the driver returns an error, it may still have queued the function, so the box is not taken back.
    // SAFETY: the stream lives, and the box is for this one call. The caller guarantees the elements.
    unsafe { driver.stream_add_callback(stream.handle(), Some(run::<T, F>), call.cast(), 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_waits_for_a_running_function_and_prevents_later_ones() {
        let functions = Arc::new(HostFunctions::default());
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let of_thread = Arc::clone(&functions);
        let runner = std::thread::spawn(move || {
            of_thread.run(|| {
                begun.send(()).expect("the test waits");
                goes_on.recv().expect("the test goes on");
            });
        });
        begins.recv().expect("the function begins");
        let of_thread = Arc::clone(&functions);
        let ender = std::thread::spawn(move || of_thread.end());
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!ender.is_finished());
        go_on.send(()).expect("the function waits");
        assert_eq!(ender.join().expect("no panic"), Ok(()));
        runner.join().expect("no panic");
        functions.run(|| unreachable!("it was ended"));
        assert_eq!(functions.end(), Ok(()));
    }

    #[test]
    fn end_returns_an_error_after_a_panic() {
        let functions = HostFunctions::default();
        functions.run(|| panic!("as planned"));
        functions.run(|| ());
        assert_eq!(functions.end(), Err(CudaError::HostPanicked));
    }
}
